"""The sections, in the order in which they run, with the time that each may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOTAL_SECONDS = 600.0  # of the whole command
RESERVE_SECONDS = 15.0  # of it, for ending the last section and writing the results
_MOST = 2.0  # times its own that a section may take of what others have left over
_SECTIONS = "benchmarks.gpu.sections"


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the run, in a process of its own.

    Attributes:
        name: Name on the command line and in the results.
        module: Module whose ``run`` decides its claims.
        seconds: Time that it is sure to get.
    """

    name: str
    module: str
    seconds: float


SECTIONS = (
    Section(name="device", module=f"{_SECTIONS}.device", seconds=60),
    Section(name="graph-steps", module=f"{_SECTIONS}.cuda_tests", seconds=45),
    Section(name="graph-flip", module=f"{_SECTIONS}.graph_flip", seconds=30),
    Section(name="graph-failure", module=f"{_SECTIONS}.graph_failure", seconds=25),
    Section(name="graph-rules", module=f"{_SECTIONS}.graph_rules", seconds=25),
    Section(name="steps-small", module=f"{_SECTIONS}.steps", seconds=40),
    Section(name="steps-medium", module=f"{_SECTIONS}.steps", seconds=40),
    Section(name="steps-large", module=f"{_SECTIONS}.steps", seconds=45),
    Section(name="accuracy", module=f"{_SECTIONS}.accuracy", seconds=40),
    Section(name="daemon", module=f"{_SECTIONS}.daemon", seconds=45),
    Section(name="nccl", module=f"{_SECTIONS}.nccl", seconds=35),
    Section(name="fleet", module=f"{_SECTIONS}.fleet", seconds=30),
    Section(name="preflight", module=f"{_SECTIONS}.cuda_tests", seconds=35),
    Section(name="mismatch", module=f"{_SECTIONS}.mismatch", seconds=40),
    Section(name="telemetry", module=f"{_SECTIONS}.telemetry", seconds=30),
    Section(name="steps-tiny", module=f"{_SECTIONS}.steps", seconds=20),
)


def allowed_seconds(sections: Sequence[Section], place: int, left_seconds: float) -> float:
    """Seconds that the section at *place* may take.

    Later sections keep their time; what earlier ones left over may double the section's own.

    Args:
        sections: All sections of this run.
        place: Index of the section.
        left_seconds: Seconds left of the whole.
    """
    later = sum(each.seconds for each in sections[place + 1 :])
    spare = left_seconds - RESERVE_SECONDS - later
    return max(0.0, min(_MOST * sections[place].seconds, spare))
