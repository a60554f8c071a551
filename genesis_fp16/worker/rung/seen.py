"""What a training has shown before a search, in earlier attempts of its run, too."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from genesis_fp16.domain.run_spec import RunSpec
from infrastructure.events import Event, EventTail, PrecisionState, Role
from infrastructure.events.event import (
    BaseEvent,
    LostUpdatesMeasured,
    OverflowDiagnosed,
    PrecisionChanged,
    StepStats,
)
from infrastructure.events.role_precision import HalfName, roles_under
from infrastructure.precision_lab.rung.losses import LossHistory
from infrastructure.precision_lab.rung.request import FailedPart

_MOST_SUSPECTS = 4
_READ_BYTES = 1 << 18  # of an earlier attempt, at its beginning and at its end
_MOST_ATTEMPTS = 16  # earlier ones that are read: the first, and the last
_ROLLED_BACK = ("guard", "floor_policy")


class Seen:
    """What a search needs to know of the training in half precision.

    Attributes:
        half: Last half type that was asked for, or in force; None if there was none.
        half_is_default: Whether nobody has chosen it.
        other_failed: Whether the other half type was in force, in parts or in the reference, and
            did not suffice.
        loss_scale: That of the last steps in FP16; None if there were none.
        reference: Types of the reference in half precision; empty if it was not in force.
        suspects: Modules that overflowed or underflowed.
        histories: Losses by part; of all under the empty name.
    """

    def __init__(self) -> None:
        self.half: HalfName | None = None
        self.half_is_default, self.other_failed = False, False
        self.loss_scale: float | None = None
        self.reference = ""
        self.suspects: deque[str] = deque(maxlen=_MOST_SUSPECTS)
        self.histories: defaultdict[str, LossHistory] = defaultdict(LossHistory)
        self._has_other = False  # the reference has the other half type
        self._others: set[str] = set()  # parts that have it
        self._scales: dict[str, float] = {}  # by part, of the last steps in FP16
        self._failing: set[str] = set()  # parts, when any has failed last
        self._changed: set[str] = set()  # parts that have a precision of their own
        self._failed: set[str] = set()

    @classmethod
    def of_earlier_attempts(cls, spec: RunSpec) -> Seen:
        """What the events of the attempts before that of *spec* tell."""
        seen, numbers = cls(), list(range(1, spec.attempt))
        if len(numbers) > _MOST_ATTEMPTS:
            numbers = [1, *numbers[1 - _MOST_ATTEMPTS :]]
        for number in numbers:
            path = spec.attempt_folder.with_name(str(number)) / spec.events_path.name
            with suppress(OSError):
                size = path.stat().st_size
                last = max(_READ_BYTES, size - _READ_BYTES)
                tails = EventTail(path, end=_READ_BYTES), EventTail(path, last, end=size)
                for event in _all(tails):
                    seen.note(event)
        return seen

    def note(self, event: BaseEvent) -> bool:
        """Take note of *event*; whether it puts a rung in force that a search has found."""
        if isinstance(event, StepStats):
            self._note_steps(event)
        elif isinstance(event, PrecisionChanged):
            return self._note_precision(event.state)
        elif isinstance(event, OverflowDiagnosed) and event.module:
            self._suspect(event.module)
        elif isinstance(event, LostUpdatesMeasured) and (event.zero or 0.0) > 0.2:
            self._suspect(event.underflow_module)
        return False

    def failed_parts(self, names: list[str]) -> tuple[FailedPart, ...]:
        """Those of the job's parts, *names*, that failed; all of them if none is known to have."""
        failed = [name for name in names if name in self._failed | self._failing] or names
        return tuple(
            FailedPart(
                name=name,
                loss_scale=self._scales.get(name, self.loss_scale),
                history=self.histories[name],
            )
            for name in failed
        )

    def _note_steps(self, stats: StepStats) -> None:
        self.histories[""] = self.histories[""].after(stats.loss)
        for part in stats.parts:
            self.histories[part.name] = self.histories[part.name].after(part.loss)
        if stats.precision != "fp32":
            if stats.precision == "fp16":
                self.loss_scale = stats.loss_scale
                in_fp16 = [part for part in stats.parts if part.name not in self._changed]
                self._scales |= {part.name: part.loss_scale for part in in_fp16}
            failing = {part.name for part in stats.parts if part.overflow + part.nonfinite_loss}
            self._failing = failing or self._failing

    def _note_precision(self, state: PrecisionState) -> bool:
        for name in (state.requested, state.effective):  # the guard descends from what is asked
            if name in ("fp16", "bf16"):
                self.half = name
                break
        if state.effective == "fp32":
            if state.reason in _ROLLED_BACK:
                blamed = self._others & self._failing if self._failing else self._others
                self.other_failed |= self._has_other or bool(blamed)
                self._failed |= self._failing | self._changed  # these did not suffice alone
            return False
        self.half_is_default = state.reason == "default"
        self.reference = types = state.roles.get(Role.REFERENCE, "")
        own = str(roles_under(replace(state, roles={}))[Role.REFERENCE])  # where nobody has chosen
        changed = [types.split("/")[1]] if self.half_is_default and types not in ("", own) else []
        not_other = ("fp32", state.effective)
        self._has_other = any(name not in not_other for name in changed)
        self._others = {part for part, name in state.parts.items() if name not in not_other}
        self._changed, self._failing = set(state.parts), set()
        return bool(state.modules or state.parts or changed) or state.reason == "guard"

    def _suspect(self, module: str) -> None:
        name = module.partition(" (")[0]
        if name and not name.startswith("the ") and name not in self.suspects:
            self.suspects.append(name)


def _all(tails: tuple[EventTail, ...]) -> Iterator[Event]:
    for tail in tails:
        yield from tail.read()
