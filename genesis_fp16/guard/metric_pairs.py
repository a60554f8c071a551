"""Held-out metrics of half-precision runs beside those of paired FP32 runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from genesis_fp16.guard.finding import Finding
from genesis_fp16.guard.guard_settings import MOST_KEPT, GuardSettings
from genesis_fp16.guard.trigger import Trigger

SURE = 3.0  # standard errors: so far above the limit must the mean difference lie


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One training in half precision and the same one in FP32.

    Attributes:
        half_run, fp32_run: Identities of the runs.
        metric: Name of the primary metric.
        half, fp32: Its values on the same held-out data.
        higher_is_better: Which way it counts.
    """

    half_run: str
    fp32_run: str
    metric: str
    half: float
    fp32: float
    higher_is_better: bool

    @property
    def worse_by(self) -> float:
        """How much worse half precision did, as a share of FP32's value; below 0 if better."""
        lost = self.fp32 - self.half if self.higher_is_better else self.half - self.fp32
        if math.isnan(lost):
            return math.nan if math.isnan(self.fp32) else math.inf
        size = abs(self.fp32)
        if lost == 0 or size == 0:
            return math.copysign(math.inf, lost) if lost else 0.0
        return lost / size


def judge(pairs: Sequence[Pair], settings: GuardSettings) -> Finding | None:
    """Find `Trigger.METRIC_DRIFT` where half precision is surely worse by more than the limit.

    Runs differ by chance too. So the mean difference must lie above the limit by `SURE` standard
    errors of itself; a drift that is the same in every pair is found with the fewest pairs.

    Args:
        pairs: Oldest first; the newest count.
        settings: Hold the limit and the fewest pairs.
    """
    known = [pair for pair in pairs if not math.isnan(pair.worse_by)][-MOST_KEPT:]
    if len(known) < settings.guard_pairs:
        return None
    differences = [pair.worse_by for pair in known]
    limit = settings.guard_metric_drift
    if all(map(math.isfinite, differences)):
        mean, error = fmean(differences), stdev(differences) / math.sqrt(len(differences))
        if mean - SURE * error <= limit:
            return None
        how = f"{mean:.1%} worse (±{error:.1%}) than in FP32"
    elif min(differences[-settings.guard_pairs :]) == math.inf:
        how = "not even comparable with FP32"
    else:
        return None
    said = f"in {len(known)} pairs of runs the held-out {known[-1].metric} is {how}"
    return Finding(
        trigger=Trigger.METRIC_DRIFT,
        said=f"{said}; the limit is {limit:.1%}",
        numbers={
            "limit": limit,
            "pairs": [
                {"half_run": pair.half_run, "fp32_run": pair.fp32_run, "half": pair.half}
                | {"fp32": pair.fp32, "worse_by": pair.worse_by}
                for pair in known
            ],
        },
    )
