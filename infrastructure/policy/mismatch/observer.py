"""Measures the mismatch of trainer and rollout now and then while a policy job trains."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar, get_args

import torch
from torch import Tensor

from infrastructure.agent_contract.on_policy_job import LogProbFunctions
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.event import BaseEvent, MismatchMeasured, Notice
from infrastructure.events.mismatch_report import MismatchReport, ReferenceReport
from infrastructure.events.precision_state import PrecisionName, fp32_reason_of_device
from infrastructure.events.role_precision import FP32, HalfName, RolePrecision
from infrastructure.policy.mismatch.attribution import report_mismatch, report_reference
from infrastructure.training.inputs import preserved_generators, to_device
from infrastructure.training.precision import Precision, PrecisionForward, native_half_types
from infrastructure.training.precision.roles import Role
from infrastructure.training.rounds import GeneratedRound

ROWS = 16  # sequences of a sample, the first of a round
COST_SHARE = 0.01

_Report = TypeVar("_Report")


class MismatchObserver:
    """Emits `MismatchMeasured` of rounds that were generated, without affecting the training.

    Called with a round and the steps attempted so far. Waits for the device.

    Args:
        log_probs: The job's functions.
        interval: Rounds between two samples in the same precisions, unless they would cost more
            than *cost_share*.
        emit: Function that receives the events.
        cpu_half: Whether half precision may run on a CPU.
        cost_share: Share of the time since this observer was made that all samples may take; the
            first one after each change of precision is always taken, and the next ones make up for
            it.
        clock: Monotonic seconds.

    Attributes:
        compared: Rounds that were measured, or tried.
    """

    def __init__(
        self,
        log_probs: LogProbFunctions,
        interval: int,
        emit: Callable[[BaseEvent], None],
        *,
        cpu_half: bool,
        cost_share: float = COST_SHARE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log_probs, self._interval, self._emit = log_probs, interval, emit
        self._cpu_half, self._cost_share, self._clock = cpu_half, cost_share, clock
        self._next_round, self._next_at = 0, 0.0
        self._began, self._spent = clock(), 0.0
        self._precisions: object = None  # of the roles in the newest sample
        self.compared = 0
        self._noticed = False

    def __call__(self, generated: GeneratedRound, step: int) -> None:
        """Measure *generated* if it is time."""
        began = self._clock()
        precisions = _precisions(generated)
        is_time = generated.number >= self._next_round and began >= self._next_at
        if not generated.batches or not (is_time or precisions != self._precisions):
            return
        self.compared += 1
        self._precisions = precisions
        batch = _first_rows(to_device(generated.batches[0], generated.device), ROWS)
        with preserved_generators(generated.device), torch.no_grad():
            report = self._tried(lambda: self._measure(generated, batch))
            if report is not None:
                reference = self._tried(lambda: self._measure_reference(generated, batch))
                self._emit(
                    MismatchMeasured(
                        step=step, round=generated.number, report=report, reference=reference
                    )
                )
        self._next_round = generated.number + self._interval
        now = self._clock()
        seconds = now - began
        self._spent += seconds
        self._next_at = max(
            self._began + (self._spent + seconds) / self._cost_share,
            now + seconds / self._cost_share,  # no burst after a time with few samples
        )

    def _tried(self, measure: Callable[[], _Report]) -> _Report | None:
        """What *measure* returns; None if it cannot, which is told once."""
        try:
            return measure()
        except Exception as error:  # of a plugin's code, or of the device: the training goes on
            if not self._noticed:
                consequence = "training continues; later rounds are tried"
                self._emit(Notice.warning("mismatch_not_measured", error, consequence=consequence))
            self._noticed = True
            return None

    def _measure_reference(self, generated: GeneratedRound, batch: Batch) -> ReferenceReport | None:
        reference = generated.reference
        if reference is None:
            return None
        before = reference.precision

        def log_probs(name: PrecisionName) -> Tensor:
            if name != reference.precision.compute:
                reference.set_precision(_precision_of(before, name))
            return self._log_probs.policy(reference, batch)

        _, mask_BS = self._log_probs.recorded(batch)
        try:
            return report_reference(mask_BS, reference=log_probs, in_force=before.compute)
        finally:
            if reference.precision != before:
                reference.set_precision(before)

    def _measure(self, generated: GeneratedRound, batch: Batch) -> MismatchReport:
        rollout, policy = generated.rollout, generated.policy
        functions, before = self._log_probs, generated.rollout.precision
        training = policy.training

        def policy_log_probs(name: PrecisionName) -> Tensor:
            forward = PrecisionForward(policy, generated.device, Precision(name))
            return functions.policy(forward, batch)

        def rollout_log_probs(name: PrecisionName) -> Tensor:
            rollout.set_precision(_precision_of(before, name))
            return functions.rollout(rollout, batch)

        policy.eval()
        try:
            recorded_BS, mask_BS = functions.recorded(batch)
            return report_mismatch(
                recorded_BS,
                mask_BS,
                policy=policy_log_probs,
                rollout=rollout_log_probs,
                in_force=(generated.precisions[Role.POLICY].compute, before.compute),
                halves=self._halves(generated.device),
            )
        finally:
            policy.train(training)
            if rollout.precision != before:
                rollout.set_precision(before)

    def _halves(self, device: torch.device) -> tuple[PrecisionName, ...]:
        """Half types that *device* may compute in."""
        native = native_half_types(device)
        return tuple(
            half
            for half in get_args(HalfName)
            if fp32_reason_of_device(
                half,
                accelerator=device.type != "cpu",
                native=native,
                cpu_half=self._cpu_half,
            )
            is None
        )


def _precisions(generated: GeneratedRound) -> tuple[RolePrecision | None, ...]:
    """Those of policy, rollout and reference."""
    reference = generated.reference
    return (
        generated.precisions[Role.POLICY],
        generated.rollout.precision,
        reference.precision if reference else None,
    )


def _precision_of(role: RolePrecision, compute: PrecisionName) -> RolePrecision:
    """The types of *role* with another half type, or FP32."""
    if compute == "fp32":
        return FP32
    return role.in_half(compute) if role.is_half else RolePrecision(compute, compute, "fp32")


def _first_rows(batch: Batch, rows: int) -> Batch:
    """The first *rows* sequences of *batch*: of all tensors with the most common first size."""
    sizes = [tensor.shape[0] for tensor in batch.values() if tensor.ndim]
    sequences = max(set(sizes), key=sizes.count)
    return {
        name: tensor[:rows] if tensor.ndim and tensor.shape[0] == sequences else tensor
        for name, tensor in batch.items()
    }
