"""``trajectory_pool.json``: the evolved programs of one Genesis agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from infrastructure.agent_contract.transition import Box, Discrete, Text, Transition
from infrastructure.trajectories.genesis_records.records import (
    Record,
    Score,
    describe,
    distinct_state,
    outcome,
    outcome_spec,
    read_document,
)
from infrastructure.trajectories.segments import OnSkip

OPERATORS = ("baseline", "revision", "recombination", "refinement")

SPEC = outcome_spec(
    observation={
        "problem": Text(),
        "diagnosis": Text(),
        "parents": Box(),
        "parent_score": Box(),
    },
    action={
        "operator": Discrete(values=OPERATORS),
        "strategy": Text(),
        "code": Text(buckets=4096),
    },
)

EXCLUDED_FIELDS: Mapping[str, str] = {
    "status": "the verdict itself",
    "success_score": "the target; only the score of the parents is an input",
    "test_results": "the score is computed from them",
    "metrics": "hold the score",
    "failure_reasons": "written after the run, for failures only",
    "key_insights": "written after the run",
    "assumptions_made": "written after the run",
    "reasoning_pattern": "written after the run",
    "tools_used": "written after the run",
    "modified_files": "written after the run",
    "execution_time_seconds": "only known after the run",
    "cost_dollars": "only known after the run",
    "trajectory_id": "names generation and operator; unique to each trajectory",
    "generation": "the position in a search that ends with the first success",
    "plan_id": "unique to each trajectory",
    "agent_name": "the same for the whole pool",
    "created_at": "unique to each trajectory",
}
_MARK = " for: "


class _Pooled(Record):
    success_score: Score
    operator_applied: str = "baseline"
    parent_trajectories: tuple[str, ...] = ()
    problem_diagnosis: str = ""
    proposed_strategy: str = ""
    strategy_description: str = ""
    code_changes: str = ""
    code_after: str | None = None

    @property
    def strategy(self) -> str:
        return f"{self.proposed_strategy} {self.strategy_description}".strip()


def read_trajectory_pool(path: Path, on_skip: OnSkip) -> Iterator[Transition]:
    """Read the trajectories in *path*, grouped by problem; a child has its parents' problem.

    Lineages in which no strategy names the problem (``... for: PROBLEM``) form one group per
    pool: that is coarse, but leaks nothing across the held-out split.

    Args:
        on_skip: Callback for a damaged file, and for each damaged trajectory (as line 1).

    Raises:
        OSError: *path* cannot be read.
    """
    pool = _read_pool(path, on_skip)
    for trajectory in pool.values():
        problem = _problem_of(trajectory, pool)
        scores = [
            pool[name].success_score for name in trajectory.parent_trajectories if name in pool
        ]
        yield Transition(
            group=distinct_state(problem or f"unnamed, in {path.parent.name}"),
            observation={
                "problem": problem,
                "diagnosis": trajectory.problem_diagnosis,
                "parents": float(len(trajectory.parent_trajectories)),
                "parent_score": max(scores, default=0.0),
            },
            action={
                "operator": trajectory.operator_applied,
                "strategy": trajectory.strategy,
                "code": trajectory.code_after or trajectory.code_changes,
            },
            reward=trajectory.success_score - max(scores, default=0.0),
            next_observation=outcome(trajectory.success_score),
            terminated=True,
        )


def _read_pool(path: Path, on_skip: OnSkip) -> dict[str, _Pooled]:
    document = read_document(path, on_skip)
    if document is None:
        return {}
    entries = document.get("trajectories") if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        on_skip(path, 1, "expected an object under 'trajectories' that maps names to trajectories")
        return {}
    pool = {}
    for name, entry in entries.items():
        try:
            pool[name] = _Pooled.model_validate(entry)
        except ValidationError as error:
            on_skip(path, 1, f"trajectory {name}: {describe(error)}")
    return pool


def _problem_of(trajectory: _Pooled, pool: Mapping[str, _Pooled]) -> str:
    """Return the problem that the root of the lineage names, or an empty string."""
    seen: set[str] = set()
    ancestor, parents = trajectory, list(trajectory.parent_trajectories)
    while parents:
        name = parents.pop(0)
        if name in pool and name not in seen:
            seen.add(name)
            ancestor, parents = pool[name], list(pool[name].parent_trajectories)
    return ancestor.proposed_strategy.partition(_MARK)[2].strip()
