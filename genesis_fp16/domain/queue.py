"""The queue: in which order runs start, and when each is likely to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from genesis_fp16.domain.run import Run

FORECAST_RUNS = 200  # the first of the queue; a forecast of more would be a guess


def in_turn(
    runs: Iterable[Run], priority: Callable[[str], int], last_started: Mapping[str, float]
) -> list[Run]:
    """*runs* in the order in which they start.

    First those that an operator has moved to the front, then those of the agents with the highest
    priority. Among equals the one goes first that has waited longest since it was due or since
    another run of its agent began: an agent with many runs takes turns with the others. A run that
    has begun before, and is repeated or goes on, counts from when it was due.

    Args:
        runs: Queued runs.
        priority: Priority of an agent.
        last_started: Agent to the start of its newest attempt in Unix seconds.
    """

    def turn(run: Run) -> tuple[float | str, ...]:
        served_at = last_started.get(run.agent, -math.inf) if run.started_at is None else -math.inf
        waits_since = max(run.due_at, served_at)
        return (run.position, -priority(run.agent), waits_since, run.due_at, run.created_at, run.id)

    return sorted(runs, key=turn)


def forecast(  # the state of the queue
    runs: Sequence[Run],
    ready_at: Mapping[str, float],
    busy_until: Mapping[str, float],
    typical: Mapping[str, float],
    free_slots: int,
    now: float,
) -> dict[str, float]:
    """When each of *runs* is likely to start: id to Unix seconds, without those not known.

    Args:
        runs: Queued runs, in the order in which they start.
        ready_at: Id to the moment before which the run may not start; without runs that wait for
            a person, such as those of paused agents.
        busy_until: Agent with a run under way to its likely end; infinite if that is not known.
        typical: Agent to the seconds that its runs usually take.
        free_slots: Slots that are free now.
        now: Unix seconds.
    """
    starts: dict[str, float] = {}
    agent_free = dict(busy_until)
    slots = sorted([now] * free_slots + list(busy_until.values()))
    waiting = [run for run in runs[:FORECAST_RUNS] if run.id in ready_at]
    while waiting and slots and math.isfinite(slots[0]):
        begins = [
            max(slots[0], ready_at[run.id], agent_free.get(run.agent, now)) for run in waiting
        ]
        begin = min(begins)
        if not math.isfinite(begin):
            break
        run = waiting.pop(begins.index(begin))  # the first in turn that can begin then
        starts[run.id] = begin
        agent_free[run.agent] = begin + typical.get(run.agent, math.inf)
        slots = sorted([*slots[1:], agent_free[run.agent]])
    return starts
