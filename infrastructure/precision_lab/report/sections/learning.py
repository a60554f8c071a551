"""Whether a preset harms learning: the task's reward gained, compared with FP32 seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from infrastructure.precision_lab.report.reading import BASELINE, LabResults
from infrastructure.precision_lab.report.sections.metric_figures import no_cells
from infrastructure.precision_lab.report.sections.section import Section, Table

_REWARD = "task_reward_mean"
_STUDENT_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 1 to 9 degrees
_NORMAL_975 = 1.95996


def learning(results: LabResults) -> Section:
    """A row for each preset: the reward at start and end, the gain, and its difference to FP32."""
    section = Section(
        anchor="learning",
        title="Which presets learn",
        says=(
            "The task's reward in the first round and at the end of the trainings that made all "
            "updates. Good is a difference to fp32_baseline whose interval reaches 0 or more; an "
            "interval wholly below 0 means that the preset harms learning."
        ),
        absent=no_cells(results),
    )
    if section.absent:
        return section
    baseline = _rewards(results, BASELINE)
    rows, tones = [], []
    for preset in results.presets:
        rewards = _rewards(results, preset)
        difference, tone = ("", "") if preset == BASELINE else _difference(rewards, baseline)
        starts = [start for start, _ in rewards.values()]
        ends = [end for _, end in rewards.values()]
        gained = [end - start for start, end in rewards.values()]
        figures = [_interval(starts), _interval(ends), _interval(gained), difference]
        rows.append([preset, f"{len(rewards)}", *figures])
        tones.append([""] * 5 + [tone])
    head = ["preset", "seeds", "at the start", "at the end", "gained", f"end minus {BASELINE}"]
    section.tables.append(Table(head=head, rows=rows, tones=tones))
    section.notes.append(
        "Means over the seeds with Student's 95 % interval. Ends are medians over the last fifth "
        "of a cell's updates. The last column subtracts the end of fp32_baseline with the same "
        "seed, which began with the same weights."
    )
    section.notes.extend(baseline_without_gain(results))
    return section


def baseline_without_gain(results: LabResults) -> list[str]:
    """A sentence if the trainings in FP32 have not clearly learnt; empty if they have."""
    gains = [end - start for start, end in _rewards(results, BASELINE).values()]
    if not gains or mean_interval(gains)[1] > 0:
        return []
    return [
        f"{BASELINE} itself has not clearly learnt the task: the interval of its gain over the "
        f"seeds ({len(gains)}) reaches 0. Such a sweep does not say what a preset does to "
        "learning: train more updates or more seeds."
    ]


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and Student's 95 % interval; an infinite one for a single value.

    Raises:
        ValueError: *values* is empty.
    """
    if not values:
        raise ValueError("no values to average")
    mean, degrees = fmean(values), len(values) - 1
    if not degrees:
        return mean, -math.inf, math.inf
    half = _student_975(degrees) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def _student_975(degrees: int) -> float:
    """97.5 % quantile of Student's t.

    Beyond the table by the expansion in 1 / degrees of Abramowitz and Stegun, 26.7.5, to 1e-3.
    """
    if degrees <= len(_STUDENT_975):
        return _STUDENT_975[degrees - 1]
    z = _NORMAL_975
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees + second / degrees**2


def _rewards(results: LabResults, preset: str) -> dict[int, tuple[float, float]]:
    """Reward of the first round and at the end, by seed, of the cells that made all updates.

    Also of those whose category is a failure that does not stop a training.
    """
    rewards = {}
    for cell in results.cells:
        ended = cell.summary is not None and cell.summary.updates == cell.summary.planned_updates
        values, end = cell.values(_REWARD), cell.at_end(_REWARD)
        if cell.preset == preset and ended and values and end is not None:
            rewards[cell.seed] = values[0], end
    return rewards


def _difference(
    rewards: Mapping[int, tuple[float, float]], baseline: Mapping[int, tuple[float, float]]
) -> tuple[str, str]:
    """End minus that of the baseline, over the seeds that both have, and the class of its field."""
    differences = [
        end - baseline[seed][1] for seed, (_, end) in rewards.items() if seed in baseline
    ]
    tone = "bad" if differences and mean_interval(differences)[2] < 0 else ""
    return _interval(differences, signed=True), tone


def _interval(values: Sequence[float], *, signed: bool = False) -> str:
    if not values:
        return "no value"
    mean, low, high = mean_interval(values)
    sign = "+" if signed else ""
    text = f"{mean:{sign}.3f}"
    return text if math.isinf(low) else f"{text} [{low:{sign}.3f}, {high:{sign}.3f}]"
