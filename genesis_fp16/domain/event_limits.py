"""Limits on a worker's events: impossible numbers are refused, long lists are cut. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from infrastructure.agent_contract.parts import MOST_PARTS, PART_NAME
from infrastructure.events import Event
from infrastructure.events.bounds import out_of_bounds
from infrastructure.events.event import Evaluated, Notice, Published, StepStats

MAX_STEPS_PER_SECOND = 100_000  # the Python code of one step alone takes longer than 10 us
MAX_SAMPLES_PER_SECOND = 10**9
SLACK_SECONDS = 10.0  # beyond the attempt's age: rounds of the loop, and clocks that differ
MAX_NAMES = 200  # metrics of an event or of a run
MAX_NAME_LENGTH = 100
MAX_FIELDS = 20  # of a notice


class EventLimits:
    """Decides what of one attempt's events is accepted.

    Attributes:
        refused: Events refused so far, because a number in them is impossible.
        cut: Events so far that lost some metrics or fields.
        first_problem: Why the first event was refused; empty if none was.
    """

    def __init__(self) -> None:
        self.refused = 0
        self.cut = 0
        self.first_problem = ""
        self._steps = self._samples = 0
        self._parts: set[str] = set()  # their names
        self._seconds = 0.0

    def admit(self, event: Event, age_seconds: float) -> Event | None:
        """*event* within the limits, or None if it is refused.

        Steps, samples and seconds are increments: their sums must fit into the attempt's age.

        Args:
            event: The attempt's next event.
            age_seconds: Seconds since the attempt began.
        """
        problem = next(self._problems(event, max(0.0, age_seconds) + SLACK_SECONDS), "")
        if problem:
            self.refused += 1
            self.first_problem = self.first_problem or f"{event.kind}: {problem}"
            return None
        if isinstance(event, StepStats):
            self._steps += event.attempted
            self._samples += event.samples
            self._seconds += event.seconds
            self._parts.update(part.name for part in event.parts)
        return self._shortened(event)

    def _problems(self, event: Event, seconds: float) -> Iterator[str]:
        yield from out_of_bounds(event)
        if not isinstance(event, StepStats):
            return
        if event.fp16 > event.attempted:
            yield "more steps in FP16 than steps"
        if self._steps + event.attempted > seconds * MAX_STEPS_PER_SECOND:
            yield f"over {MAX_STEPS_PER_SECOND} steps in each second of the attempt"
        if self._samples + event.samples > seconds * MAX_SAMPLES_PER_SECOND:
            yield f"over {MAX_SAMPLES_PER_SECOND} samples in each second of the attempt"
        if self._seconds + event.seconds > seconds:
            yield f"more seconds of training than the attempt is old ({seconds:.0f} s)"
        yield from self._problems_of_parts(event)

    def _problems_of_parts(self, stats: StepStats) -> Iterator[str]:
        names = [part.name for part in stats.parts]
        for name in names:
            if not PART_NAME.fullmatch(name):
                yield f"a part cannot be called {name[:MAX_NAME_LENGTH]!r}"
        if len(set(names)) < len(names):
            yield "two parts have one name"
        if len(self._parts.union(names)) > MOST_PARTS:
            yield f"more than {MOST_PARTS} parts in the attempt"
        if sum(part.attempted for part in stats.parts) > stats.attempted:
            yield "more steps of parts than steps"
        if any(part.overflow + part.nonfinite_loss > part.attempted for part in stats.parts):
            yield "more skipped steps of a part than steps"

    def _shortened(self, event: Event) -> Event:
        changes: dict[str, object] = {}
        match event:
            case Evaluated(metrics=metrics) if _too_long(metrics, MAX_NAMES):
                primary = {k: v for k, v in metrics.items() if k == event.primary}
                changes["metrics"] = _first({**primary, **metrics}, MAX_NAMES)
                changes["primary"] = event.primary[:MAX_NAME_LENGTH]
            case Published(metrics=metrics) if _too_long(metrics, MAX_NAMES):
                changes["metrics"] = _first(metrics, MAX_NAMES)
            case Notice(fields=fields) if _too_long(fields, MAX_FIELDS):
                changes["fields"] = _first(fields, MAX_FIELDS)
            case _:
                return event
        self.cut += 1
        return event.model_copy(update=changes)


def _too_long(named: Mapping[str, object], most: int) -> bool:
    return len(named) > most or any(len(name) > MAX_NAME_LENGTH for name in named)


def _first(named: Mapping[str, object], most: int) -> dict[str, object]:
    """The first *most* entries, their names cut."""
    return {name[:MAX_NAME_LENGTH]: value for name, value in islice(named.items(), most)}
