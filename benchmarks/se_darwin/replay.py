"""Exact replay of rankings: number of executions until a ranking finds the repair.

Every single-edit candidate of a broken program is run once beforehand; replaying a ranking then
executes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from agents.se_darwin.edits import Edit
from agents.se_darwin.features import Fields, Step, StepFeatures, observe
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search.operators import revise
from agents.se_darwin.search.ranker import Ranker
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import label_outcome
from infrastructure.agent_contract import Transition


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayTask:
    """A broken program and the results of all its single-edit candidates.

    Attributes:
        name: Name of the function.
        observation: Observation fields of the broken program.
        actions: Action fields of each candidate.
        outcomes: Outcome of each candidate: one of `agents.se_darwin.features.OUTCOMES`.
        deltas: Change of the share of passed tests, by candidate.
        nodes: Number of the syntax-tree node that each candidate changes.
        repairs: Source of each candidate that passes every visible test, by position.
    """

    name: str
    observation: Fields
    actions: tuple[Fields, ...]
    outcomes: tuple[str, ...]
    deltas: tuple[float, ...] = ()
    nodes: tuple[int, ...] = ()
    repairs: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def execute(cls, sandbox: Sandbox, task: RepairTask) -> ReplayTask:
        """Run every distinct single-edit candidate of *task*."""
        no_edits = frozenset[Edit]()
        [root] = task.evaluate(sandbox, [(no_edits, task.space.source)], coverage=True)
        candidates: dict[str, Step] = {}
        for step in revise(task.space, no_edits):
            candidates.setdefault(task.space.program(step.edits), step)
        candidates.pop(task.space.source, None)
        children = task.evaluate(
            sandbox, [(step.edits, source) for source, step in candidates.items()]
        )
        features = StepFeatures(task.space, root)
        return cls(
            name=task.name,
            observation=observe(task.space, root),
            actions=tuple(features.describe(step) for step in candidates.values()),
            outcomes=tuple(label_outcome(root, child) for child in children),
            deltas=tuple(child.score - root.score for child in children),
            nodes=tuple(edit.node for step in candidates.values() for edit in step.changed),
            repairs={index: child.source for index, child in enumerate(children) if child.fixed},
        )

    @property
    def fixed(self) -> tuple[bool, ...]:
        """Whether each candidate passes every visible test."""
        return tuple(outcome == "fixed" for outcome in self.outcomes)

    def transitions(self, group: str) -> list[Transition]:
        """Return each candidate as the agent would have recorded it."""
        return [
            Transition(
                group=group,
                observation=self.observation,
                action=action,
                reward=delta,
                next_observation={"outcome": outcome, "score_delta": delta},
                terminated=outcome == "fixed",
            )
            for action, outcome, delta in zip(self.actions, self.outcomes, self.deltas, strict=True)
        ]

    def executions_in(self, order: Sequence[int]) -> int:
        """Count the candidates in *order* up to the first repair; all if there is none."""
        for executed, index in enumerate(order, 1):
            if self.outcomes[index] == "fixed":
                return executed
        return len(self.outcomes)

    def executions_to_repair(self, ranker: Ranker) -> int:
        """Return `executions_in` the order of the ranker's chances; ties keep their order."""
        chances = ranker.success_chances(self.observation, self.actions)
        return self.executions_in(sorted(range(len(chances)), key=lambda index: -chances[index]))


def mean_executions(tasks: Sequence[ReplayTask], ranker: Ranker) -> float:
    """Return the mean of `ReplayTask.executions_to_repair`."""
    return sum(task.executions_to_repair(ranker) for task in tasks) / len(tasks)


class ShuffledRanker:
    """Assigns another ranker's predictions to random candidates, which makes them useless.

    Args:
        ranker: Ranker whose predictions are shuffled.
        rng: Random generator.
    """

    def __init__(self, ranker: Ranker, rng: Random) -> None:
        self._ranker, self._rng = ranker, rng

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        """Return the chances of other candidates."""
        chances = self._ranker.success_chances(observation, actions)
        return self._rng.sample(chances, len(chances))
