"""``casebank.jsonl``: what Genesis remembers of each task, one case a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    Text,
    Transition,
    TransitionSpec,
)
from infrastructure.trajectories.genesis_records.reading import (
    OnSkip,
    Score,
    distinct_state,
    read_lines,
)

SUCCESS_REWARD = 0.7
"""Genesis' own threshold."""

SPEC = TransitionSpec(
    observation={
        "state": Text(),
        "agent": Text(buckets=256),
        "had_past_cases": Discrete(values=("false", "true", "unknown")),
    },
    action={},
    targets={"success": Discrete(values=("false", "true")), "score": Box()},
    success=("success", "true"),
    improvement="score",
)

LEFT_OUT: Mapping[str, str] = {
    "action": "written afterwards: it names the trajectory that won, or the verdict on safety",
    "embedding": "a bag of the words of state and action, and so of the outcome",
    "case_id": "a hash of state and action",
    "metadata.iterations": "the search stops early when it succeeds",
    "metadata.trajectory_id": "names the generation and operator that won",
    "metadata.safe": "the verdict itself",
    "metadata.safety_score": "the reward is computed from it",
    "metadata.helpfulness_score": "the reward is computed from it",
    "metadata.should_block": "follows from the verdict",
    "metadata.timestamp": "when it was written down; no later case has the same",
}


class _Metadata(BaseModel):
    model_config = ConfigDict(extra="ignore")
    agent: str = "unknown"
    had_past_cases: bool | None = None


class _Case(BaseModel):
    model_config = ConfigDict(extra="ignore")
    state: str
    reward: Score
    metadata: _Metadata = Field(default_factory=_Metadata)


def read_casebank(path: Path, on_skip: OnSkip) -> Iterator[Transition]:
    """The cases in *path*, grouped by distinct state.

    Args:
        path: JSON lines.
        on_skip: Told of each damaged line.

    Raises:
        OSError: *path* cannot be read.
    """
    for case in read_lines(path, _Case, on_skip):
        had = case.metadata.had_past_cases
        yield Transition(
            group=distinct_state(case.state),
            observation={
                "state": case.state,
                "agent": case.metadata.agent,
                "had_past_cases": "unknown" if had is None else str(had).lower(),
            },
            action={},
            reward=case.reward,
            next_observation={"success": case.reward >= SUCCESS_REWARD, "score": case.reward},
            terminated=True,
        )
