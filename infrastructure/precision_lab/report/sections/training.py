"""Signals of the trainings: KL, rewards, values, ratios, gradients, weights."""

from __future__ import annotations

import math

from infrastructure.precision_lab.report.reading import LabResults
from infrastructure.precision_lab.report.sections.metric_figures import MetricFigure, metric_section
from infrastructure.precision_lab.report.sections.section import Section, Table

_SPIKE = 100  # gradient norm above which dtype-rlhf counts an update as a spike


def kl_penalty(results: LabResults) -> Section:
    """The KL penalty as training computed it."""
    return metric_section(
        results,
        Section(
            anchor="kl",
            title="KL penalty",
            says=(
                "KL penalty of each update as training computed it, by half type. Good is a curve "
                "that runs with FP32: a KL of 0 while the policy still moves has been rounded away."
            ),
        ),
        by_update=[
            MetricFigure(
                metric="kl_penalty_mean", label="KL penalty, nats per token", name="kl", log=True
            )
        ],
        by_preset=[
            MetricFigure(
                metric="log_ratio_near_zero_frac",
                label="share of tokens with a log-ratio within 1e-6 of 0",
                name="kl-near-zero",
            )
        ],
    )


def rewards(results: LabResults) -> Section:
    """How far apart rewards are."""
    return metric_section(
        results,
        Section(
            anchor="rewards",
            title="Resolution of rewards",
            says=(
                "Median gap between neighbouring distinct rewards of a batch. Good is the gap of "
                "FP32: a wider one means that different completions received the same reward."
            ),
        ),
        by_preset=[
            MetricFigure(
                metric="reward_resolution_median",
                label="gap between rewards, in their unit",
                name="reward-resolution",
                log=True,
            )
        ],
    )


def values(results: LabResults) -> Section:
    """How coarse values are, and how many stand still."""
    return metric_section(
        results,
        Section(
            anchor="values",
            title="Values: steps and stagnation",
            says=(
                "How coarse the value head's numbers are, and how many did not change in an "
                "update. Good is the step of FP32 and a stagnation near 0; a head that stands "
                "still learns nothing."
            ),
        ),
        by_preset=[
            MetricFigure(
                metric="value_quant_step_median",
                label="gap between values, in units of reward",
                name="value-step",
                log=True,
            ),
            MetricFigure(
                metric="value_stagnation_rate",
                label="share of values unchanged by an update",
                name="value-stagnation",
            ),
        ],
    )


def clipping(results: LabResults) -> Section:
    """How many ratios PPO's clipping can tell apart."""
    return metric_section(
        results,
        Section(
            anchor="clipping",
            title="Clipping meets rounded ratios",
            says=(
                "Number of distinct ratios inside PPO's clip range in an update. Good is as many "
                "as in FP32; a handful means that clipping acts on a staircase."
            ),
        ),
        by_preset=[
            MetricFigure(
                metric="ratio_unique_in_range",
                label="distinct ratios within 1 ± 0.2, count",
                name="clip-ratios",
                log=True,
            ),
            MetricFigure(
                metric="clip_fraction",
                label="share of ratios outside the range",
                name="clip-fraction",
            ),
        ],
    )


def gradients(results: LabResults) -> Section:
    """Norms of the gradients, with spikes and skipped updates counted."""
    section = metric_section(
        results,
        Section(
            anchor="gradients",
            title="Gradient norms",
            says=(
                "Norm of all gradients before clipping, by half type. Good is the level of FP32 "
                f"without spikes; above {_SPIKE} is a spike, and a skipped update has no finite "
                "norm."
            ),
        ),
        by_update=[
            MetricFigure(metric="grad_norm", label="gradient norm", name="gradient-norm", log=True)
        ],
    )
    if not section.absent:
        head = ["preset", "updates", "skipped", "spikes", "largest finite norm"]
        rows = [_gradient_row(results, preset) for preset in results.presets]
        section.tables.append(Table(head=head, rows=rows))
    return section


def _gradient_row(results: LabResults, preset: str) -> list[str]:
    cells = [cell for cell in results.cells if cell.preset == preset]
    norms = [value for cell in cells for _, value in cell.series("grad_norm")]
    skipped = sum(value > 0 for cell in cells for _, value in cell.series("skipped"))
    finite = [value for value in norms if math.isfinite(value)]
    spikes = sum(value > _SPIKE for value in finite)
    largest = f"{max(finite):.3g}" if finite else "none finite"
    return [preset, f"{len(norms)}", f"{skipped}", f"{spikes}", largest]


def stagnation(results: LabResults) -> Section:
    """How many weights stand still."""
    return metric_section(
        results,
        Section(
            anchor="stagnation",
            title="Weights that do not move",
            says=(
                "Share of weights that an update left exactly as they were. Good is near 0: half "
                "weights without FP32 masters lose updates that are smaller than their spacing."
            ),
        ),
        by_preset=[
            MetricFigure(
                metric="update_stagnation_rate",
                label="share of weights unchanged by an update",
                name="update-stagnation",
            )
        ],
    )
