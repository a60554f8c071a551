"""What all attempts of a run train on: its snapshot, and what becomes of one that is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from infrastructure.agent_contract.run_context import RunLogger

Snapshot = TypeVar("Snapshot")
_FILE = "snapshot.json"


class RunData:
    """The snapshot of a run, and its checkpoints, which are worth nothing without it.

    Args:
        run_folder: Of the run.
        attempt: Number of this attempt.
        logger: Told what was set aside.
    """

    def __init__(self, run_folder: Path, attempt: int, logger: RunLogger) -> None:
        self.path = run_folder / _FILE
        self.checkpoints = run_folder / "checkpoints"
        self._attempt, self._logger = attempt, logger

    def read(self, parse: Callable[[object], Snapshot]) -> Snapshot | None:
        """The snapshot an earlier attempt has written, or None if data are to be collected.

        Where there is none that can be read, the checkpoints, trained on data now unknown, are
        set aside under another name, with a warning: the run trains afresh on new data.

        Args:
            parse: Makes a snapshot of JSON; raises ValueError where that is none.

        Raises:
            OSError: The disk refused.
        """
        try:
            return parse(json.loads(self.path.read_bytes()))
        except FileNotFoundError:
            reason = "it is missing"
        except ValueError as error:
            reason = f"it cannot be read: {error}"
        aside = [self._set_aside(each) for each in (self.path, self.checkpoints) if each.exists()]
        if aside:
            self._logger.warning(
                "snapshot_lost",
                file=str(self.path),
                reason=reason,
                set_aside=", ".join(aside),
                consequence="data are collected anew and training starts afresh",
            )
        return None

    def _set_aside(self, path: Path) -> str:
        return str(path.rename(f"{path}.set-aside-{self._attempt}"))


def kept_snapshot(run_folder: Path, parse: Callable[[object], Snapshot]) -> Snapshot:
    """What a finished run trained on, for another that repeats it.

    Args:
        run_folder: Of the finished run.
        parse: As in `RunData.read`.

    Raises:
        RuntimeError: It is gone or damaged, so the run cannot be repeated.
    """
    path = run_folder / _FILE
    try:
        return parse(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise RuntimeError(
            f"{path} cannot be read ({error}), so that run cannot be repeated: the next one can be"
        ) from error
