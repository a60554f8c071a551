"""Bisection of a frozen policy: the file that is written, and its agreement with the trainer."""

import json

import pytest
import torch

from infrastructure.events import Role
from infrastructure.precision_lab.bisect import bisect_folder
from infrastructure.precision_lab.bisect.bisect_folder import NothingHalfError
from infrastructure.precision_lab.frozen import (
    FrozenFolder,
    load_policy_experiment,
    save_policy_experiment,
)
from tests.infrastructure.precision_lab.small_experiment import small_experiment

pytestmark = pytest.mark.process  # trains for seconds


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    """A frozen policy whose values are more than FP16 holds."""
    folder = tmp_path_factory.mktemp("lab") / "frozen"
    experiment = small_experiment()
    with torch.no_grad():
        experiment.models[Role.VALUE].output.bias.add_(70000)
    save_policy_experiment(folder, experiment, source={"task": "test"}, seed=3)
    return FrozenFolder(folder)


def test_values_that_overflow_are_found_in_a_frozen_policy(frozen, tmp_path):
    experiment = load_policy_experiment(frozen, torch.device("cpu"))
    found = bisect_folder(frozen, experiment, "fp16_fp32_kl", tmp_path / "out", 8.0)
    assert "value:output:compute" in {str(each.place) for each in found.culprits}
    assert {each.place.role for each in found.culprits} == {Role.VALUE}
    assert found.with_cure.ratio <= 8 < found.half.ratio
    written = json.loads((tmp_path / "out" / "bisect.json").read_text())
    assert written["culprits"][0]["place"] == str(found.culprits[0].place)
    assert written["preset"] == "fp16_fp32_kl"
    assert written["runs"] == found.runs
    assert written["trainer"]["ratio"] == "inf"  # the trainer's own forward pass agrees


def test_a_preset_without_half_types_is_refused(frozen, tmp_path):
    experiment = load_policy_experiment(frozen, torch.device("cpu"))
    with pytest.raises(NothingHalfError, match="fp32_baseline"):
        bisect_folder(frozen, experiment, "fp32_baseline", tmp_path, 8.0)
