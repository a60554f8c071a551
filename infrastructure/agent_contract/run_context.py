"""What a run tells its agent; not the precision, so that no agent can depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pydantic import BaseModel


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
