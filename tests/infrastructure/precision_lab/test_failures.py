"""Each category is provoked by real arithmetic in the type that it is about."""

import math
import time

import pytest
import torch
from torch import Tensor, nn

from infrastructure.precision_lab.failures import (
    Deadline,
    Failure,
    FailureKind,
    FailureWatch,
    StepFigures,
    TrainingFailureError,
    failure_of,
)
from infrastructure.precision_lab.metrics import (
    exact_kl_penalty_mean,
    gradient_norm,
    measure_kl,
    measure_values,
)

STATES = torch.linspace(-1, 1, 8)[:, None]
EVERY = torch.ones(8, 1, dtype=torch.bool)


def _value_head(bias: float, dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(0)
    head = nn.Linear(1, 1)
    with torch.no_grad():
        head.bias.fill_(bias)
    return head.to(dtype)


def _step(head: nn.Linear, targets: Tensor, *, lr: float, scale: float = 1.0) -> StepFigures:
    """One step of gradient descent on a squared error, all in the head's type, and its forward."""
    dtype = head.weight.dtype
    name = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
    values = head(STATES.to(dtype))
    loss = (values - targets.to(dtype)).square().mean()
    head.zero_grad()
    (loss * scale).backward()
    norm = gradient_norm(head.parameters(), scale=scale)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.sub_(lr * parameter.grad)
    seen = measure_values(values, EVERY, precision=name)  # type: ignore[arg-type]
    return StepFigures(
        loss=loss.item(),
        gradient_norm=norm,
        value_max=seen.value_max,
        value_headroom=seen.value_headroom,
    )


def test_a_squared_error_overflows_in_fp16() -> None:
    head = _value_head(0.0, torch.float16)
    figures = _step(head, torch.full((8, 1), 300.0), lr=0.0)  # 300² is above 65504
    (failure,) = FailureWatch().see(3, figures)
    assert failure == Failure(
        kind=FailureKind.NAN_LOSS, step=3, detail="the loss is inf before any scaling"
    )
    assert _step(_value_head(0.0, torch.float32), torch.full((8, 1), 300.0), lr=0.0).loss < 1e5


def test_a_loss_scale_that_is_never_lowered_gives_infinite_gradients() -> None:
    head, targets = _value_head(0.0, torch.float16), torch.full((8, 1), 20.0)
    figures = _step(head, targets, lr=0.0, scale=2.0**13)
    watch = FailureWatch()
    (failure,) = watch.see(0, figures)
    assert failure.kind is FailureKind.NAN_GRADIENT
    assert math.isfinite(figures.loss)
    unscaled = _step(_value_head(0.0, torch.float16), targets, lr=0.0)
    assert unscaled.gradient_norm < 100


def test_a_loss_scale_may_overflow_until_it_has_backed_off() -> None:
    watch = FailureWatch(overflow_limit=2)
    overflow = StepFigures(loss=1.0, gradient_norm=math.inf)
    fine = StepFigures(loss=1.0, gradient_norm=1.0)
    seen = [
        bool(watch.see(step, figures))
        for step, figures in enumerate([overflow, overflow, fine, overflow, overflow, overflow])
    ]
    assert seen == [False, False, False, False, False, True]
    with pytest.raises(ValueError, match="overflow_limit"):
        FailureWatch(overflow_limit=-1)


def test_a_value_head_steps_beyond_fp16() -> None:
    head, targets = _value_head(65000.0, torch.float16), torch.full((8, 1), 65120.0)
    watch = FailureWatch()
    watch.see(0, _step(head, targets, lr=10.0))
    watch.see(1, _step(head, targets, lr=10.0))
    starved, failure = watch.failures
    assert starved.kind is FailureKind.VALUE_MANTISSA_STARVATION  # beyond 6e4, but finite
    assert (failure.kind, failure.step) == (FailureKind.INF_VALUE_HEAD, 1)
    assert "FP32" in failure.detail


def test_a_large_value_in_bf16_starves_but_the_training_goes_on() -> None:
    head = _value_head(20000.0, torch.bfloat16)
    before = head.bias.item()
    watch = FailureWatch()
    for step in range(3):
        figures = _step(head, torch.full((8, 1), before + 300), lr=0.05)
        watch.require_healthy(step, figures)
    assert head.bias.item() == before  # each step of 30 is below half the distance of 128
    (failure,) = watch.failures
    assert failure.kind is FailureKind.VALUE_MANTISSA_STARVATION
    assert failure.step == 0
    assert watch.counts[FailureKind.VALUE_MANTISSA_STARVATION] == 3
    assert not failure.ends_training
    moved = _value_head(20000.0, torch.float32)
    _step(moved, torch.full((8, 1), 20300.0), lr=0.05)
    assert moved.bias.item() > before


def test_a_penalty_of_bf16_log_probs_collapses_and_that_of_equal_policies_does_not() -> None:
    torch.manual_seed(0)
    logits = 0.05 * torch.randn(16, 8, 32)  # nearly uniform: log-probabilities about -3.4
    tokens = logits.argmax(-1, keepdim=True)
    moved = logits + 1e-3 * torch.randn_like(logits)
    reference, policy = (
        each.log_softmax(-1).gather(-1, tokens)[..., 0] for each in (logits, moved)
    )
    mask = torch.ones(16, 8, dtype=torch.bool)

    def figures(policy: Tensor) -> StepFigures:
        kl = measure_kl(policy, reference, mask, precision="bf16")
        exact = exact_kl_penalty_mean(policy, reference, mask)
        return StepFigures(
            loss=1.0,
            gradient_norm=1.0,
            kl_penalty_mean=kl.kl_penalty_mean,
            exact_kl_penalty_mean=exact,
        )

    (failure,) = FailureWatch().see(5, figures(policy))
    assert failure.kind is FailureKind.KL_PENALTY_COLLAPSED
    assert not failure.ends_training
    assert FailureWatch().see(5, figures(reference)) == []


def test_the_cause_is_reported_and_not_what_follows_from_it() -> None:
    everything = StepFigures(
        loss=math.nan, gradient_norm=math.nan, value_max=math.inf, value_headroom=-math.inf
    )
    (failure,) = FailureWatch().see(0, everything)
    assert failure.kind is FailureKind.INF_VALUE_HEAD
    with pytest.raises(TrainingFailureError, match="inf_value_head at step 7") as raised:
        FailureWatch().require_healthy(7, everything)
    assert failure_of(raised.value) == raised.value.failure


def test_memory_that_the_machine_lacks() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**58)
    failure = failure_of(raised.value, step=4)
    assert (failure.kind, failure.step) == (FailureKind.OUT_OF_MEMORY, 4)
    assert failure_of(MemoryError()).kind is FailureKind.OUT_OF_MEMORY
    assert failure_of(torch.OutOfMemoryError("CUDA")).kind is FailureKind.OUT_OF_MEMORY


def test_a_training_that_takes_too_long() -> None:
    Deadline(600.0).check(0)
    deadline = Deadline(0.01)
    time.sleep(0.02)
    with pytest.raises(TrainingFailureError) as raised:
        deadline.check(1)
    failure = failure_of(raised.value)
    assert failure.kind is FailureKind.TIMEOUT
    assert failure.step == 1
    assert failure_of(TimeoutError()).kind is FailureKind.TIMEOUT
    with pytest.raises(ValueError, match="more than 0"):
        Deadline(0.0)


def test_any_other_error_is_unknown_and_keeps_its_text() -> None:
    with pytest.raises(RuntimeError) as raised:
        nn.Linear(2, 2)(torch.ones(3))
    failure = failure_of(raised.value)
    assert failure.kind is FailureKind.UNKNOWN
    assert failure.detail.startswith("RuntimeError: ")
    assert "shapes" in failure.detail
