"""Commands of the daemon to a worker, one JSON line each on the worker's stdin."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from infrastructure.events.precision_state import PrecisionState


class _Command(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Stop(_Command):
    """Checkpoint at the next step boundary and exit with 75. End of stdin means the same."""

    command: Literal["stop"] = "stop"
    reason: str


class SaveCheckpoint(_Command):
    """Checkpoint at the next step boundary and continue."""

    command: Literal["checkpoint"] = "checkpoint"


class SetPrecision(_Command):
    """Change precision at the next optimizer-step boundary and acknowledge it by an event."""

    command: Literal["set_precision"] = "set_precision"
    state: PrecisionState


Command = Annotated[Stop | SaveCheckpoint | SetPrecision, Field(discriminator="command")]

COMMAND_ADAPTER: TypeAdapter[Command] = TypeAdapter(Command)


class Lease(_Command):
    """Allow a worker to run until a moment; each lease replaces the last one.

    When it expires the kernel ends the process, also if it hangs: another daemon may start the same
    run then. A worker without one may run on.

    Attributes:
        lease_until: Monotonic seconds, which all processes of a machine count alike.
    """

    lease_until: float
