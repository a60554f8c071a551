"""``casebank.jsonl``: what Genesis remembers of each task, one case per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field

from infrastructure.agent_contract.transition import Discrete, Text, Transition
from infrastructure.trajectories.genesis_records.records import (
    Record,
    Score,
    decode_line,
    distinct_state,
    outcome,
    outcome_spec,
    read_lines,
)
from infrastructure.trajectories.segments import OnSkip

SPEC = outcome_spec(
    observation={
        "state": Text(),
        "agent": Text(buckets=256),
        "had_past_cases": Discrete(values=("false", "true", "unknown")),
    },
    action={},
)

EXCLUDED_FIELDS: Mapping[str, str] = {
    "action": "written afterwards: it names the trajectory that won, or the safety verdict",
    "embedding": "a bag of the words of state and action, and so of the outcome",
    "case_id": "a hash of state and action",
    "metadata.iterations": "the search stops early when it succeeds",
    "metadata.trajectory_id": "names the generation and operator that won",
    "metadata.safe": "the verdict itself",
    "metadata.safety_score": "the reward is computed from it",
    "metadata.helpfulness_score": "the reward is computed from it",
    "metadata.should_block": "follows from the verdict",
    "metadata.timestamp": "time of writing; unique to each case",
}


class _Metadata(Record):
    agent: str = "unknown"
    had_past_cases: bool | None = None


class _Case(Record):
    state: str
    reward: Score
    metadata: _Metadata = Field(default_factory=_Metadata)


def read_casebank(path: Path, on_skip: OnSkip) -> Iterator[Transition]:
    """Read the cases in *path*, grouped by distinct state.

    Raises:
        OSError: *path* cannot be read.
    """
    return read_lines(path, decode_case, on_skip)


def decode_case(line: bytes) -> list[Transition]:
    """Decode one case.

    Raises:
        ValueError: *line* is not a case.
    """
    case = decode_line(line, _Case)
    had = case.metadata.had_past_cases
    return [
        Transition(
            group=distinct_state(case.state),
            observation={
                "state": case.state,
                "agent": case.metadata.agent,
                "had_past_cases": "unknown" if had is None else str(had).lower(),
            },
            action={},
            reward=case.reward,
            next_observation=outcome(case.reward),
            terminated=True,
        )
    ]
