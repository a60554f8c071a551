"""An agent that trains on more transitions than stay in memory."""

import random
import signal
import subprocess
import sys
from contextlib import closing

import pytest
import torch

from infrastructure.agent_contract.run_context import ROWS_FOLDER
from infrastructure.agent_contract.transition import Transition
from infrastructure.trajectories import ReplayBuffer

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forked")]  # trains for seconds

_PROGRAM = '''
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace

import torch

from infrastructure.agent_contract import RunContext
from infrastructure.agent_contract.run_context import Budget
from infrastructure.agent_contract.transition import Box, Text, TransitionSpec
from infrastructure.events import PrecisionState
from infrastructure.events.command import SaveCheckpoint
from infrastructure.events.event import CheckpointSaved
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.trajectories import ReplayBuffer
from infrastructure.world_model.fitting import large_data
from infrastructure.world_model_agent import WorldModelAgent

large_data.IN_MEMORY_ROWS = 500
torch.set_num_threads(1)

class LargeAgent(WorldModelAgent):
    name, training_steps, epochs, batch_size = "large", 60, 3, 64
    patience, newest_transitions = None, 1 << 40

    def spec(self):
        return TransitionSpec(
            observation={"x": Box(shape=(2,))},
            action={"word": Text(buckets=64)},
            targets={"reward": Box()},
        )

    def collect(self, context):
        return iter(())

def context_of(folder, run):
    ignore = lambda *_, **__: None
    (folder / run).mkdir(exist_ok=True)
    return RunContext(
        run_id=run, attempt=1, agent="large", device="cpu", seed=3,
        agent_folder=folder, run_folder=folder / run,
        budget=Budget(seconds=1, transitions=1), settings=None,
        logger=SimpleNamespace(info=ignore, warning=ignore), report_progress=ignore,
    )

def run(folder, name, killed_at=None):
    """Train as an attempt does; it is killed after the checkpoint of the step *killed_at*."""
    context, steps = context_of(folder, name), 0
    agent = LargeAgent()
    job = agent.build_job(context, ReplayBuffer(folder / "replay").read())

    def emit(event):
        if killed_at is not None and isinstance(event, CheckpointSaved) and event.step >= killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def commands():
        nonlocal steps
        steps += 1
        return [SaveCheckpoint()] if steps == killed_at else []

    result = train(
        job,
        device=torch.device("cpu"),
        precision=PrecisionState(requested="fp32", effective="fp32", reason="default"),
        config=FP16TrainingConfig(),
        options=LoopOptions(seed=3, checkpoint_interval_seconds=float("inf")),
        folder=context.run_folder / "checkpoints",
        emit=emit,
        commands=commands,
        best_epoch=context.run_folder / "best.pt",
    )
    return agent, context, job, result
'''


@pytest.fixture
def folder(tmp_path):
    """Folder of an agent that has recorded 3,000 transitions."""
    generator = random.Random(0)
    with closing(ReplayBuffer(tmp_path / "replay")) as buffer:
        for number in range(3000):
            x, word = (generator.gauss(0, 1), generator.gauss(2, 3)), generator.choice("abc")
            buffer.append(
                Transition(
                    group=f"g{number // 20}",
                    observation={"x": x},
                    action={"word": word},
                    reward=x[0] * (word == "a") + generator.gauss(0, 0.1),
                )
            )
    return tmp_path


def _attempt(folder, body):
    program = f"{_PROGRAM}\nfolder = Path(sys.argv[1])\n{body}\n"
    return subprocess.run(
        [sys.executable, "-P", "-c", program, str(folder)], check=False
    ).returncode


_SAVE = """
torch.save(job.model.state_dict(), folder / f"{context.run_id}.pt")
"""


def test_an_attempt_killed_within_an_epoch_is_resumed_to_the_same_weights(folder):
    whole = "agent, context, job, result = run(folder, 'whole')" + _SAVE
    assert _attempt(folder, whole) == 0
    assert _attempt(folder, "run(folder, 'killed', killed_at=27)") == -signal.SIGKILL
    header = folder / "killed" / ROWS_FOLDER / "header.json"
    built = header.stat()
    resumed = "agent, context, job, result = run(folder, 'killed')\nassert result.steps == 60"
    assert _attempt(folder, resumed + _SAVE) == 0
    assert header.stat() == built
    one, other = (torch.load(folder / f"{name}.pt") for name in ("whole", "killed"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_that_has_decided_removes_its_encoded_rows(folder):
    body = """
agent, context, job, result = run(folder, "run")
assert (context.run_folder / "encoded-rows").is_dir()
from infrastructure.agent_contract import EvaluationReport
report = EvaluationReport(evaluation=result.evaluation, steps=result.steps, epochs=result.epochs)
publication = agent.publish(context, job.model.eval(), report)
assert publication.published, publication.reason
assert not (context.run_folder / "encoded-rows").exists()
assert agent.published_model(context) is not None
"""
    assert _attempt(folder, body) == 0


def test_few_transitions_stay_in_memory(folder):
    body = """
large_data.IN_MEMORY_ROWS = 3000
context = context_of(folder, "run")
LargeAgent().build_job(context, ReplayBuffer(folder / "replay").read())
assert not (context.run_folder / "encoded-rows").exists()
"""
    assert _attempt(folder, body) == 0
