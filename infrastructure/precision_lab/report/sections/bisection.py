"""The bisection: the places that cause the error, and the settings that cure it."""

from __future__ import annotations

from infrastructure.precision_lab.report.reading import LabResults, number, texts
from infrastructure.precision_lab.report.sections.section import Section, Table


def bisection(results: LabResults) -> Section:
    """Places that must stay in FP32, the costliest first."""
    section = Section(
        anchor="bisect",
        title="Where the error comes from",
        says=(
            "The smallest set of places whose FP32 brings the result within the noise of FP32, "
            "the costliest first. Good is a short list: keep these in FP32, the rest in half."
        ),
    )
    culprits = results.culprits
    if culprits is None:
        return section.needs("a bisection", "genesis-fp16 lab bisect")
    if culprits:
        head = ["rank", "place in half precision", "share of the error", "harmful together with"]
        rows = [
            [
                f"{rank}",
                str(culprit.get("place", "")),
                _percent(number(culprit.get("share"))),
                ", ".join(texts(culprit, "partners")),
            ]
            for rank, culprit in enumerate(culprits, start=1)
        ]
        section.tables.append(Table(head=head, rows=rows))
    else:
        section.notes.append("No place loses more than the noise of FP32 explains.")
    if lines := texts(results.bisect, "settings"):
        section.tables.append(Table(head=["settings to paste"], rows=[[line] for line in lines]))
    runs, seconds, ratio = (
        number(results.bisect.get(name)) for name in ("runs", "seconds", "time_ratio")
    )
    if runs is not None and seconds is not None:
        section.notes.append(f"The search took {runs:.0f} repetitions and {seconds:.0f} seconds.")
    if ratio is not None:
        section.notes.append(f"A repetition with the cure takes {ratio:.2f} times as long.")
    return section


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"
