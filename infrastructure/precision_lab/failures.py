"""How a training in the lab fails: the categories of dtype-rlhf, each with a rule that detects it.

A cell of a sweep shows each step's figures to a `FailureWatch`, and turns an exception that ends it
into a `Failure` with `failure_of`. Figures are read after the step, so the lab may wait for the
device here; the trainer's own detection does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch

KL_COLLAPSE_THRESHOLD = 1e-8
"""Mean penalty per token, nats, below which dtype-rlhf calls it collapsed."""

COLLAPSE_FACTOR = 10.0
"""The exact penalty must exceed the threshold by this factor, or the policy has not moved."""

FP16_OVERFLOW_LIMIT = 50
"""Consecutive overflows that a loss scale may cause: 2^16 backed off to 2^-34."""


class FailureKind(StrEnum):
    """Category of a failure. A run without a failure has none."""

    NAN_LOSS = "nan_loss"
    NAN_GRADIENT = "nan_gradient"
    INF_VALUE_HEAD = "inf_value_head"
    VALUE_MANTISSA_STARVATION = "value_mantissa_starvation"
    KL_PENALTY_COLLAPSED = "kl_penalty_collapsed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"


_DAMAGE = frozenset(
    {FailureKind.VALUE_MANTISSA_STARVATION, FailureKind.KL_PENALTY_COLLAPSED}
)  # of the results: the training goes on


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A failure of a cell, found while it ran.

    Attributes:
        kind: Category.
        step: Step at which it was detected, from 0; None outside of the steps.
        detail: What was found, one sentence.
    """

    kind: FailureKind
    step: int | None
    detail: str

    @property
    def ends_training(self) -> bool:
        """Whether later steps have no meaning. A starved value head or a collapsed penalty only
        spoil what is learned, which a sweep wants to see.
        """
        return self.kind not in _DAMAGE


class TrainingFailureError(RuntimeError):
    """A training that cannot go on.

    Args:
        failure: Why.
    """

    def __init__(self, failure: Failure) -> None:
        where = "" if failure.step is None else f" at step {failure.step}"
        super().__init__(f"{failure.kind}{where}: {failure.detail}")
        self.failure = failure


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFigures:
    """What a step has shown. A figure that the training lacks is None.

    Attributes:
        loss: Loss of the step, not scaled.
        gradient_norm: Norm of the unscaled gradients before clipping.
        value_max: `ValueMetrics.value_max` of this step alone.
        value_headroom: `ValueMetrics.value_headroom`.
        kl_penalty_mean: `KlMetrics.kl_penalty_mean`, in the type of the role ``kl``.
        exact_kl_penalty_mean: Same of float32 log-probabilities by `exact_kl_penalty_mean`: a
            second forward pass of policy and reference, which may be made at some steps only.
    """

    loss: float
    gradient_norm: float
    value_max: float | None = None
    value_headroom: float | None = None
    kl_penalty_mean: float | None = None
    exact_kl_penalty_mean: float | None = None


class FailureWatch:
    """Finds the first failure of each kind in the figures of a training's steps.

    Args:
        overflow_limit: Consecutive steps whose gradients may be non-finite because a loss scale is
            still too large. 0 without a loss scale; `FP16_OVERFLOW_LIMIT` with one.

    Attributes:
        failures: Those found, in the order in which they occurred, at most one of each kind.
        counts: Steps of each kind.
    """

    def __init__(self, *, overflow_limit: int = 0) -> None:
        if overflow_limit < 0:
            raise ValueError(f"overflow_limit must be 0 or more, got {overflow_limit}")
        self._overflow_limit = overflow_limit
        self._overflows = 0
        self.failures: list[Failure] = []
        self.counts = dict.fromkeys(FailureKind, 0)

    def see(self, step: int, figures: StepFigures) -> list[Failure]:
        """The failures of *step*; the cause first where one failure causes others.

        An infinite value makes the loss non-finite and that the gradients, so only the first of
        these three is reported.
        """
        self._overflows = 0 if math.isfinite(figures.gradient_norm) else self._overflows + 1
        problems = [problem for problem in (self._broken(figures), _starved(figures)) if problem]
        if (collapsed := _collapsed(figures)) is not None:
            problems.append(collapsed)
        failures = [Failure(kind=kind, step=step, detail=detail) for kind, detail in problems]
        for failure in failures:
            if not self.counts[failure.kind]:
                self.failures.append(failure)
            self.counts[failure.kind] += 1
        return failures

    def require_healthy(self, step: int, figures: StepFigures) -> None:
        """As `see`, for a training that ends at a failure from which it cannot recover.

        Raises:
            TrainingFailureError: *step* has such a failure.
        """
        for failure in self.see(step, figures):
            if failure.ends_training:
                raise TrainingFailureError(failure)

    def _broken(self, figures: StepFigures) -> tuple[FailureKind, str] | None:
        if figures.value_max is not None and not math.isfinite(figures.value_max):
            return (
                FailureKind.INF_VALUE_HEAD,
                f"the value head predicts {figures.value_max}: keep the role value in FP32",
            )
        if not math.isfinite(figures.loss):
            return FailureKind.NAN_LOSS, f"the loss is {figures.loss} before any scaling"
        if self._overflows > self._overflow_limit:
            return (
                FailureKind.NAN_GRADIENT,
                f"the gradients' norm is {figures.gradient_norm} in {self._overflows} consecutive "
                f"steps, and a loss scale explains {self._overflow_limit}",
            )
        return None


def _starved(figures: StepFigures) -> tuple[FailureKind, str] | None:
    if figures.value_headroom is None or not figures.value_headroom < 0:
        return None
    if figures.value_headroom == -math.inf:  # the value head is broken, not starved
        return None
    return (
        FailureKind.VALUE_MANTISSA_STARVATION,
        f"the largest value is {-figures.value_headroom:.4g} beyond the magnitude at which its "
        "type has too few digits: scale the rewards, or keep the role value in FP32",
    )


def _collapsed(figures: StepFigures) -> tuple[FailureKind, str] | None:
    """A penalty that is 0 because policy and reference are equal has not collapsed."""
    penalty, exact = figures.kl_penalty_mean, figures.exact_kl_penalty_mean
    if penalty is None or exact is None:
        return None
    if penalty < KL_COLLAPSE_THRESHOLD <= exact / COLLAPSE_FACTOR:
        return (
            FailureKind.KL_PENALTY_COLLAPSED,
            f"the penalty is {penalty:.3g} nats per token and {exact:.3g} in exact arithmetic: "
            "keep the role kl in FP32, and its log-probabilities too",
        )
    return None


class Deadline:
    """Ends a training that takes too long, between its steps.

    Args:
        seconds: Time allowed from now on.
        clock: Seconds of a clock that never goes back.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not seconds > 0:
            raise ValueError(f"a deadline must allow more than 0 seconds, got {seconds}")
        self._seconds, self._clock, self._start = seconds, clock, clock()

    def check(self, step: int) -> None:
        """Raise once the time is over.

        Raises:
            TrainingFailureError: Of the kind ``timeout``.
        """
        taken = self._clock() - self._start
        if taken > self._seconds:
            detail = f"{taken:.0f} s were taken and {self._seconds:.0f} s allowed"
            raise TrainingFailureError(Failure(kind=FailureKind.TIMEOUT, step=step, detail=detail))


def failure_of(error: Exception, *, step: int | None = None) -> Failure:
    """The failure that *error* of a training means.

    Interrupts and exits are not failures, so they are not accepted.

    Args:
        error: What ended the training.
        step: Step in which it was raised, unless *error* names it.
    """
    if isinstance(error, TrainingFailureError):
        return error.failure
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if _is_out_of_memory(error):
        kind = FailureKind.OUT_OF_MEMORY
    elif isinstance(error, TimeoutError):
        kind = FailureKind.TIMEOUT
    else:
        kind = FailureKind.UNKNOWN
    return Failure(kind=kind, step=step, detail=text)


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)  # of torch's allocators on the host, which have no class of their own
    return "DefaultCPUAllocator" in text or "not enough memory" in text
