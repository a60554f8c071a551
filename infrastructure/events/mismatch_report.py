"""Mismatch between two roles that compute the same log-probabilities; part of an event.

The rules here decide which role's rounding causes it. They are shared by the worker, which
measures, and the daemon, which changes precisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from infrastructure.events.bounds import AnyNumber
from infrastructure.events.precision_state import PrecisionName

MismatchRole = Literal["policy", "rollout"]
ROUNDING_SHARE = 0.5  # of the mismatch that must end in FP32 before rounding is its main cause
REMAINING_SHARE = 0.1  # of the excess that may remain where a change of precision ends it

_OTHER_HALF: dict[PrecisionName, PrecisionName] = {"fp16": "bf16", "bf16": "fp16"}

_Count = Annotated[int, Field(ge=1, le=2**53)]
_NotNegative = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class Combination(_Part):
    """The mismatch of one batch if the two roles computed in these precisions.

    Attributes:
        policy, rollout: Precisions of the trainer and of the rollout.
        k3: As in `MismatchReport`.
        mean_difference: As in `MismatchReport`.
    """

    policy: PrecisionName
    rollout: PrecisionName
    k3: _NotNegative
    mean_difference: Annotated[float, Field(ge=0, le=1)]


class _Measures(_Part):
    """Difference of pi and mu over one batch; `infrastructure.policy.mismatch.Mismatch` defines it.

    Attributes:
        tokens, sequences: Valid tokens, and sequences with one.
        k1, k2, k3: Estimates of KL(mu || pi), nats per token.
        mean_difference, max_difference: Of the probabilities.
        pearson: Correlation of the probabilities; NaN if undefined.
        chi2_token, chi2_sequence: Estimates of the chi-squared divergence.
        effective_sample_size: Share of the sequences that importance weights leave.
        sequence_std: Standard deviation of the summed log-ratio of a sequence; NaN if undefined.
        slope: Change of that sum by token of length; NaN if undefined.
        seconds: Wall time of the measurement.
    """

    tokens: _Count
    sequences: _Count
    k1: AnyNumber
    k2: _NotNegative
    k3: _NotNegative
    mean_difference: Annotated[float, Field(ge=0, le=1)]
    max_difference: Annotated[float, Field(ge=0, le=1)]
    pearson: AnyNumber
    chi2_token: AnyNumber
    chi2_sequence: AnyNumber
    effective_sample_size: Annotated[float, Field(ge=0, le=1.001)]
    sequence_std: AnyNumber
    slope: AnyNumber
    seconds: _NotNegative = 0.0


class ReferenceReport(_Measures):
    """Rounding of the reference: as it computes (pi), and the same weights in FP32 (mu).

    Attributes:
        precision: Precision that pi was computed in.
    """

    precision: PrecisionName

    @property
    def floor_k3(self) -> float:
        """k3 in FP32, where both are the same: 0."""
        return 0.0

    @property
    def excess_k3(self) -> float:
        """k3, since rounding is all that it measures."""
        return self.k3


class MismatchReport(_Measures):
    """Mismatch of trainer (pi) and rollout (mu) over one batch, under the same weights.

    Attributes:
        policy, rollout: Precisions that pi and mu were computed in.
        combinations: The same batch with other precisions, the present ones and FP32 included.
    """

    policy: PrecisionName
    rollout: PrecisionName
    combinations: Annotated[tuple[Combination, ...], Field(max_length=9)] = ()

    def k3_of(self, policy: PrecisionName, rollout: PrecisionName) -> float | None:
        """k3 of that combination; None if it was not measured."""
        for combination in self.combinations:
            if (combination.policy, combination.rollout) == (policy, rollout):
                return combination.k3
        return None

    @property
    def floor_k3(self) -> float:
        """k3 with both roles in FP32: the order of operations, the cache, stale weights.

        NaN if it was not measured.
        """
        floor = self.k3_of("fp32", "fp32")
        return math.nan if floor is None else floor

    @property
    def excess_k3(self) -> float:
        """k3 above the floor, at least 0: the rounding of half precision; NaN without a floor."""
        return excess(self.k3, self.floor_k3)

    @property
    def is_rounding(self) -> bool:
        """Whether at least `ROUNDING_SHARE` of k3 ends in FP32."""
        return self.excess_k3 >= ROUNDING_SHARE * self.k3 > 0


def excess(k3: float, floor: float) -> float:
    """*k3* above its *floor*, at least 0; infinite if only *k3* is, NaN if the floor is not finite.

    A floor that is not finite says that something other than rounding is wrong.
    """
    return max(0.0, k3 - floor) if math.isfinite(floor) else math.nan


@dataclass(frozen=True, kw_only=True, slots=True)
class MismatchVerdict:
    """Which role's rounding causes a mismatch, and which precisions end it.

    Attributes:
        guilty: Roles whose rounding causes it: both if neither change alone ends it.
        shares: For each role, the share of the excess that ends if it alone computes in FP32.
        policy, rollout: Precisions that end it; both FP32 if nothing smaller does.
        remaining: Share of the excess that remains with them, 0 to 1.
    """

    guilty: tuple[MismatchRole, ...]
    shares: dict[MismatchRole, float]
    policy: PrecisionName
    rollout: PrecisionName
    remaining: float

    def changes(self, report: MismatchReport) -> dict[MismatchRole, PrecisionName]:
        """The new precision of each role that changes from what *report* says."""
        wanted: dict[MismatchRole, PrecisionName] = {"policy": self.policy, "rollout": self.rollout}
        now = {"policy": report.policy, "rollout": report.rollout}
        return {role: precision for role, precision in wanted.items() if now[role] != precision}


def attribute(
    reports: Sequence[MismatchReport], *, other_half_allowed: bool
) -> MismatchVerdict | None:
    """Find the guilty role and the smallest change of precision that ends the mismatch.

    The changes are tried in this order: the rollout to the other half type, the rollout to FP32,
    both to the half type that the policy does not use now, everything to FP32. One ends the
    mismatch if at most `REMAINING_SHARE` of the excess over the floor remains, summed over all
    reports. A trained role in FP32 beside half-precision ones is not among them: FP32 for the
    policy is a rollback, which is for every role.

    Args:
        reports: Reports of one pair of precisions, at least one.
        other_half_allowed: Whether a role may use a half type that it does not use now.

    Returns:
        None if the FP32 floor explains all of the mismatch, or a measurement is missing.
    """
    policy, rollout = reports[-1].policy, reports[-1].rollout
    before = sum(report.excess_k3 for report in reports)
    if not before > 0:
        return None

    def remaining(policy: PrecisionName, rollout: PrecisionName) -> float:
        """Share of the excess; infinite if it was not measured."""
        pairs = [(report.k3_of(policy, rollout), report.floor_k3) for report in reports]
        after = sum(math.inf if k3 is None else excess(k3, floor) for k3, floor in pairs)
        if math.isinf(before):
            return 1.0 if math.isinf(after) else 0.0
        return after / before

    shares: dict[MismatchRole, float] = {
        "policy": max(0.0, 1 - min(1.0, remaining("fp32", rollout))),
        "rollout": max(0.0, 1 - min(1.0, remaining(policy, "fp32"))),
    }
    for candidate in _candidates(policy, rollout, other_half_allowed=other_half_allowed):
        left = remaining(*candidate)
        if candidate != (policy, rollout) and left <= REMAINING_SHARE:
            return MismatchVerdict(
                guilty=_guilty(shares),
                shares=shares,
                policy=candidate[0],
                rollout=candidate[1],
                remaining=left,
            )
    return None


def _candidates(
    policy: PrecisionName, rollout: PrecisionName, *, other_half_allowed: bool
) -> Iterator[tuple[PrecisionName, PrecisionName]]:
    if policy != "fp32":
        if other_half_allowed and rollout != "fp32":
            yield policy, _OTHER_HALF[rollout]
        yield policy, "fp32"
        if other_half_allowed:
            yield _OTHER_HALF[policy], _OTHER_HALF[policy]
    yield "fp32", "fp32"


def _guilty(shares: dict[MismatchRole, float]) -> tuple[MismatchRole, ...]:
    alone = [role for role, share in shares.items() if share >= 1 - REMAINING_SHARE]
    return (max(alone, key=lambda role: shares[role]),) if alone else ("policy", "rollout")
