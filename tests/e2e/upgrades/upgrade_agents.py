"""Agents of the kept homes: small, and written so that every release since eaaba2a0 loads them.

Copied beside `quick_agent` and `stormy_agent` into a folder of its own, with the metadata that an
installer would write. No agent is due by itself, so that only the runs that were asked for happen.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from quick_agent import QuickAgent
from stormy_agent import StormyAgent

from infrastructure.agent_contract import RunContext, Schedule, TrainingJob, Transition
from infrastructure.agent_contract.transition import Box, TransitionSpec
from infrastructure.world_model import EnsembleNetwork
from infrastructure.world_model_agent import WorldModelAgent

NEVER = Schedule(every_seconds=366 * 86400.0, catch_up="none", overlap="replace")
EPISODES, LENGTH = 40, 5
SLOW, PAUSE_SECONDS = "slow", 0.05


def slowed(job: TrainingJob, context: RunContext) -> TrainingJob:
    """*job* with a pause before each batch while the file `SLOW` is in the agent's folder."""
    slow = context.agent_folder / SLOW

    def batches(epoch: int):
        for batch in job.batches(epoch):
            time.sleep(PAUSE_SECONDS if slow.exists() else 0.0)
            yield batch

    return replace(job, batches=batches)


class Quick(QuickAgent):
    """Learns a sine; a run that becomes due cancels the run before it."""

    def schedule(self) -> Schedule:
        return NEVER

    def build_job(self, context: RunContext, transitions) -> TrainingJob:
        return slowed(super().build_job(context, transitions), context)


class Stormy(StormyAgent):
    """Overflows in two steps of five, so that the guard ends FP16."""

    def schedule(self) -> Schedule:
        return NEVER


class Broken(QuickAgent):
    """Fails in every run."""

    name = "broken"

    def schedule(self) -> Schedule:
        return NEVER

    def build_job(self, context: RunContext, transitions) -> TrainingJob:
        raise RuntimeError("this agent has no data that it could train on")


class Wave(WorldModelAgent):
    """Learns a world model of two numbers; each of three runs trains longer and is better."""

    name = "wave"
    training_passes = 1_000_000
    epochs = 5
    batch_size = 32
    patience = None

    def spec(self) -> TransitionSpec:
        return TransitionSpec(observation={"x": Box()}, action={}, targets={"y": Box()})

    def schedule(self) -> Schedule:
        return NEVER

    def collect(self, context: RunContext) -> Iterator[Transition]:
        for episode in range(EPISODES):
            for place in range(LENGTH):
                x = (episode * LENGTH + place) / (EPISODES * LENGTH)
                yield Transition(
                    group=f"{context.run_id}/{episode}",
                    observation={"x": x},
                    action={},
                    next_observation={"y": math.sin(2 * math.pi * x)},
                )

    def build_model(self, shape) -> EnsembleNetwork:
        return EnsembleNetwork(shape, members=2, hidden=16)

    def build_job(self, context: RunContext, transitions) -> TrainingJob:
        runs = sum(1 for _ in transitions) // (EPISODES * LENGTH)
        self.training_steps = 160 * 2 ** (min(runs, 3) - 1)
        return slowed(super().build_job(context, transitions), context)
