"""What searches for a rung propose for a job's code, unless the training has refuted it."""

from __future__ import annotations

from infrastructure.events import PrecisionName, Role
from infrastructure.events.event import BaseEvent, PrecisionChanged, RungSearched


class LastProposal:
    """The last proposal in the events of a training whose rung did not trip.

    Attributes:
        text: The proposal; empty if there is none.
    """

    def __init__(self) -> None:
        self.text = ""
        self._rung = ""  # proposed last
        self._roles: dict[Role, PrecisionName] = {}  # of it
        self._in_force = False
        self._refuted: set[str] = set()

    def note(self, event: BaseEvent) -> None:
        """Take note of the next *event*."""
        if isinstance(event, RungSearched) and event.proposal:
            self._rung = str((event.modules, event.parts, event.half_type, event.roles))
            self._roles = dict(event.roles)
            self.text = "" if self._rung in self._refuted else event.proposal
        elif isinstance(event, PrecisionChanged):
            state = event.state
            if state.effective != "fp32":
                computes = {role: types.split("/")[1] for role, types in state.roles.items()}
                has_roles = bool(self._roles) and self._roles.items() <= computes.items()
                changed = bool(state.modules or state.parts) or has_roles
                self._in_force = changed or state.reason == "guard"
            elif self._in_force and state.reason in ("guard", "floor_policy"):
                self._refuted.add(self._rung)
                self._in_force, self.text = False, ""
