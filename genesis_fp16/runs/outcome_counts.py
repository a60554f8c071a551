"""How many outcomes of each agent wait for its next run."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from infrastructure.decisions import WaitingOutcomes
from infrastructure.decisions.log import logs_of
from infrastructure.decisions.waiting import COUNTING_SECONDS

log = structlog.get_logger()


class OutcomeCounts:
    """Counts them in the agents' logs of decisions, reading what is new; safe in several threads.

    Args:
        home: GENESIS_HOME.
    """

    def __init__(self, home: Path) -> None:
        self._agents = home.absolute() / "agents"
        self._counts: dict[Path, WaitingOutcomes] = {}
        self._counting = threading.Lock()
        self._failed: dict[str, str] = {}

    def of(self, agent: str, seconds: float = COUNTING_SECONDS) -> int:
        """Number of outcomes of *agent*; 0 if its log cannot be read, which is logged once."""
        try:
            with self._counting:
                count = 0
                for log_folder in logs_of(self._agents / agent).values():
                    waiting = self._counts.get(log_folder)
                    if waiting is None:
                        waiting = self._counts[log_folder] = WaitingOutcomes(log_folder)
                    count += waiting.count(seconds)
        except OSError as error:
            if self._failed.get(agent) != str(error):
                consequence = "its runs do not become due by outcomes"
                log.warning(
                    "outcomes_uncountable", agent=agent, error=str(error), consequence=consequence
                )
            self._failed[agent] = str(error)
            return 0
        self._failed.pop(agent, None)
        return count
