"""Held-out metrics of half-precision runs beside those of paired FP32 runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from genesis_fp16.guard.finding import Finding
from genesis_fp16.guard.guard_settings import MOST_KEPT, GuardSettings
from genesis_fp16.guard.trigger import Trigger

# Student's t that chance exceeds once in 1000 times, by degrees of freedom; the last for all above.
_SURE = (318.3, 22.33, 10.21, 7.17, 5.89, 5.21, 4.79, 4.50, 4.30, 4.14)


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
        if not math.isfinite(self.half):
            return math.inf
        if self.fp32 == 0:
            return math.copysign(math.inf, self._lost) if self._lost else 0.0
        return self._lost / abs(self.fp32)

    @property
    def worse_share(self) -> float:
        """The same as a share of the larger value, which stays small however bad it is."""
        if not math.isfinite(self.half):
            return 1.0
        return self._lost / (max(abs(self.half), abs(self.fp32)) or 1.0)

    @property
    def _lost(self) -> float:
        return self.fp32 - self.half if self.higher_is_better else self.half - self.fp32


def judge(pairs: Sequence[Pair], settings: GuardSettings) -> Finding | None:
    """Find `Trigger.METRIC_DRIFT` where half precision is surely worse by more than the limit.

    Runs differ by chance too. So the mean must be worse by more than the limit, and worse at all
    beyond what chance does to such pairs once in 1000 times; a drift that is the same in every
    pair is found with the fewest.

    Args:
        pairs: Oldest first; the newest count.
        settings: Hold the limit and the fewest pairs.
    """
    known = [pair for pair in pairs if math.isfinite(pair.fp32)][-MOST_KEPT:]
    if len(known) < settings.guard_pairs:
        return None
    limit, mean = settings.guard_metric_drift, fmean(pair.worse_by for pair in known)
    shares = [pair.worse_share for pair in known]
    chance = _SURE[min(len(known) - 1, len(_SURE)) - 1] * stdev(shares) / math.sqrt(len(known))
    if not (mean > limit and fmean(shares) > chance):
        return None
    how = f"{mean:.1%} worse than in FP32" if math.isfinite(mean) else "beyond comparison with FP32"
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
