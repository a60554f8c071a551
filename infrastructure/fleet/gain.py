"""A short measurement: does it pay to train these members together?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infrastructure.agent_contract.training_job import Batch
from infrastructure.fleet.fleet import Fleet, FleetMember

WORTHWHILE = 1.05
"""A fleet must be this many times as fast as one member after the other."""

_WARM_UP_STEPS = 3  # the first ones make the optimizers' state and try the stacked products


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """Outcome of `measure_gain`.

    Attributes:
        ratio: Time of one after the other divided by that of the fleet; 1 if nothing is stacked.
        pays: Whether the ratio is at least `WORTHWHILE`.
        reason: Why, in one line.
    """

    ratio: float
    pays: bool
    reason: str


def measure_gain(
    build: Callable[[], Mapping[str, FleetMember]],
    batches: Mapping[str, Batch],
    *,
    rounds: int = 5,
    steps: int = 4,
    clock: Callable[[], float] = time.process_time,
) -> Gain:
    """Time steps of members in a fleet and one after the other, in turn; compare the medians.

    Args:
        build: Function that builds new members by name; called twice, so that no training that is
            under way is touched.
        batches: One batch of each member, used in every step.
        rounds: Timed blocks of each kind.
        steps: Steps in a block.
        clock: Function that returns seconds; by default the process's CPU time.

    Raises:
        Exception: What a member's step raised.
    """
    alone, together = build(), Fleet()
    for name, member in build().items():
        together.join(name, member)

    def step_alone() -> None:
        for name, member in alone.items():
            member.trainer.train_batch(batches[name], member.loss)

    def step_together() -> None:
        for error in together.step(batches).values():
            raise error

    for _ in range(_WARM_UP_STEPS):
        step_alone()
        step_together()
    lonely = together.alone
    if len(lonely) == len(alone):
        why = "; ".join(dict.fromkeys(lonely.values()))
        return Gain(ratio=1.0, pays=False, reason=f"no members can be trained together: {why}")
    ratio = _time_ratio(step_alone, step_together, rounds=rounds, steps=steps, clock=clock)
    stacked = len(alone) - len(lonely)
    return Gain(
        ratio=ratio,
        pays=ratio >= WORTHWHILE,
        reason=f"{stacked} of {len(alone)} members are stacked, {ratio:.2f} times as fast as one "
        f"after the other; from {WORTHWHILE} on a fleet pays",
    )


def _time_ratio(
    slower: Callable[[], None],
    faster: Callable[[], None],
    *,
    rounds: int,
    steps: int,
    clock: Callable[[], float],
) -> float:
    """Median over *rounds* of the time of *slower* divided by that of *faster*, in turn."""

    def time_block(step: Callable[[], None]) -> float:
        started = clock()
        for _ in range(steps):
            step()
        return clock() - started

    return statistics.median(time_block(slower) / time_block(faster) for _ in range(rounds))
