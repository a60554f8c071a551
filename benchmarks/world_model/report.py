"""The tables: every set, then the rows of the summary with what they were and have to become."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.measuring.spread import Interval
from benchmarks.measuring.table import format_table
from benchmarks.world_model.bootstrap import GroupLosses
from benchmarks.world_model.measure import OURS, PEERS
from benchmarks.world_model.metrics import Numbers
from benchmarks.world_model.recording import DYNAMICS, LABELS, NUMBERS, DataSet
from benchmarks.world_model.results import Record, Results

BASE = "base rate"
MODELS = (OURS, "linear", "HGB", "RF", "kNN", "MLP", "mbrl", BASE)
NEAR = 1.1
"""Ratio to the best error of dynamics that still counts."""

GOOD = 2.0
"""Standard errors by which a good model is better than the base rate."""

_SUMMARY = ("", "before", "goal", "now")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """All that was measured of one data set.

    Attributes:
        ours, peers: Records of the same seeds, in the same order.
    """

    data_set: DataSet
    ours: Sequence[Record]
    peers: Sequence[Record]

    @classmethod
    def of(cls, results: Results, data_set: DataSet, seeds: Iterable[int], quick: bool) -> Measured:
        """What *results* hold of the seeds whose two sides are measured."""
        keys = [[(side, data_set.name, seed, quick) for side in (OURS, PEERS)] for seed in seeds]
        pairs = [pair for pair in keys if all(key in results for key in pair)]
        return cls(
            data_set=data_set,
            ours=[results[mine] for mine, _ in pairs],
            peers=[results[theirs] for _, theirs in pairs],
        )

    @property
    def reduce(self) -> Callable[[Numbers], Numbers]:
        """From mean losses to the figure of the tables."""
        return np.sqrt if self.data_set.kind != LABELS else np.asarray

    @property
    def losses(self) -> GroupLosses:
        """Losses of all models, of all seeds."""
        return reduce(
            GroupLosses.joined,
            (_losses(mine, theirs) for mine, theirs in zip(self.ours, self.peers, strict=True)),
        )

    def figures(self) -> dict[str, float]:
        """Log loss or root mean square error of each model."""
        losses = self.losses
        return {name: losses.figure(name, self.reduce) for name in MODELS if name in losses.sums}

    def against_best(self) -> tuple[str, Interval]:
        """The best peer, and our figure minus its figure."""
        figures = self.figures()
        best = min((name for name in figures if name != OURS), key=figures.__getitem__)
        return best, self.losses.difference(OURS, best, self.reduce)

    def errors(self, key: str) -> dict[str, float]:
        """Errors of dynamics, the mean over the seeds, by model."""
        pairs = zip(self.ours, self.peers, strict=True)
        merged = [{**mine[key], **theirs[key]} for mine, theirs in pairs]
        names = [name for name in MODELS if all(name in each for each in merged)]
        return {name: fmean(each[name] for each in merged) for name in names}


def _losses(mine: Record, theirs: Record) -> GroupLosses:
    if mine["groups"] != theirs["groups"] or mine["group_rows"] != theirs["group_rows"]:
        raise ValueError(
            f"{mine['set']}, seed {mine['seed']}: ours and the peers were held to different rows; "
            "measure both again with --again"
        )
    return GroupLosses(
        groups=mine["groups"],
        rows=np.array(mine["group_rows"]),
        sums={
            name: np.array(sums) for name, sums in {**mine["losses"], **theirs["losses"]}.items()
        },
    )


def report(measured: Sequence[Measured]) -> Iterator[str]:
    """The tables as text."""
    with_results = [each for each in measured if each.ours]
    for kind, title in ((LABELS, "Log loss"), (NUMBERS, "Root mean square error")):
        rows = [_figures(each) for each in with_results if each.data_set.kind == kind]
        if rows:
            yield f"{title}\n{format_table(rows, list(rows[0]))}"
    dynamics = [each for each in with_results if each.data_set.kind == DYNAMICS]
    rows = [
        _errors(each, key, title)
        for key, title in (("one_step", "1 step"), ("twenty_steps", "20 steps"))
        for each in dynamics
    ]
    if rows:
        title = "Dynamics: error ÷ deviation of the change (1 step) or of the state (20 steps)"
        yield f"{title}\n{format_table(rows, list(rows[0]))}"
    for kinds, title in (((LABELS,), "Labels"), ((NUMBERS, DYNAMICS), "Numbers")):
        rows = [_honesty(each) for each in with_results if each.data_set.kind in kinds]
        if rows:
            yield f"{title}: what our model says of itself\n{format_table(rows, list(rows[0]))}"
    rows = summary([each for each in with_results if not each.data_set.tuning])
    yield f"Summary of the sets that are held back\n{format_table(rows, _SUMMARY)}"


def _figures(each: Measured) -> dict[str, str]:
    figures = each.figures()
    best, difference = each.against_best()
    return {
        **_named(each),
        **{name: _short(figures.get(name, math.nan)) for name in MODELS if name != "mbrl"},
        "best peer": best,
        "ours minus best [95 %]": str(difference),
        "counts": _yes(difference.low <= 0),
    }


def _errors(each: Measured, key: str, title: str) -> dict[str, str]:
    errors = each.errors(key)
    return {
        "": title,
        **_named(each),
        **{name: _short(errors.get(name, math.nan)) for name in MODELS if name != "RF"},
        "RF": _short(errors.get("RF", math.nan)),
        "counts": _yes(_is_near(errors)),
    }


def _honesty(each: Measured) -> dict[str, str]:
    records = each.ours
    labels = each.data_set.kind == LABELS
    of_kind = (
        {
            "accuracy": _short(_mean(records, "accuracy")),
            "confidence": _short(_mean(records, "mean_confidence")),
            "AUC": _short(_mean(records, "auc_confidence")),
            "a gap: accuracy": _short(_mean(records, "gap_accuracy")),
            "stated": _short(_mean(records, "gap_confidence")),
            "far: accuracy": _short(_mean(records, "far_accuracy")),
            "said": _short(_mean(records, "far_confidence")),
        }
        if labels
        else {
            "RMSE ÷ sd": _range(record["error_over_deviation"] for record in records),
            "coverage": _range(record["coverage"] for record in records),
        }
    )
    return {
        **_named(each),
        **of_kind,
        "NLL before": _short(_mean(records, "nll_before")),
        "after": _short(_mean(records, "nll_after")),
        "made worse": str(sum(map(_is_made_worse, records))),
        "good": str(sum(map(_is_good, records))),
        "published": str(sum(record["published"] for record in records)),
        "good, refused": str(sum(map(_is_refused, records))),
        "CPU s": _short(fmean(record["seconds"][OURS] for record in records)),
        "MiB": _short(_mean(records, "mebibytes")),
    }


def summary(measured: Sequence[Measured]) -> list[dict[str, str]]:
    """Rows with what was measured before the work began, the goal, and what is measured now."""
    by_name = {each.data_set.name: each for each in measured}
    records = [record for each in measured for record in each.ours]
    scales = [r["error_over_deviation"] for r in records if "error_over_deviation" in r]
    coverages = [_mean(each.ours, "coverage") for each in measured if each.data_set.kind != LABELS]
    labels = [each for each in measured if each.data_set.kind == LABELS]
    numbers = [
        each
        for each in measured
        if each.data_set.kind == NUMBERS and each.data_set.name != "computers_missing"
    ]
    dynamics = [each for each in measured if each.data_set.kind == DYNAMICS]
    near = [_is_near(each.errors(key)) for each in dynamics for key in ("one_step", "twenty_steps")]
    refused = [
        f"{each.data_set.name} {count} of {len(each.ours)}"
        for each in measured
        if (count := sum(map(_is_refused, each.ours)))
    ]
    beyond = [
        _mean(records, f"{kind}confidence" if kind else "mean_confidence")
        - _mean(records, f"{kind}accuracy")
        for kind in ("", "gap_", "far_")
    ]
    return [
        _row("log loss: best, or not worse than the best", "2 of 9", "7", _counted(labels)),
        _row("RMSE, likewise", "2 of 6", "4", _counted(numbers)),
        _row(
            "computers with 10 % missing: RMSE", "401", "230", _figure(by_name, "computers_missing")
        ),
        _row("amazon: RMSE", "1.41", "1.22", _figure(by_name, "amazon")),
        _row("sms_spam: log loss", "0.063", "0.053", _figure(by_name, "sms_spam")),
        _row("fine_foods: log loss", "", "linear's", _figure(by_name, "fine_foods")),
        _row(
            "dynamics: errors within 10 % of the best", "5 of 8", "8", f"{sum(near)} of {len(near)}"
        ),
        _row("RMSE ÷ stated sd", "up to 17", "0.8 to 1.25", _range(scales)),
        _row(
            "calibration made the likelihood worse",
            "9 or more",
            "0",
            f"{sum(map(_is_made_worse, records))} of {len(records)}",
        ),
        _row(
            "gate: good models refused",
            "5",
            "0",
            f"{sum(map(_is_refused, records))}" + (f" ({', '.join(refused)})" if refused else ""),
        ),
        _row("coverage of 90 % intervals", "0.89 to 0.92", "0.88 to 0.92", _range(coverages)),
        _row(
            "confidence minus accuracy: as recorded; a field missing; a number far outside",
            "",
            "0",
            "; ".join(map(_short, beyond)),
        ),
        _row(
            "CPU seconds of all fits; most MiB",
            "",
            "at most twice",
            f"{sum(record['seconds'][OURS] for record in records):.0f}; "
            f"{max((record['mebibytes'] for record in records), default=math.nan):.0f}",
        ),
    ]


def _row(name: str, before: str, goal: str, now: str) -> dict[str, str]:
    return dict(zip(_SUMMARY, (name, before, goal, now), strict=True))


def _counted(measured: Sequence[Measured]) -> str:
    counted = sum(each.against_best()[1].low <= 0 for each in measured)
    return f"{counted} of {len(measured)}"


def _figure(by_name: Mapping[str, Measured], name: str) -> str:
    if name not in by_name:
        return ""
    figures = by_name[name].figures()
    best = min((peer for peer in figures if peer != OURS), key=figures.__getitem__)
    return f"{figures[OURS]:.3g} ({best} {figures[best]:.3g})"


def _is_near(errors: Mapping[str, float]) -> bool:
    return errors[OURS] <= NEAR * min(errors.values())


def _is_made_worse(record: Record) -> bool:
    return bool(record["nll_after"] - record["nll_before"] > record["nll_change_error"])


def _is_good(record: Record) -> bool:
    return bool(record["gain"] > GOOD * record["gain_error"])


def _is_refused(record: Record) -> bool:
    return _is_good(record) and not record["published"]


def _named(each: Measured) -> dict[str, str]:
    mark = " (tuning)" if each.data_set.tuning else ""
    return {
        "set": each.data_set.name + mark,
        "rows": str(each.ours[0]["rows"]),
        "seeds": str(len(each.ours)),
    }


def _mean(records: Sequence[Record], key: str) -> float:
    values: list[Any] = [record[key] for record in records if key in record]
    return fmean(values) if values else math.nan


def _range(values: Iterable[float]) -> str:
    found = list(values)
    return f"{min(found):.3g} to {max(found):.3g}" if found else ""


def _short(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"


def _yes(condition: bool) -> str:
    return "yes" if condition else "no"
