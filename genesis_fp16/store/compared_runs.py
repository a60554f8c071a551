"""Held-out metrics of successful runs in half precision and in FP32, for comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Engine, func, select

from genesis_fp16.domain.guard import RunPair
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.store.database import read_connection
from genesis_fp16.store.rows import RowReader, is_number
from genesis_fp16.store.schema import runs

MIN_HALF_SHARE = 0.9  # of its steps, which a run in half precision must have made in it


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The primary held-out metric of a run.

    Attributes:
        run_id, number: Identity of the run, and its number among the agent's.
        precision: Precision of the training; ``mixed`` if it changed on the way.
        reason: Reason of the last precision.
        metric, value: Name and value of the metric, of the trained network; NaN if it was not
            finite. This is what can be compared: an FP32 repetition publishes nothing.
        published: Whether the run published its model; None if it did not decide.
        decided_value: Value of the metric of the model that was published or refused, which may
            be another, such as an ensemble; None if the agent reported none, or not a finite one.
        higher_is_better: Direction of the metric; None if unknown.
    """

    run_id: str
    number: int
    precision: Literal["half", "fp32", "mixed"]
    reason: str
    metric: str
    value: float
    published: bool | None
    decided_value: float | None
    higher_is_better: bool | None


class ComparedRuns:
    """Reads results of runs; a run that changed its precision counts for neither."""

    def __init__(self, engine: Engine, as_runs: RowReader[Run]) -> None:
        self._engine = engine
        self._as_runs = as_runs

    def pairs(self, agent: str, since: float = 0.0) -> list[RunPair]:
        """Runs of *agent* in half precision with their FP32 repetitions, oldest first.

        Pairs whose half run began before the Unix time *since* are left out.
        """
        half, fp32 = runs.alias("half"), runs.alias("fp32")
        joined = half.join(fp32, fp32.c.baseline_of == half.c.id)
        comparable = (
            half.c.agent == agent,
            half.c.started_at >= since,
            half.c.state == RunState.SUCCEEDED.value,
            fp32.c.state == RunState.SUCCEEDED.value,
            half.c.primary_metric == fp32.c.primary_metric,
            fp32.c.primary_value.is_not(None),
            half.c.higher_is_better.is_not(None),
            half.c.half_steps >= MIN_HALF_SHARE * half.c.steps,
            half.c.half_steps > 0,
            fp32.c.half_steps == 0,
        )
        with read_connection(self._engine) as connection:
            half_rows, fp32_rows = (
                connection.execute(
                    select(side)
                    .select_from(joined)
                    .where(*comparable)
                    .order_by(fp32.c.finished_at, fp32.c.id)
                ).mappings()
                for side in (half, fp32)
            )
            pairs = [
                (self._as_runs.one(half_row), self._as_runs.one(fp32_row))
                for half_row, fp32_row in zip(half_rows, fp32_rows, strict=True)
            ]
        return [_pair(half, fp32) for half, fp32 in pairs if half is not None and fp32 is not None]

    def runs_since_baseline(self, agent: str) -> int:
        """Number of successful half-precision runs of *agent* since its last FP32 repetition."""
        last = select(func.max(runs.c.created_at)).where(
            runs.c.agent == agent, runs.c.baseline_of.is_not(None), is_number(runs.c.created_at)
        )
        query = select(func.count()).where(
            runs.c.agent == agent,
            runs.c.baseline_of.is_(None),
            runs.c.state == RunState.SUCCEEDED.value,
            runs.c.half_steps >= MIN_HALF_SHARE * runs.c.steps,
            runs.c.half_steps > 0,
            runs.c.finished_at > func.coalesce(last.scalar_subquery(), 0.0),
        )
        with read_connection(self._engine) as connection:
            return connection.scalar(query) or 0

    def results(self, agent: str, limit: int = 200) -> list[RunResult]:
        """Results of the newest successful runs of *agent*, newest first."""
        query = (
            select(runs)
            .where(
                runs.c.agent == agent,
                runs.c.state == RunState.SUCCEEDED.value,
                runs.c.primary_metric.is_not(None),
                runs.c.steps > 0,
            )
            .order_by(runs.c.finished_at.desc(), runs.c.id.desc())
            .limit(limit)
        )
        with read_connection(self._engine) as connection:
            ended = self._as_runs(connection.execute(query).mappings())
        return [
            RunResult(
                run_id=run.id,
                number=run.number,
                precision=_precision(run.half_steps / run.steps),
                reason=(run.precision or {}).get("reason", ""),
                metric=run.primary_metric or "",
                value=_value(run.primary_value),
                published=run.published,
                decided_value=None
                if run.published is None
                else (run.metrics or {}).get(run.primary_metric or ""),
                higher_is_better=run.higher_is_better,
            )
            for run in ended
        ]


def _pair(half: Run, fp32: Run) -> RunPair:
    return RunPair(
        half_run=half.id,
        fp32_run=fp32.id,
        metric=half.primary_metric or "",
        half=_value(half.primary_value),
        fp32=_value(fp32.primary_value),
        higher_is_better=bool(half.higher_is_better),
    )


def _value(stored: float | None) -> float:
    """The number; NaN if the value was not finite, which the database holds as NULL."""
    return math.nan if stored is None else stored


def _precision(half_share: float) -> Literal["half", "fp32", "mixed"]:
    if half_share == 0:
        return "fp32"
    return "half" if half_share >= MIN_HALF_SHARE else "mixed"
