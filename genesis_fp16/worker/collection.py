"""The data phase of a worker: what all attempts of a run train on is collected once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

from genesis_fp16.worker.channel import ProgressReporter
from genesis_fp16.worker.contract_check import checked
from genesis_fp16.worker.run_data import RunData
from infrastructure.agent_contract import Agent, RunContext, Transition
from infrastructure.files import write_atomically
from infrastructure.trajectories import BufferSnapshot, ReplayBuffer


class Collection:
    """Records what an agent collects, within its budget.

    Args:
        agent: Collects.
        context: Of the run.
        progress: Told how far it is, where the agent itself reports nothing.
        begin: Called before anything is collected.
        poll: Called after each transition; what it raises ends the collection.
    """

    def __init__(
        self,
        agent: Agent,
        context: RunContext,
        progress: ProgressReporter,
        begin: Callable[[], None],
        poll: Callable[[], object],
    ) -> None:
        self._agent, self._context, self._progress = agent, context, progress
        self._begin, self._poll = begin, poll

    def snapshot(self, folder: Path) -> BufferSnapshot:
        """Collect into *folder*, unless an earlier attempt has: all train on the same data.

        Returns:
            What this run trains on, of the replay buffer in *folder*.
        """
        data = RunData(self._context.run_folder, self._context.attempt, self._context.logger)
        if (kept := data.read(BufferSnapshot.from_json)) is not None:
            return kept
        self._begin()
        buffer = self.buffer(folder)
        with closing(buffer):  # whatever happens, what was recorded is on disk
            self._collect(buffer)
        self._progress.flush()
        snapshot = buffer.snapshot()
        write_atomically(data.path, json.dumps(snapshot.to_json()))
        return snapshot

    def buffer(self, folder: Path) -> ReplayBuffer:
        """The replay buffer in *folder*, which tells the operator of records it skips."""
        return ReplayBuffer(folder, on_skip=self._warn_of_skipped)

    def _collect(self, buffer: ReplayBuffer) -> None:
        budget = self._context.budget
        deadline = time.monotonic() + budget.seconds
        own_reports = 0
        with closing(self._transitions()) as transitions:
            for recorded, transition in enumerate(transitions, start=1):
                buffer.append(checked(transition, Transition, "collect() must yield"))
                if self._progress.reports == own_reports:  # the agent itself reports nothing
                    self._progress(recorded, budget.transitions, unit="transitions")
                    own_reports += 1
                self._poll()
                if recorded >= budget.transitions or time.monotonic() >= deadline:
                    break

    def _transitions(self) -> Generator[Transition, None, None]:
        """The agent's transitions; its generator is closed when no more are wanted."""
        source = self._agent.collect(self._context)
        try:
            yield from source
        finally:
            if hasattr(source, "close"):
                source.close()

    def _warn_of_skipped(self, path: Path, offset: int, reason: str) -> None:
        logger = self._context.logger
        logger.warning("record_skipped", file=str(path), offset=offset, reason=reason)
