"""Settles the wish ``auto``: measured once a run, and kept, so that a resumed run stays with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from infrastructure.agent_contract import TrainingJob
from infrastructure.events import PrecisionName, PrecisionState
from infrastructure.events.event import BaseEvent, Notice, PreflightDone
from infrastructure.events.precision_state import PRECISIONS
from infrastructure.files import write_atomically
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.diagnostics.preflight import preflight
from infrastructure.training.diagnostics.preflight.preflight import device_name
from infrastructure.training.distributed.ranks import Ranks

_FILE = "precision-choice.json"


class PrecisionChoice:
    """Answers ``auto`` with the best fixed precision for this job on this device.

    The answer lies in a file beside the checkpoints and holds for devices of the same name and
    the same number of threads. A wish that is not ``auto`` passes through: whoever demands a
    precision has it.

    Args:
        job: To be measured, on copies, when ``auto`` is first in force.
        device: Of this process.
        config: Of the training.
        folder: Of the run's checkpoints.
        ranks: The leader measures, alone, and all do as it says.
        emit: Takes events.
    """

    def __init__(
        self,
        job: TrainingJob,
        device: torch.device,
        config: FP16TrainingConfig,
        folder: Path,
        ranks: Ranks,
        emit: Callable[[BaseEvent], None],
    ) -> None:
        self._job, self._device, self._config = job, device, config
        self._path, self._ranks, self._emit = folder / _FILE, ranks, emit
        self._chosen: PrecisionName | None = None

    def settle(self, wish: PrecisionState) -> PrecisionState:
        """Put what was measured in the place of ``auto``; every rank must call it alike.

        Raises:
            RuntimeError, ValueError: See `preflight`.
        """
        if wish.effective != "auto":
            return wish
        if self._chosen is None:
            found = (self._kept() or self._measured()) if self._ranks.leads else None
            self._chosen = self._ranks.same(found)
        effective: PrecisionName = self._chosen or "fp32"
        return PrecisionState(requested=wish.requested, effective=effective, reason="measured")

    def _kept(self) -> PrecisionName | None:
        """The choice of an earlier attempt on the like of this device."""
        try:
            kept = json.loads(self._path.read_text())
            if kept["device"] != self._where():
                return None
            found = next(name for name in PRECISIONS if name == kept["precision"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            self._notice("precision_choice_unreadable", repr(error))
            return None
        return found

    def _measured(self) -> PrecisionName:
        report = preflight(self._job, self._device, self._config)
        self._emit(PreflightDone(report=report))
        choice = {"device": self._where(), "precision": report.verdict, "reasons": report.reasons}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(choice, indent=2))
        except OSError as error:  # only a resumed attempt would miss it
            self._notice("precision_choice_not_kept", str(error))
        return report.verdict

    def _where(self) -> str:
        return f"{device_name(self._device)}, {torch.get_num_threads()} threads"

    def _notice(self, event: str, error: str) -> None:
        self._emit(Notice(level="warning", event=event, fields={"error": error}))
