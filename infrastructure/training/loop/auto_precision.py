"""Resolves the precision ``auto``: measured once per run and kept for resumed attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from infrastructure.agent_contract import Job
from infrastructure.events import PrecisionName, PrecisionState, Role
from infrastructure.events.event import BaseEvent, Notice, PreflightDone
from infrastructure.events.precision_state import PRECISIONS
from infrastructure.events.role_precision import RolePrecision
from infrastructure.files import read_json, write_json
from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.diagnostics.preflight import preflight
from infrastructure.training.distributed import Ranks
from infrastructure.training.precision import device_name

_FILE = "precision-choice.json"
_MOST_CHOICE_BYTES = 1 << 20


class AutoPrecision:
    """Replaces ``auto`` by the best fixed precision for this job on this device.

    The choice is kept in a file beside the checkpoints and holds for devices of the same name and
    the same number of threads. Any other precision passes through unchanged.

    Args:
        job: Job whose copies are measured when ``auto`` is first in force.
        folder: Folder of the run's checkpoints.
        ranks: The ranks; rank 0 measures, and all use its choice.
    """

    def __init__(
        self,
        job: Job,
        device: torch.device,
        config: FP16TrainingConfig,
        folder: Path,
        ranks: Ranks,
        emit: Callable[[BaseEvent], None],
    ) -> None:
        self._job, self._device, self._config = job, device, config
        self._path, self._ranks, self._emit = folder / _FILE, ranks, emit
        self._chosen: PrecisionName | None = None

    def resolve(self, wish: PrecisionState) -> PrecisionState:
        """Replace ``auto`` in *wish* by the measured precision; every rank must call it.

        A half type of the roles that is not the policy's measured one is replaced by it, too.

        Raises:
            RuntimeError, ValueError: See `preflight`.
        """
        if wish.effective != "auto":
            return wish
        if self._chosen is None:
            chosen = (self._read() or self._measure()) if self._ranks.is_rank_zero else None
            self._chosen = self._ranks.broadcast(chosen)
        effective: PrecisionName = self._chosen or "fp32"
        roles = wish.roles
        if effective != "fp32" and Role.POLICY in roles:  # those of a preset
            precisions = {role: RolePrecision.parse(types) for role, types in roles.items()}
            if precisions[Role.POLICY].compute != effective:
                roles = {
                    role: str(precision.in_half(effective))
                    for role, precision in precisions.items()
                }
        return replace(wish, effective=effective, reason="measured", roles=roles)

    def _read(self) -> PrecisionName | None:
        """The choice of an earlier attempt on an equal device."""
        try:
            saved = cast("dict[str, object]", read_json(self._path, limit=_MOST_CHOICE_BYTES))
            if saved["device"] == self._describe_device():
                return next(name for name in PRECISIONS if name == saved["precision"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            self._emit(Notice.warning("precision_choice_unreadable", repr(error)))
        return None

    def _measure(self) -> PrecisionName:
        report = preflight(self._job, self._device, self._config)
        self._emit(PreflightDone(report=report))
        choice = {
            "device": self._describe_device(),
            "precision": report.verdict,
            "reasons": report.reasons,
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, choice)
        except OSError as error:  # a resumed attempt measures again
            self._emit(Notice.warning("precision_choice_not_kept", error))
        return report.verdict

    def _describe_device(self) -> str:
        return f"{device_name(self._device)}, {torch.get_num_threads()} threads"
