"""An agent that learns a recording through the door that an operator uses, without code.

Its file in ``agents.d`` names the fields, its records lie in a folder as lines of JSON, and it
trains and publishes with its defaults, as in a run of the daemon.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import structlog
import torch

from agents.replay_agent import ReplayAgent
from benchmarks.world_model.memory import PeakMemory
from benchmarks.world_model.recording import Recording
from infrastructure.agent_contract import EvaluationReport, Publication, RunContext, Transition
from infrastructure.agent_contract.run_context import Budget
from infrastructure.agent_contract.transition import TransitionSpec
from infrastructure.events import PrecisionState
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.trajectories import ReplayBuffer
from infrastructure.trajectories.schema import spec_to_json
from infrastructure.world_model import WorldModel

NAME = "measured"
_CPU = torch.device("cpu")
_FP32 = PrecisionState(requested="fp32", effective="fp32", reason="no_accelerator")


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
    agent, context = ObservedAgent(definition), _context(home, seed)
    buffer = ReplayBuffer(context.agent_folder / "replay")
    with closing(buffer):
        for transition in agent.collect(context):
            buffer.append(transition)
    with PeakMemory() as memory:
        begun = time.process_time()
        job = agent.build_job(context, buffer.read())
        result = train(
            job,
            device=_CPU,
            precision=_FP32,
            config=FP16TrainingConfig(),
            options=LoopOptions(seed=seed, checkpoint_interval_seconds=math.inf),
            folder=context.run_folder / "checkpoints",
            emit=lambda _event: None,
            commands=tuple,
            best_epoch=context.run_folder / "best-epoch.pt",
        )
        if result.evaluation is None:
            raise RuntimeError("the training ended without an evaluation")
        report = EvaluationReport(
            evaluation=result.evaluation, steps=result.steps, epochs=result.epochs
        )
        publication = agent.publish(context, job.model.eval(), report)
        seconds = time.process_time() - begun
    if agent.fitted is None:
        raise RuntimeError("the agent published without an evaluation of its model")
    return Fit(
        model=agent.fitted,
        test=agent.test,
        publication=publication,
        steps=result.steps,
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


def _context(home: Path, seed: int) -> RunContext:
    folder = home / "agents" / NAME
    run_folder = folder / "runs" / "measured"
    run_folder.mkdir(parents=True)
    return RunContext(
        run_id="measured",
        attempt=1,
        agent=NAME,
        device="cpu",
        seed=seed,
        agent_folder=folder,
        run_folder=run_folder,
        budget=Budget(seconds=3600.0, transitions=1_000_000),
        settings=None,
        logger=structlog.wrap_logger(structlog.PrintLogger(), processors=[_silence]),
        report_progress=lambda *_, **__: None,
    )


def _silence(*_: object) -> str:
    raise structlog.DropEvent
