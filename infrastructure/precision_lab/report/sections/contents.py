"""The sections of the report in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infrastructure.precision_lab.report.reading import LabResults
from infrastructure.precision_lab.report.sections.bisection import bisection
from infrastructure.precision_lab.report.sections.hypotheses import hypotheses
from infrastructure.precision_lab.report.sections.learning import learning
from infrastructure.precision_lab.report.sections.log_probs import accumulated_error, mismatch
from infrastructure.precision_lab.report.sections.replay import replay
from infrastructure.precision_lab.report.sections.section import Section
from infrastructure.precision_lab.report.sections.stability import stability
from infrastructure.precision_lab.report.sections.static_comparison import static_comparison
from infrastructure.precision_lab.report.sections.training import (
    clipping,
    gradients,
    kl_penalty,
    rewards,
    stagnation,
    values,
)

_SECTIONS: Sequence[Callable[[LabResults], Section]] = (
    stability,
    learning,
    kl_penalty,
    rewards,
    values,
    accumulated_error,
    mismatch,
    clipping,
    gradients,
    stagnation,
    replay,
    static_comparison,
    bisection,
    hypotheses,
)


def all_sections(results: LabResults) -> list[Section]:
    """Every section, in the order of the page: those without data come last."""
    return sorted((make(results) for make in _SECTIONS), key=lambda section: section.absent != "")
