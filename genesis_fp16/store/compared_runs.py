"""Held-out metrics of finished runs, in half precision and in FP32, to be compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Engine, func, select

from genesis_fp16.domain.guard import RunPair
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.store.database import reading
from genesis_fp16.store.row_reader import RowReader, is_number
from genesis_fp16.store.schema import runs

MOSTLY = 0.9  # share of its steps that a run in half precision must have made in it


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Attributes:
    run_id, number: Of the run.
    precision: What it trained in; ``mixed`` where that changed on the way.
    reason: The voice that decided last.
    metric, value: Its primary held-out metric; NaN where that was not finite.
    higher_is_better: Which way it counts; None where the run did not say.
    """

    run_id: str
    number: int
    precision: Literal["half", "fp32", "mixed"]
    reason: str
    metric: str
    value: float
    higher_is_better: bool | None


class ComparedRuns:
    """Reads what runs had to show; a run that changed its precision stands for none.

    Args:
        engine: A migrated database.
        as_runs: Reads runs, and leaves out those that cannot be read.
    """

    def __init__(self, engine: Engine, as_runs: RowReader[Run]) -> None:
        self._engine = engine
        self._as_runs = as_runs

    def pairs(self, agent: str, since: float = 0.0) -> list[RunPair]:
        """Runs of *agent* in half precision beside their FP32 twins, oldest first.

        Args:
            agent: Whose runs.
            since: Unix time; pairs whose half run began earlier are left out.
        """
        half, twin = runs.alias("half"), runs.alias("twin")
        found = (
            half.join(twin, twin.c.baseline_of == half.c.id),
            (
                half.c.agent == agent,
                half.c.started_at >= since,
                half.c.state == RunState.SUCCEEDED.value,
                twin.c.state == RunState.SUCCEEDED.value,
                half.c.primary_metric == twin.c.primary_metric,
                twin.c.primary_value.is_not(None),
                half.c.higher_is_better.is_not(None),
                half.c.half_steps >= MOSTLY * half.c.steps,
                half.c.half_steps > 0,
                twin.c.half_steps == 0,
            ),
        )
        with reading(self._engine) as connection:
            halves, twins = (
                connection.execute(
                    select(side)
                    .select_from(found[0])
                    .where(*found[1])
                    .order_by(twin.c.finished_at, twin.c.id)
                ).mappings()
                for side in (half, twin)
            )
            both = [
                (self._as_runs.one(a), self._as_runs.one(b))
                for a, b in zip(halves, twins, strict=True)
            ]
        return [_pair(half, twin) for half, twin in both if half is not None and twin is not None]

    def untwinned(self, agent: str) -> int:
        """How many runs of *agent* in half precision succeeded since it last got a twin."""
        twins = select(func.max(runs.c.created_at)).where(
            runs.c.agent == agent, runs.c.baseline_of.is_not(None), is_number(runs.c.created_at)
        )
        query = select(func.count()).where(
            runs.c.agent == agent,
            runs.c.baseline_of.is_(None),
            runs.c.state == RunState.SUCCEEDED.value,
            runs.c.half_steps >= MOSTLY * runs.c.steps,
            runs.c.half_steps > 0,
            runs.c.finished_at > func.coalesce(twins.scalar_subquery(), 0.0),
        )
        with reading(self._engine) as connection:
            return connection.scalar(query) or 0

    def outcomes(self, agent: str, limit: int = 200) -> list[Outcome]:
        """What the newest successful runs of *agent* had to show, newest first."""
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
        with reading(self._engine) as connection:
            found = self._as_runs(connection.execute(query).mappings())
        return [
            Outcome(
                run_id=run.id,
                number=run.number,
                precision=_precision(run.half_steps / run.steps),
                reason=(run.precision or {}).get("reason", ""),
                metric=run.primary_metric or "",
                value=_value(run.primary_value),
                higher_is_better=run.higher_is_better,
            )
            for run in found
        ]


def _pair(half: Run, twin: Run) -> RunPair:
    return RunPair(
        half_run=half.id,
        fp32_run=twin.id,
        metric=half.primary_metric or "",
        half=_value(half.primary_value),
        fp32=_value(twin.primary_value),
        higher_is_better=bool(half.higher_is_better),
    )


def _value(stored: float | None) -> float:
    """The number; NaN where it was none that a database holds."""
    return math.nan if stored is None else stored


def _precision(half_share: float) -> Literal["half", "fp32", "mixed"]:
    if half_share == 0:
        return "fp32"
    return "half" if half_share >= MOSTLY else "mixed"
