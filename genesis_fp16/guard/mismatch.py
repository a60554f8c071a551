"""Detects that trainer and rollout disagree because of rounding, and which role to change."""

from __future__ import annotations

from collections.abc import Sequence

from genesis_fp16.domain.guard import HISTORY_LIMIT, Detection, GuardSettings, Trigger
from infrastructure.events import PrecisionName, Role
from infrastructure.events.mismatch_report import (
    MismatchReport,
    MismatchRole,
    MismatchVerdict,
    attribute,
)


class MismatchDetector:
    """Counts reports in a row, of one pair of precisions, with too much mismatch from rounding.

    Args:
        cured: Pair of precisions, of policy and rollout, that a decision has just changed. Reports
            of it are of the time before the worker has changed, and are ignored.

    Attributes:
        detected: Pair of precisions of the last detection.
    """

    def __init__(self, cured: tuple[PrecisionName, PrecisionName] | None = None) -> None:
        self.detected: tuple[PrecisionName, PrecisionName] | None = None
        self._cured = cured
        self._streak: list[MismatchReport] = []

    def add(
        self,
        report: MismatchReport,
        settings: GuardSettings,
        *,
        on_probation: bool,
        other_half_allowed: bool,
    ) -> Detection | None:
        """Count a report.

        Args:
            report: Report of the worker.
            settings: Settings with the limits.
            on_probation: Whether one report is enough.
            other_half_allowed: Whether nobody chose the half type, so that the guard may.
        """
        pair = report.policy, report.rollout
        if pair == self._cured:
            return None
        if self._streak and pair != (self._streak[-1].policy, self._streak[-1].rollout):
            self._streak.clear()
        if not (report.is_rounding and report.excess_k3 > settings.guard_mismatch_kl):
            self._streak.clear()
            return None
        self._streak = [*self._streak, report][-HISTORY_LIMIT:]
        if len(self._streak) < (1 if on_probation else settings.guard_mismatch_samples):
            return None
        verdict = attribute(self._streak, other_half_allowed=other_half_allowed)
        if verdict is None:
            return None
        self.detected = pair
        return _detection(self._streak, verdict, settings)


def _detection(
    reports: Sequence[MismatchReport], verdict: MismatchVerdict, settings: GuardSettings
) -> Detection:
    last = reports[-1]
    changes = verdict.changes(last)
    everything = verdict.policy == "fp32"
    roles = {} if everything else {Role(role): name for role, name in changes.items()}
    guilty = " and ".join(f"{role} in {getattr(last, role)}" for role in verdict.guilty)
    counted = f"{len(reports)} samples in a row" if len(reports) > 1 else "one sample"
    summary = (
        f"trainer ({last.policy}) and rollout ({last.rollout}) disagree by {last.k3:.3g} nats per "
        f"token, and by {last.floor_k3:.2g} if both compute in FP32; the limit for the difference "
        f"is {settings.guard_mismatch_kl:g}, exceeded in {counted}. The "
        f"rounding of {guilty} causes it. {_cure(changes, everything=everything)}: on the same "
        f"tokens {verdict.remaining:.0%} of the difference remains"
    )
    numbers: dict[str, object] = {
        "limit": settings.guard_mismatch_kl,
        "excess": [report.excess_k3 for report in reports],
        "guilty": list(verdict.guilty),
        "shares": dict(verdict.shares),
        "changes": dict(changes),
        "remaining": verdict.remaining,
    }
    return Detection(trigger=Trigger.MISMATCH, summary=summary, numbers=numbers, roles=roles)


def _cure(changes: dict[MismatchRole, PrecisionName], *, everything: bool) -> str:
    if everything:
        return "Every role changes to FP32"
    if len(set(changes.values())) == 1 < len(changes):
        return f"Policy and rollout change to {changes['policy'].upper()}"
    return " and ".join(
        f"{role.capitalize()} changes to {name.upper()}" for role, name in changes.items()
    )
