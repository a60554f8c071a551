"""The time line: runs and rollbacks of all agents as bars and marks on one scale."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from genesis_fp16.api.page.formatting import clock, tone
from genesis_fp16.store.timeline import RollbackAt, RunSpan

WIDTH = 1000.0  # of a row, in units of its drawing
TICKS = 5
_LEAST_WIDTH = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """Runs of one tone that follow each other without a visible gap; *x* and *width* in units."""

    x: float
    width: float
    tone: str
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A rollback to FP32."""

    x: float
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """The row of an agent; *summary* tells in words what its drawing shows."""

    agent: str
    bars: Sequence[Bar]
    marks: Sequence[Mark]
    summary: str


def ticks(since: float, until: float) -> list[float]:
    """Moments in Unix seconds that label the scale, its ends included."""
    return [since + (until - since) * n / (TICKS - 1) for n in range(TICKS)]


def draw(
    agents: Sequence[str],
    runs: Sequence[RunSpan],
    rollbacks: Sequence[RollbackAt],
    since: float,
    until: float,
) -> list[Line]:
    """A row for each of *agents*; times are in Unix seconds, *runs* in order of their starts."""
    runs_of, rollbacks_of = (
        defaultdict[str, list[RunSpan]](list),
        defaultdict[str, list[RollbackAt]](list),
    )
    for run in runs:
        runs_of[run.agent].append(run)
    for rollback in rollbacks:
        for agent in [rollback.agent] if rollback.agent is not None else agents:
            rollbacks_of[agent].append(rollback)
    return [
        Line(
            agent=agent,
            bars=_bars(runs_of[agent], since, until),
            marks=[
                Mark(
                    x=_x(rollback.at, since, until),
                    title=f"{clock(rollback.at)}: FP32 by {rollback.by}: {rollback.reason}",
                )
                for rollback in rollbacks_of[agent]
            ],
            summary=_summary(runs_of[agent], len(rollbacks_of[agent])),
        )
        for agent in agents
    ]


def _bars(runs: Sequence[RunSpan], since: float, until: float) -> list[Bar]:
    bars: list[Bar] = []
    for run in runs:
        begin = _x(run.started_at, since, until)
        end = _x(until if run.finished_at is None else run.finished_at, since, until)
        width, shade = max(end - begin, _LEAST_WIDTH), tone(run.state)
        shade = shade if shade in ("good", "bad", "busy") else "off"
        title = f"#{run.number} {str(run.state).replace('_', ' ')}, {clock(run.started_at)}"
        last = bars[-1] if bars else None
        if last is not None and last.tone == shade and begin <= last.x + last.width:
            reach = max(last.x + last.width, begin + width) - last.x
            first = last.title.partition(" to ")[0]
            bars[-1] = Bar(x=last.x, width=reach, tone=shade, title=f"{first} to {title}")
        else:
            bars.append(Bar(x=begin, width=width, tone=shade, title=title))
    return bars


def _x(at: float, since: float, until: float) -> float:
    return WIDTH * min(max((at - since) / (until - since), 0.0), 1.0)


def _summary(runs: Sequence[RunSpan], rollbacks: int) -> str:
    if not runs and not rollbacks:
        return "no run"
    counted = Counter(str(run.state).replace("_", " ") for run in runs)
    parts = [f"{count} {state}" for state, count in counted.most_common()]
    if rollbacks:
        parts.append(f"{rollbacks} rollback{'' if rollbacks == 1 else 's'} to FP32")
    return ", ".join(parts)
