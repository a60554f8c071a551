"""What the results amount to, in a few sentences: the first thing a reader sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from infrastructure.precision_lab.report.reading import BASELINE, LabResults, inner
from infrastructure.precision_lab.report.sections.learning import baseline_without_gain


def verdict(results: LabResults) -> list[str]:
    """One sentence a finding, the most important first; at least one."""
    sentences = [
        *_of_training(results),
        *_of_bisection(results),
        *_of_replay(results),
        *_of_comparison(results),
    ]
    return sentences or [
        "The results here are not enough for a verdict: see below what is missing."
    ]


def _of_training(results: LabResults) -> Iterator[str]:
    if not results.cells:
        return
    ended = [cell for cell in results.cells if cell.summary is not None]
    failed = [cell for cell in ended if cell.summary is not None and cell.summary.is_failure]
    presets = results.presets
    broken = {cell.preset for cell in failed}
    yield (
        f"{len(presets) - len(broken)} of {len(presets)} presets have no failed training "
        f"({len(ended)} of {len(results.cells)} trainings have ended, {len(failed)} failed)."
    )
    for preset in presets:
        categories = Counter(
            cell.summary.category
            for cell in failed
            if cell.preset == preset and cell.summary is not None
        )
        if categories:
            reasons = ", ".join(f"{name} in {count}" for name, count in categories.most_common())
            cells = sum(cell.preset == preset for cell in results.cells)
            yield f"{preset} fails: {reasons} of {cells} seeds."
    yield from _of_reward(results, [preset for preset in presets if preset not in broken])


def _of_reward(results: LabResults, presets: list[str]) -> Iterator[str]:
    """Which presets without failures learned less than FP32."""
    rewards = {
        preset: [
            end
            for cell in results.cells
            if cell.preset == preset and (end := cell.at_end("task_reward_mean")) is not None
        ]
        for preset in {*presets, BASELINE}
    }
    baseline = rewards[BASELINE]
    if not baseline:
        yield f"No reward of {BASELINE} is here, so that no preset can be compared with FP32."
        return
    yield from baseline_without_gain(results)
    worse = [
        preset
        for preset in presets
        if preset != BASELINE and rewards[preset] and median(rewards[preset]) < min(baseline)
    ]
    if worse:
        yield (
            f"{', '.join(worse)} ended, but at a reward (median of the seeds) below the lowest "
            f"seed of FP32, {min(baseline):.3g}."
        )
    else:
        yield (
            "No preset that ended has a reward (median of the seeds) below the lowest seed of "
            f"FP32, {min(baseline):.3g}."
        )


def _of_bisection(results: LabResults) -> Iterator[str]:
    if results.culprits is None:
        return
    places = [str(culprit.get("place", "")) for culprit in results.culprits]
    if places:
        yield f"Half precision loses most at {', '.join(places[:3])}: keep it in FP32."
    else:
        yield "The bisection found no place that loses more than rounding explains."


def _of_replay(results: LabResults) -> Iterator[str]:
    errors, broken = {}, []
    for preset, result in results.replays.items():
        error = inner(result, "gradients", "relative_error")
        if error in ("nan", "inf"):
            broken.append(preset)
        elif isinstance(error, float) and preset != BASELINE:
            errors[preset] = error
    if broken:
        yield f"On the frozen batches the gradient of {', '.join(broken)} is not finite."
    if len(errors) > 1:
        best, worst = min(errors, key=errors.__getitem__), max(errors, key=errors.__getitem__)
        yield (
            f"On the same frozen batches the gradient of {worst} is off by {errors[worst]:.2g} of "
            f"its norm, that of {best} by {errors[best]:.2g}."
        )


def _of_comparison(results: LabResults) -> Iterator[str]:
    errors: dict[str, float] = {}
    for row in results.comparison_by_length:
        if row.get("temperature") == 1.0:
            value = row.get("real_logp_error_mean")
            if isinstance(value, float):
                errors[str(row.get("dtype"))] = value  # the longest is last
    if {"bf16", "fp16"} <= errors.keys() and errors["fp16"] > 0:
        yield (
            f"In one forward pass BF16 moves the log-probability of a token by "
            f"{errors['bf16']:.2g} nats on average, FP16 by {errors['fp16']:.2g}: "
            f"{errors['bf16'] / errors['fp16']:.1f} times less."
        )
