"""Recording of the candidates that a caller's search ran, for the agent to learn from.

They go to the replay buffer that the agent's runs append to. Each writer has a segment of its own,
so a run may collect at the same time; it trains on what was written before. A failure to record
never fails the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from agents.se_darwin.collection import to_transition
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search.evolution import StepResult
from agents.se_darwin.tasks import RepairTask
from infrastructure.trajectories import ReplayBuffer, ReplayBufferWriteError

MOST_RECORDED = 1000
"""Outcomes of a search that are recorded; later ones only if they are better."""


class Recording:
    """Appends outcomes as they arrive, so that an interrupted search keeps what it has run.

    Args:
        agent_folder: Folder that contains the agent's replay buffer; None to record nothing.
    """

    def __init__(self, agent_folder: Path | None) -> None:
        self._buffer = ReplayBuffer(agent_folder / "replay") if agent_folder else None
        self._recorded = 0
        self._problem = "" if agent_folder else "not recorded"

    def add(self, task: RepairTask, outcomes: Sequence[StepResult], sandbox: Sandbox) -> None:
        """Record *outcomes*; after the first write error nothing more is recorded."""
        for outcome in outcomes:
            if self._buffer is None or self._problem:
                return
            is_better = outcome.child.score > outcome.parent.score
            if self._recorded >= MOST_RECORDED and not is_better:
                continue
            try:
                self._buffer.append(to_transition(task, outcome, sandbox))
            except ReplayBufferWriteError as error:
                self._problem = f"not recorded: {error}"
            else:
                self._recorded += 1

    @property
    def summary(self) -> str:
        """One line: how much was recorded, or why it was not."""
        return self._problem or f"recorded: {self._recorded} candidates for the agent to learn from"

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._buffer is None:
            return
        try:
            self._buffer.close()
        except ReplayBufferWriteError as problem:
            self._problem = f"not recorded: {problem}"
