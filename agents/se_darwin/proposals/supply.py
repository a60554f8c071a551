"""One proposer at work in a thread of its own."""

from __future__ import annotations

import queue
import threading

from infrastructure.agent_contract.proposer import ProposalRequest, ProposedFunction, Proposer

_CLOSE_SECONDS = 2.0


class Supply:
    """Draws the candidates of a proposer, a round at a time, while the search goes on.

    Args:
        name: Name of the proposer.
        proposer: The proposer.
        most: Most candidates to take from it.

    Attributes:
        taken: Number of candidates that it has yielded.
        rounds: Number of rounds that were begun.
        problem: Why it ended early, in one line; empty if it did not.
    """

    def __init__(self, name: str, proposer: Proposer, most: int) -> None:
        self.name, self.taken, self.rounds, self.problem = name, 0, 0, ""
        self._is_finished = False
        self._proposer, self._most = proposer, most
        self._arrived: queue.SimpleQueue[ProposedFunction] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def left(self) -> int:
        """Number of candidates that may still be taken."""
        return self._most - self.taken

    @property
    def is_open(self) -> bool:
        """Whether further candidates may come."""
        is_finished = self._is_finished and self._arrived.empty()
        return not (self.is_cancelled() or is_finished)

    @property
    def may_start(self) -> bool:
        """Whether no round is under way, and another one may yield something."""
        is_idle = self._thread is None or not self._thread.is_alive()
        return is_idle and not (self.is_cancelled() or self._is_finished)

    def is_cancelled(self) -> bool:
        """Whether `close` was called."""
        return self._cancelled.is_set()

    def start(self, request: ProposalRequest) -> None:
        """Begin a round."""
        self.rounds += 1
        self._thread = threading.Thread(
            target=self._draw, args=(request,), name=f"proposer-{self.name}", daemon=True
        )
        self._thread.start()

    def arrived(self) -> list[str]:
        """Return the sources of candidates that have arrived since the last call."""
        sources = []
        while True:
            try:
                sources.append(self._arrived.get_nowait().code)
            except queue.Empty:
                return sources

    def wait(self, seconds: float) -> None:
        """Wait until the round ends or *seconds* have passed."""
        if self._thread is not None:
            self._thread.join(seconds)

    def close(self) -> None:
        """Cancel the round; a proposer that does not look is left to its thread."""
        self._cancelled.set()
        self.wait(_CLOSE_SECONDS)

    def preview(self, request: ProposalRequest) -> str:
        """Return what the proposer would send for *request*."""
        return self._proposer.preview(request)

    def summary(self) -> str:
        """Return what the proposer says of itself."""
        try:
            return self._proposer.summary()
        except Exception as error:  # plugin code may raise anything
            return f"{type(error).__name__}: {error}"

    def _draw(self, request: ProposalRequest) -> None:
        before = self.taken
        try:
            for candidate in self._proposer.propose(request):
                if self.is_cancelled() or not self.left:
                    break
                if not isinstance(candidate.code, str):
                    raise TypeError(f"a candidate's code must be text, got {candidate.code!r:.80}")
                self.taken += 1
                self._arrived.put(candidate)
        except Exception as error:  # plugin code may raise anything
            self.problem = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            self._is_finished = True
        if self.taken == before or not self.left:
            self._is_finished = True
