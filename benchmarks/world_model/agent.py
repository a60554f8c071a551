"""An agent that learns a recording through the door that an operator uses, without code.

Its file in ``agents.d`` names the fields, its records lie in a folder as lines of JSON, and it
trains and publishes with its defaults, as in a run of the daemon.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from agents.replay_agent import ReplayAgent
from benchmarks.measuring.agent_run import run_context, train_and_publish
from benchmarks.world_model.memory import PeakMemory
from benchmarks.world_model.recording import Recording
from infrastructure.agent_contract import Publication, Transition
from infrastructure.agent_contract.transition import TransitionSpec
from infrastructure.trajectories import ReplayBuffer
from infrastructure.trajectories.schema import spec_to_json
from infrastructure.world_model import WorldModel

NAME = "measured"


class ObservedAgent(ReplayAgent):
    """Keeps the model that a run fits, whether or not the gate lets it be published."""

    fitted: WorldModel | None = None
    test: Sequence[Transition] = ()

    def evaluate(self, model: WorldModel, transitions: Sequence[Transition]) -> Mapping[str, float]:
        """Keep *model* and its test transitions."""
        self.fitted, self.test = model, list(transitions)
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What a run fitted.

    Attributes:
        model: The best candidate of the run.
        test: Transitions of the test groups.
        publication: Decision of the gate.
        steps: Optimizer steps.
        seconds: CPU time from the encoding of the records to the gate's decision.
        mebibytes: Growth of the resident memory in that time, at most; NaN where the kernel does
            not tell.
    """

    model: WorldModel
    test: Sequence[Transition]
    publication: Publication
    steps: int
    seconds: float
    mebibytes: float


def fit(home: Path, recording: Recording, seed: int) -> Fit:
    """Record, train and publish in a new *home*, as the daemon's worker does."""
    definition = home / "agents.d" / f"{NAME}.toml"
    definition.parent.mkdir(parents=True)
    definition.write_text(define(recording.spec))
    records = home / "records" / NAME / "records.jsonl"
    records.parent.mkdir(parents=True)
    with records.open("w") as file:
        file.writelines(map(_line, count(), recording.transitions))
    agent, context = (
        ObservedAgent(definition),
        run_context(NAME, home / "agents" / NAME, "measured", seed),
    )
    buffer = ReplayBuffer(context.agent_folder / "replay")
    with closing(buffer):
        for transition in agent.collect(context):
            buffer.append(transition)
    with PeakMemory() as memory:
        begun = time.process_time()
        publication, steps = train_and_publish(agent, context, buffer)
        seconds = time.process_time() - begun
    if agent.fitted is None:
        raise RuntimeError("the agent published without an evaluation of its model")
    return Fit(
        model=agent.fitted,
        test=agent.test,
        publication=publication,
        steps=steps,
        seconds=seconds,
        mebibytes=memory.mebibytes,
    )


def define(spec: TransitionSpec) -> str:
    """The agent's file, in TOML."""
    lines = ["[source]", f'path = "records/{NAME}"']
    parts = spec_to_json(spec)
    for part in ("observation", "action", "targets"):
        lines += ["", f"[spec.{part}]"]
        fields = parts[part]
        if not isinstance(fields, dict):
            raise TypeError(f"the fields of {part} must be a table")
        for name, field in fields.items():
            entries = ", ".join(f"{key} = {json.dumps(value)}" for key, value in field.items())
            lines.append(f"{json.dumps(name)} = {{ {entries} }}")
    return "\n".join((*lines, ""))


def _line(number: int, transition: Transition) -> str:
    record = {
        "id": str(number),  # without it, a record that repeats another one is left out
        "group": transition.group,
        "observation": dict(transition.observation),
        "action": dict(transition.action),
        "reward": transition.reward,
        "next_observation": dict(transition.next_observation),
        "terminated": transition.terminated,
    }
    return json.dumps(record) + "\n"
