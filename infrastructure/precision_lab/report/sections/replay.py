"""Replays: the same frozen batches under each preset."""

from __future__ import annotations

from infrastructure.precision_lab.report.drawing import Axis
from infrastructure.precision_lab.report.reading import LabResults, inner, number
from infrastructure.precision_lab.report.sections.metric_figures import dot_figure
from infrastructure.precision_lab.report.sections.section import Section, Table, shown

_COLUMNS = {
    "gradient error": ("gradients", "relative_error"),
    "cosine": ("gradients", "cosine"),
    "loss error": ("errors", "loss", "abs_err_mean"),
    "log p error, nats": ("errors", "log_probs", "abs_err_mean"),
    "KL penalty, nats": ("metrics", "kl_penalty_mean"),
    "exact KL, nats": ("metrics", "exact_kl_penalty_mean"),
    "mismatch k3, nats": ("metrics", "mismatch_k3"),
}


def replay(results: LabResults) -> Section:
    """Errors of each preset against FP32."""
    section = Section(
        anchor="replay",
        title="The same frozen batches under each preset",
        says=(
            "Error of the gradient against FP32 for the same weights and data, by preset. Good is "
            "below 0.01; near 1 the update has little to do with the one that FP32 makes."
        ),
    )
    rows, errors = [], dict[str, list[float]]()
    for preset, result in results.replays.items():
        figures = [number(inner(result, *names)) for names in _COLUMNS.values()]
        rows.append([preset, *map(shown, figures)])
        errors[preset] = [] if figures[0] is None else [figures[0]]
    if rows:
        axis = Axis(label="relative error of the gradient", log=True)
        section.figures.append(dot_figure(errors, axis, "replay-gradients"))
        section.tables.append(Table(head=["preset", *_COLUMNS], rows=rows))
    return section.needs("a replay", "genesis-fp16 lab replay")
