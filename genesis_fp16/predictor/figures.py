"""Counts for the daemon's metrics, reported once a second as one line."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO

from genesis_fp16.domain.predictor import (
    PREDICTION_SECONDS,
    AgentFigures,
    JudgedOutcomes,
    Notice,
    PredictorReport,
)

if TYPE_CHECKING:
    from genesis_fp16.predictor.judge import Judge

REPORT_SECONDS = 1.0
_MOST_NOTICES = 20  # of one report


class Figures:
    """Counts since the last report; safe in several threads.

    If nobody reads the reports, counts go on in one report, and further notices are dropped.

    Attributes:
        judge: Compares outcomes with predictions before each report; None to compare nothing.
    """

    def __init__(self) -> None:
        self.judge: Judge | None = None
        self._lock = threading.Lock()
        self._report = PredictorReport()
        self._ended, self._beat = threading.Event(), threading.Event()

    def beat(self) -> None:
        """Answers are being given; without a beat nothing is reported, and the daemon acts."""
        self._beat.set()

    def prediction(self, agent: str, outcome: str, seconds: float) -> None:
        """Count an answer to predict, rank or decide, with the time that it took."""
        with self._lock:
            figures = self._of(agent)
            _add(figures.predictions, outcome)
            figures.seconds[bisect_left(PREDICTION_SECONDS, seconds)] += 1
            figures.seconds_sum += seconds

    def recorded(self, agent: str, kind: str, count: int = 1) -> None:
        """Count decisions, choices or transitions that were recorded."""
        with self._lock:
            _add(self._of(agent).decisions, kind, count)

    def outcome(self, agent: str, state: str) -> None:
        """Count a report of an outcome."""
        with self._lock:
            _add(self._of(agent).outcomes, state)

    def notice(self, event: str, **fields: str) -> None:
        """Have the daemon log *event*."""
        with self._lock:
            if len(self._report.notices) < _MOST_NOTICES:
                self._report.notices.append(Notice(event=event, fields=fields))

    def take(self) -> PredictorReport:
        """What was counted since the last call."""
        with self._lock:
            report, self._report = self._report, PredictorReport()
        return report

    def report_to(self, file: BinaryIO, models: Callable[[], tuple[int, list[str]]]) -> None:
        """Write a line to *file* once a second, until `end`; to be called in a thread.

        Args:
            models: Returns the number of models in memory, and the agents with networks of their
                own.
        """
        while not self._ended.wait(REPORT_SECONDS):
            if self._beat.is_set():
                self._beat.clear()
                self.write(file, *models())

    def end(self) -> None:
        """Let `report_to` return."""
        self._ended.set()

    def write(self, file: BinaryIO, models: int = 0, own_networks: Sequence[str] = ()) -> None:
        """Report now."""
        judged = self._judged()
        with self._lock:
            for agent, outcomes in judged.items():
                self._of(agent).judged = outcomes
        report = self.take()
        report.models, report.own_networks = models, list(own_networks)
        try:
            file.write(report.model_dump_json().encode() + b"\n")
            file.flush()
        except OSError:  # the daemon is gone: standard input tells, too
            self._ended.set()

    def _judged(self) -> dict[str, JudgedOutcomes]:
        if self.judge is None:
            return {}
        try:
            return self.judge.take()
        except Exception as error:  # a defect of ours must not end the reports
            self.notice("outcomes_not_judged", error=repr(error))
            return {}

    def _of(self, agent: str) -> AgentFigures:
        figures = self._report.agents.get(agent)
        if figures is None:
            figures = self._report.agents[agent] = AgentFigures()
        return figures


def _add(counts: dict[str, int], name: str, count: int = 1) -> None:
    counts[name] = counts.get(name, 0) + count
