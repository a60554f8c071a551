"""How far each export has come: it survives the exporter, so that nothing is lost or sent again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ValidationError

from infrastructure.files import write_atomically

OVERLAP_SECONDS = 3600.0  # clocks are set back; a new leader with another home begins so far back
_FILE = ".position.json"  # hidden: a backup leaves it out


class Position(BaseModel):
    """How far each export has come.

    Attributes:
        ended_at: Largest time at which an exported run ended.
        sent: Exported runs that ended in the `OVERLAP_SECONDS` before, with that time.
        log_head, log_offset: Begin of the file of the log, and the bytes of it that are exported.
    """

    ended_at: float
    sent: dict[str, float] = {}
    log_head: str = ""
    log_offset: int = 0

    @property
    def since(self) -> float:
        """Time from which on ended runs may be unsent."""
        return self.ended_at - OVERLAP_SECONDS

    def add(self, run_id: str, ended_at: float) -> None:
        """Note that a run is exported."""
        self.sent[run_id] = ended_at
        self.ended_at = max(self.ended_at, ended_at)

    def forget(self) -> None:
        """Forget runs before `since`, which are not asked for again."""
        self.sent = {run: at for run, at in self.sent.items() if at >= self.since}

    def save(self, folder: Path) -> None:
        """Write it to *folder*.

        Raises:
            OSError: There is no room, for example.
        """
        self.forget()
        write_atomically(folder / _FILE, self.model_dump_json())


def read_position(folder: Path, now: float) -> Position:
    """The position in *folder*; without one, that of an exporter which begins *now*."""
    with suppress(OSError, ValidationError):
        return Position.model_validate_json((folder / _FILE).read_bytes())
    return Position(ended_at=now)
