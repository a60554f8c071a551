"""Held-out metrics of half-precision runs beside those of paired FP32 runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from genesis_fp16.domain.guard import MOST_KEPT, Finding, GuardSettings, Pair, Trigger

# Student's t that chance exceeds once in 1000 times, by degrees of freedom; the last for all above.
_SURE = (318.3, 22.33, 10.21, 7.17, 5.89, 5.21, 4.79, 4.50, 4.30, 4.14)


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
