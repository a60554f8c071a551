"""What a run tells its agent; not the precision, so that no agent can depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from infrastructure.files import Ignore, copy_folder

if TYPE_CHECKING:
    from pydantic import BaseModel

AT_START = "at-start"  # in the run's folder: see `RunContext.at_start`
ROWS_FOLDER = "encoded-rows"  # in the run's folder: training data that is not kept in memory


class RunLogger(Protocol):
    """The part of a structlog logger that agents use: a constant event plus key-values."""

    def info(self, event: str, **fields: object) -> object:
        """Log at level INFO."""

    def warning(self, event: str, **fields: object) -> object:
        """Log at level WARNING."""


class ReportProgress(Protocol):
    """Reports the agent's progress to the operator."""

    def __call__(
        self,
        done: int,
        total: int | None = None,
        *,
        unit: str = "",
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Report *done* of *total* units; cheap enough to call for each transition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Limits of `Agent.collect`; the worker enforces them between transitions.

    Attributes:
        seconds: Wall-clock seconds.
        transitions: Number of transitions.
    """

    seconds: float
    transitions: int

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.transitions <= 0:
            raise ValueError(
                f"a budget needs seconds and transitions above zero, got "
                f"{self.seconds} and {self.transitions}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """One attempt of one run, as its agent sees it.

    Attributes:
        run_id: Identity of the run; the same in every attempt.
        attempt: Number of the attempt, from 1; each retry or resumption adds one.
        agent: Name of the agent.
        device: Torch device: ``cpu``, ``cuda:0``.
        seed: Seed of the run; the same in every attempt.
        agent_folder: The agent's folder; persists across runs (replay buffer, models).
        run_folder: The run's folder; persists across its attempts.
        budget: Limits of `Agent.collect`.
        settings: Instance of the agent's `settings_model`, or None.
        logger: Logger bound to the agent and the run.
        report_progress: See `ReportProgress`.
        repeats: Folder of the run that this one repeats; None for a run of its own. See `at_start`.
    """

    run_id: str
    attempt: int
    agent: str
    device: str
    seed: int
    agent_folder: Path
    run_folder: Path
    budget: Budget
    settings: BaseModel | None
    logger: RunLogger
    report_progress: ReportProgress
    repeats: Path | None = None

    def at_start(self, folder: Path, ignore: Ignore | None = None) -> Path:
        """Copy of an agent's *folder* as it was when this run began; for what `build_job` reads.

        A job that begins with the model in use must load it from here. The first call copies the
        folder into the run's. The run's further attempts and processes, and a run that repeats it,
        get the same copy, even if this very run has published another model since.

        Args:
            folder: Folder below `agent_folder`; if it does not exist, the copy is empty.
            ignore: Function that gets each folder and the names in it, and returns the names that
                the job does not need; by default everything is copied.

        Raises:
            ValueError: *folder* is elsewhere.
            RuntimeError: This run repeats another one, which has kept no copy.
            OSError: Copying failed.
        """
        kept = (self.repeats or self.run_folder) / AT_START / folder.relative_to(self.agent_folder)
        if kept.is_dir():
            return kept
        if self.repeats is not None:
            raise RuntimeError(
                f"this run cannot repeat an earlier one, because {kept} does not exist: what that "
                "run began with was removed, or it ran under an older version; later runs are not "
                "affected"
            )
        copy_folder(folder, kept, ignore)
        return kept
