"""The figures with their limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.measuring.spread import Interval
from benchmarks.se_darwin.calibration import Rows
from benchmarks.se_darwin.statistics import ModuleBootstrap
from benchmarks.se_darwin.study import OURS, RIVALS, Study

SORTED = "Ochiai sorted"
DECAYED = "Ochiai, node decay"


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitCheck:
    """Attributes:
    what: Description of the figure.
    got: The figure.
    limit: The limit.
    met: Whether the figure meets the limit; None without a limit.
    """

    what: str
    got: str
    limit: str
    met: bool | None

    def row(self) -> dict[str, str]:
        """Return a row of the table and the CSV file."""
        verdict = "" if self.met is None else "met" if self.met else "MISSED"
        return {"what": self.what, "got": self.got, "limit": self.limit, "verdict": verdict}


def one_edit(study: Study, bootstrap: ModuleBootstrap) -> Iterator[LimitCheck]:
    """Check the executions on one-edit bugs."""
    ours = study.executions[OURS]
    ratio = bootstrap.ratio(study.executions[SORTED], ours)
    yield LimitCheck(
        what="one-edit bugs, mean executions: sorted Ochiai ÷ ours",
        got=str(ratio),
        limit=">= 2.0, low > 1.5",
        met=ratio.figure >= 2.0 and ratio.low > 1.5,
    )
    best = min(RIVALS, key=lambda name: float(np.mean(study.executions[name])))
    against = bootstrap.ratio(study.executions[best], ours)
    yield LimitCheck(
        what=f"one-edit bugs, mean executions: {best} (best rival) ÷ ours",
        got=str(against),
        limit=">= 1.0",
        met=against.figure >= 1.0,
    )


def two_edits(
    found: Mapping[str, Sequence[tuple[int, str] | None]],
    bootstrap: ModuleBootstrap,
    ours: str,
    baseline: str,
) -> LimitCheck:
    """Check the gain on two-edit bugs."""
    repaired = {name: [float(item is not None) for item in items] for name, items in found.items()}
    gain = bootstrap.difference(repaired[ours], repaired[baseline])
    return LimitCheck(
        what=f"two-edit bugs repaired within 200: {ours} - {baseline}",
        got=str(gain),
        limit=">= +0.10, low > 0",
        met=gain.figure >= 0.10 and gain.low > 0.0,
    )


def hidden(passed: Sequence[float]) -> LimitCheck:
    """Check that repairs pass hidden inputs."""
    share = float(np.mean([rate == 1.0 for rate in passed]))
    return LimitCheck(
        what=f"repairs that also pass hidden inputs, of {len(passed)}",
        got=f"{share:.3f}",
        limit=">= 0.98",
        met=share >= 0.98,
    )


def calibration(rows: Mapping[str, Rows]) -> Iterator[LimitCheck]:
    """Check calibration; limits apply to a model calibrated and tested on its own choices."""
    for name, held in rows.items():
        is_limited = name == "calibrated on own choices, held to own choices"
        yield LimitCheck(
            what=f"ECE: {name} ({len(held.probability)} rows)",
            got=f"{held.ece:.4f}",
            limit="<= 0.02" if is_limited else "-",
            met=held.ece <= 0.02 if is_limited else None,
        )
        yield LimitCheck(
            what=f"90 % intervals cover: {name}",
            got=f"{held.coverage:.3f}",
            limit="0.88 to 0.92" if is_limited else "-",
            met=0.88 <= held.coverage <= 0.92 if is_limited else None,
        )


def precision(task: str, gaps: Mapping[str, Interval]) -> Iterator[LimitCheck]:
    """Check the loss by half precision."""
    for name, gap in gaps.items():
        yield LimitCheck(
            what=f"{task}: {name} above fp32, one-sided 95 % bound",
            got=f"{100 * gap.figure:+.2f} %, at most {100 * gap.high:+.2f} %",
            limit="< 1 %",
            met=gap.high < 0.01,
        )


def cost(rank_seconds: float, execute_seconds: float) -> Iterator[LimitCheck]:
    """Check the cost of ranking."""
    yield LimitCheck(
        what="ranking a candidate, features included, microseconds",
        got=f"{1e6 * rank_seconds:.1f}",
        limit="< 50",
        met=rank_seconds < 50e-6,
    )
    share = rank_seconds / execute_seconds
    yield LimitCheck(
        what=f"ranking as a share of an execution of {1e3 * execute_seconds:.2f} ms",
        got=f"{100 * share:.2f} %",
        limit="< 2 %",
        met=share < 0.02,
    )


def shuffled_labels(metrics: Mapping[str, float]) -> Iterator[LimitCheck]:
    """Check that shuffled labels teach nothing."""
    distance = abs(metrics["outcome.auroc"] - 0.5)
    yield LimitCheck(
        what="shuffled labels: AUROC of a repair",
        got=f"{metrics['outcome.auroc']:.3f}",
        limit="0.5 +- 0.05",
        met=distance <= 0.05,
    )
    for head in ("outcome", "score_delta"):
        skill = metrics[f"{head}.nll_skill"]
        yield LimitCheck(
            what=f"shuffled labels: {head}, nats better than the base rate",
            got=f"{skill:+.4f}",
            limit="<= 0.01",
            met=skill <= 0.01,
        )
