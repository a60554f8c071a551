"""Collects what is new in a record source, and tells the run what was found."""

from __future__ import annotations

from collections.abc import Iterator

from infrastructure.agent_contract import RunContext, Transition
from infrastructure.trajectories.record_source.databases import DatabaseSource
from infrastructure.trajectories.record_source.source import RecordSource

REPORT_EVERY = 1000


def collect_records(
    source: RecordSource | DatabaseSource, context: RunContext
) -> Iterator[Transition]:
    """Yield the new transitions of *source* within the budget of the run; for `Agent.collect`.

    The counts are logged as ``records_read`` and reported as metrics of the run; each problem is
    logged as ``records_incomplete``.

    Raises:
        SourceFolderError: The folder is missing or cannot be listed.
        SourceServerError: The server does not answer.
    """
    try:
        for transition in source.new_transitions(context.budget.seconds):
            yield transition
            done = source.report.transitions
            if done % REPORT_EVERY == 0:
                context.report_progress(done, unit="transitions")
    finally:
        counts = source.report.counts()
        context.logger.info("records_read", place=source.place, **counts)
        for problem in source.report.problems():
            context.logger.warning("records_incomplete", problem=problem)
    context.report_progress(
        counts["transitions"],
        unit="transitions",
        metrics={name: float(count) for name, count in counts.items()},
    )
