"""Events of a worker and commands to it, as JSON lines. Imports neither torch nor the daemon."""

from infrastructure.events.command import COMMAND_ADAPTER, Command, SaveCheckpoint, SetPrecision
from infrastructure.events.event import EVENT_ADAPTER, Event
from infrastructure.events.event_log import EventTail, EventWriter, read_events
from infrastructure.events.precision_state import PrecisionName, PrecisionState, Role

__all__ = [
    "COMMAND_ADAPTER",
    "EVENT_ADAPTER",
    "Command",
    "Event",
    "EventTail",
    "EventWriter",
    "PrecisionName",
    "PrecisionState",
    "Role",
    "SaveCheckpoint",
    "SetPrecision",
    "read_events",
]
