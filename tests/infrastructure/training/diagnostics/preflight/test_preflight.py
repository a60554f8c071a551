import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from infrastructure.agent_contract import TrainingJob
from infrastructure.events.preflight_report import PrecisionMeasurement, PreflightReport
from infrastructure.training import FP16TrainingConfig, Precision
from infrastructure.training.diagnostics.job_copy import JobCopy
from infrastructure.training.diagnostics.preflight import preflight

CPU = torch.device("cpu")
Job = Callable[..., TrainingJob]


def of(report: PreflightReport, precision: str) -> PrecisionMeasurement:
    return next(each for each in report.measurements if each.precision == precision)


def quick(job: TrainingJob, **config: object) -> PreflightReport:
    return preflight(job, CPU, FP16TrainingConfig(**config), batches=2, budget_seconds=0.05)


def test_everything_is_reported(probe_job: Job) -> None:
    report = quick(probe_job("norm"), cpu_half=True)
    assert [each.precision for each in report.measurements] == ["fp32", "fp16", "bf16"]
    assert all(each.usable for each in report.measurements)
    assert all(
        (each.ratio or 0) > 0 and (each.seconds_per_step or 0) > 0 for each in report.measurements
    )
    assert of(report, "bf16").saved_bytes < of(report, "fp32").saved_bytes * 1.2
    assert report.batches == 2
    assert {"0 (Linear)", "3 (Linear)"} <= {each.module for each in report.modules}
    assert report.recommended_scale == report.largest_safe_scale / 2
    assert report.keep_fp32 == ()
    assert report.verdict != "fp16"  # a CPU emulates it
    assert PreflightReport.model_validate_json(report.model_dump_json()) == report


def test_fp16_on_a_cpu_is_timed_on_request_only(probe_job: Job) -> None:
    fp16 = of(quick(probe_job()), "fp16")
    assert fp16.ratio is None
    assert fp16.saved_bytes is not None
    assert any("not timed" in remark for remark in fp16.remarks)


def test_the_job_is_left_untouched(probe_job: Job) -> None:
    """Weights, buffers, gradients, mode, every generator, and what training then computes."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    drawn = []

    def batches(epoch: int):
        for _ in range(6):
            drawn.append(epoch)
            noise = random.random() + float(np.random.rand())
            yield {"x": torch.randn(32, 8) + noise}

    job = probe_job(model.eval(), batches=batches)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = (random.random(), float(np.random.rand()), torch.rand(1).item())
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    quick(job, cpu_half=True)
    assert (random.random(), float(np.random.rand()), torch.rand(1).item()) == expected
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not model.training
    assert not model[0]._forward_hooks
    assert drawn == [0, 0]


def test_module_beyond_fp16_makes_it_unusable_and_is_named(probe_job: Job) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        model[1].weight.mul_(1e7)
    report = quick(probe_job(model), cpu_half=True)
    fp16, bf16 = of(report, "fp16"), of(report, "bf16")
    assert not fp16.usable
    assert fp16.ratio is None
    assert any("1 (Linear) reaches" in remark for remark in fp16.remarks)
    assert "1 (Linear)" in report.keep_fp32
    assert bf16.ratio is not None
    kept = quick(replace(probe_job(model), keep_fp32=["1"]), cpu_half=True)
    assert not kept.keep_fp32
    assert not any("reaches" in remark for remark in of(kept, "fp16").remarks)


class Lstm(nn.Module):
    """Torch has no FP16 LSTM for a CPU, and a BF16 one for some only."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 4, batch_first=True)

    def forward(self, x):
        return self.lstm(x[:, None, :])[0]


@pytest.mark.process
def test_model_that_does_not_run_under_fp16(probe_job: Job) -> None:
    report = quick(probe_job(Lstm()), cpu_half=True)
    fp16 = of(report, "fp16")
    assert not fp16.usable
    assert fp16.remarks[0].startswith("does not run: module 'lstm' (LSTM)")
    assert of(quick(probe_job(Lstm()), cpu_half=True, keep_fp32=["lstm"]), "fp16").usable
    assert report.largest_safe_scale is None
    bf16 = of(report, "bf16")
    if _has_bf16_lstm():
        assert bf16.ratio is not None
    else:
        assert bf16.remarks[0].startswith("does not run: module 'lstm' (LSTM)")


def _has_bf16_lstm() -> bool:
    """Whether torch computes an LSTM in BF16 on this CPU."""
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            nn.LSTM(8, 4)(torch.zeros(1, 1, 8))
    except RuntimeError:
        return False
    return True


def test_a_wrecked_gradient_makes_a_half_type_unusable(probe_job: Job) -> None:
    """A small difference of large numbers: BF16 keeps nothing of it."""

    def loss(forward, batch):
        return (forward(batch["x"] + 4096.0) - forward(batch["x"] + 4095.0)).pow(2).mean()

    bf16 = of(quick(probe_job("mlp", loss=loss)), "bf16")
    assert not bf16.usable
    assert "differs from FP32's" in bf16.remarks[0]


def test_loss_that_is_not_finite_anywhere(probe_job: Job) -> None:
    def loss(forward, batch):
        return forward(batch["x"]).pow(2).mean() * float("nan")

    report = quick(probe_job("mlp", loss=loss))
    assert report.verdict == "fp32"
    assert "not finite in FP32" in "".join(report.reasons)


def test_no_scale_saves_gradients_above_the_floor(probe_job: Job) -> None:
    report = quick(probe_job("mlp", magnitude=2.0**40), cpu_half=True)
    assert not of(report, "fp16").usable
    assert "any loss scale" in "".join(of(report, "fp16").remarks)


def test_no_batches(probe_job: Job) -> None:
    with pytest.raises(ValueError, match="no batches"):
        quick(probe_job("mlp", batches=lambda epoch: []))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_all_three_are_timed_and_the_scale_is_exact(probe_job: Job) -> None:
    device = torch.device("cuda")
    job = probe_job("attention")
    report = preflight(job, device, batches=2, budget_seconds=2.0)
    assert all((each.seconds_per_step or 0) > 0 for each in report.measurements)
    assert all((each.peak_bytes or 0) > 0 for each in report.measurements)
    scale = report.largest_safe_scale
    assert scale is not None
    made = JobCopy(job, device, 2)
    for factor, safe in ((1.0, True), (2.0, False)):
        finite = True
        for batch in made.batches:
            model = made.model()
            (made.loss(model, batch, Precision.FP16) * scale * factor).backward()
            finite &= all(bool(p.grad.isfinite().all()) for p in model.parameters())
        assert finite is safe
