from __future__ import annotations

import re
import threading
from typing import Any

import pytest
import torch
from torch import nn

from infrastructure.training.diagnostics import check_fp32_step
from infrastructure.training.model_copy import UncopyableModelError, copy_model


def holding(value: Any) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 1)))
    model[1][1].held = value
    return model


def test_a_copy_is_independent_but_for_the_shared_tensors():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    plain, sharing = copy_model(model), copy_model(model, shared=model.parameters())
    with torch.no_grad():
        model[0].weight.fill_(3.0)
        model[1].running_mean.fill_(3.0)
    assert not (plain[0].weight == 3.0).any()
    assert sharing[0].weight is model[0].weight
    assert not (sharing[1].running_mean == 3.0).any()


@pytest.mark.parametrize(
    "value",
    [
        threading.Lock(),
        {"cache": [(number for number in range(3))]},
        torch.ones(2, requires_grad=True) * 2,
    ],
    ids=["lock", "generator", "graph"],
)
def test_what_cannot_be_copied_is_named_with_its_module(value):
    with pytest.raises(UncopyableModelError, match=re.escape("'held' of 1.1 (Linear): ")) as caught:
        copy_model(holding(value))
    assert str(caught.value.__cause__) in str(caught.value)


def test_a_buffer_attached_to_a_graph_is_named():
    model = nn.Sequential(nn.BatchNorm1d(4))
    model[0].running_mean = torch.ones(4, requires_grad=True) * 2
    with pytest.raises(UncopyableModelError, match="'running_mean' of 0"):
        copy_model(model)


def test_a_model_that_holds_itself_does_not_hide_what_cannot_be_copied():
    model = holding(threading.Lock())
    model[0].whole = [model]
    with pytest.raises(UncopyableModelError, match=r"of 1\.1"):
        copy_model(model)


def test_the_check_before_a_training_names_what_cannot_be_copied(make_job):
    job = make_job(model=holding(threading.Lock()))
    with pytest.raises(UncopyableModelError, match=r"of 1\.1"):
        check_fp32_step(job, torch.device("cpu"))
