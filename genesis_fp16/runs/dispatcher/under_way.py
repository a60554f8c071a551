"""Attempts under way, and workers that still end after their attempts were given up."""

from __future__ import annotations

from collections.abc import Iterator

from genesis_fp16.executors import Executor, Handle
from genesis_fp16.runs.active_attempt import ActiveAttempt


class UnderWay:
    """Attempts that the dispatcher follows, one of a run at most."""

    def __init__(self) -> None:
        self._attempts: dict[str, ActiveAttempt] = {}
        self._left: list[Handle] = []  # of attempts followed no longer, until the worker has ended

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[ActiveAttempt]:
        return iter(list(self._attempts.values()))

    def of_run(self, run_id: str) -> ActiveAttempt | None:
        """The attempt of that run; None if none is under way."""
        return self._attempts.get(run_id)

    def add(self, active: ActiveAttempt) -> None:
        """Follow *active* from now on."""
        self._attempts[active.run.id] = active

    def remove(self, active: ActiveAttempt) -> None:
        """Follow *active* no longer."""
        del self._attempts[active.run.id]
        if active.handle is not None and active.exit_status is None:
            self._left.append(active.handle)

    def poll_removed(self, executor: Executor) -> None:
        """Poll the workers of attempts that are followed no longer until they have ended."""
        self._left = [worker for worker in self._left if executor.poll(worker) is None]

    @property
    def alive(self) -> int:
        """Attempts whose workers have neither ended nor been given up."""
        return sum(
            not (attempt.daemon_error or attempt.exit_status or attempt.handle is None)
            for attempt in self
        )
