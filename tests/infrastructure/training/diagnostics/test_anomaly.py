"""The operation that makes a number that is not finite is named, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision


class Broken(nn.Module):
    """Does one thing to what passes through."""

    def __init__(self, does: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.does = does

    def forward(self, x):
        return self.does(x)


@pytest.fixture
def anomalies() -> Callable[..., list[dict[str, Any]]]:
    def find(
        *layers: nn.Module,
        loss: Callable[..., torch.Tensor] | None = None,
        precision: str = "fp32",
        steps: int = 1,
        scale: float = 1024.0,
    ) -> list[dict[str, Any]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 1))
        trainer = FP16Trainer(
            model,
            torch.optim.AdamW(model.parameters(), fused=True),
            FP16TrainingConfig(
                detect_anomaly=True,
                precision=Precision(precision),
                cpu_half=True,
                loss_scale=scale,
            ),
        )
        x = torch.randn(8, 4)
        with capture_logs() as logs:
            for _ in range(steps):
                trainer.step(
                    trainer.training_step(x, loss or (lambda forward, x: forward(x).mean()))
                )
        assert not any(module._forward_hooks for module in model.modules())
        return [line for line in logs if line["event"] == "anomaly_found"]

    return find


def test_an_operation_of_the_forward_pass_is_named_with_its_module(anomalies) -> None:
    (line,) = anomalies(nn.SiLU(), Broken(lambda x: (x - 1e3).log()), nn.SiLU())
    assert line["forward"] == "log.default in 2 (Broken)"
    assert not line["loss_is_finite"]
    assert line["log_level"] == "warning"


def test_an_operation_of_the_backward_pass_is_named(anomalies) -> None:
    """The forward pass is finite: the root of nothing. torch's own mode sees NaN only, not inf."""
    (line,) = anomalies(Broken(lambda x: (x * 0.0).sqrt() + x))
    assert line["backward"] == "SqrtBackward0 in 1 (Broken)"
    assert line["forward"] == "nothing"
    assert line["loss_is_finite"]


def test_an_overflow_under_fp16_is_named(anomalies) -> None:
    assert anomalies(Broken(lambda x: x * 1e6)) == []
    (line,) = anomalies(Broken(lambda x: x * 1e6), precision="fp16", scale=1.0)
    assert line["forward"] == "mul.Tensor in 1 (Broken)"


def test_an_overflow_of_the_scale_alone_is_named_in_the_backward_pass(anomalies) -> None:
    (line,) = anomalies(nn.SiLU(), precision="fp16", scale=2.0**40)
    assert line["loss_is_finite"]
    assert line["forward"] == "nothing"
    assert line["backward"].startswith("ToCopyBackward0 in ")


def test_the_loss_itself_is_named(anomalies) -> None:
    (line,) = anomalies(loss=lambda forward, x: forward(x).mean() / 0.0)
    assert line["forward"].startswith("div.Tensor in the loss")


def test_a_mask_is_no_anomaly(anomalies) -> None:
    """Its infinities are wanted; what goes wrong beside it is found all the same."""

    def masked(x):
        mask = torch.eye(4, dtype=torch.bool)[:1].expand(len(x), -1)
        return x.masked_fill(mask, float("-inf")).softmax(-1)

    assert anomalies(Broken(masked)) == []
    (line,) = anomalies(Broken(masked), Broken(lambda x: x.log() * 0.0))
    assert line["forward"] == "log.default in 2 (Broken)"


def test_a_batch_that_is_not_finite_is_named_where_it_enters(anomalies) -> None:
    def loss(forward, x):
        return forward(x.new_full(x.shape, float("nan"))).mean()

    (line,) = anomalies(nn.SiLU(), loss=loss)
    assert line["forward"] == "addmm.default of a value that was not finite in 0 (Linear)"


def test_every_nonfinite_step_is_logged_once(anomalies) -> None:
    lines = anomalies(Broken(lambda x: (x - 1e3).log()), steps=3)
    assert [line["backward_pass"] for line in lines] == [1, 2, 3]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_watching_changes_nothing(make_trainer, loss_fn, batch, precision: str) -> None:
    watched, plain = (
        make_trainer(precision, detect_anomaly=on, loss_scale=8.0) for on in (True, False)
    )
    with capture_logs() as logs:
        for trainer in (watched, plain):
            for _ in range(5):
                trainer.step(trainer.training_step(batch, loss_fn))
    assert [line for line in logs if line["event"] == "anomaly_found"] == []
    for one, other in zip(watched.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
