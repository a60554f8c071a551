"""The stability matrix: how the training of each preset and seed ended."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from infrastructure.precision_lab.report.reading import CellResult, LabResults
from infrastructure.precision_lab.report.sections.metric_figures import MetricFigure, no_cells
from infrastructure.precision_lab.report.sections.section import Section, Table


def stability(results: LabResults) -> Section:
    """A row for each preset and a column for each seed."""
    section = Section(
        anchor="stability",
        title="Which presets train",
        says=(
            "One row for each preset and one column for each seed: how the training ended. Good is "
            "a row of completed cells whose reward is that of fp32_baseline."
        ),
        absent=no_cells(results),
    )
    if section.absent:
        return section
    seeds = results.seeds
    head = [
        "preset",
        *(f"seed {seed}" for seed in seeds),
        "reward at the end",
        "KL at the end, nats",
    ]
    rows, tones = [], []
    for preset in results.presets:
        cells = {cell.seed: cell for cell in results.cells if cell.preset == preset}
        ends = [_ending(cells.get(seed)) for seed in seeds]
        rewards = [cell.at_end("task_reward_mean") for cell in cells.values()]
        kls = [cell.at_end("kl_mc_mean") for cell in cells.values()]
        rows.append([preset, *(text for text, _ in ends), _range(rewards), _range(kls)])
        tones.append(["", *(tone for _, tone in ends), "", ""])
    section.tables.append(Table(head=head, rows=rows, tones=tones))
    section.notes.append(
        "Ends are medians over the last fifth of a cell's updates; shown are the median of the "
        "seeds and, in brackets, the lowest and highest."
    )
    reward = MetricFigure(metric="task_reward_mean", label="reward of the task", name="reward")
    section.figures.extend(reward.by_update(results))
    return section


def _ending(cell: CellResult | None) -> tuple[str, str]:
    """How a cell ended, and the class of its field in the table."""
    if cell is None:
        return "not run", "none"
    if cell.summary is None:
        return "not ended", "none"
    if cell.summary.is_failure:
        return f"{cell.summary.category} at update {cell.summary.updates}", "bad"
    if cell.summary.category != "completed":
        return cell.summary.category, "none"
    return "completed", "good"


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "no value"
    if len(known) == 1:
        return f"{known[0]:.3g}"
    return f"{median(known):.3g} [{min(known):.3g}, {max(known):.3g}]"
