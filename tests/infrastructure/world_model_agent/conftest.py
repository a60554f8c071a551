import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from infrastructure.agent_contract import EvaluationReport, Publication
from infrastructure.agent_contract.run_context import Budget
from infrastructure.events import PrecisionState
from infrastructure.events.command import Stop
from infrastructure.events.event import Evaluated, Notice, StepStats
from infrastructure.events.precision_state import PrecisionName
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.world_model_agent import (
    Box,
    Discrete,
    RunContext,
    Text,
    Transition,
    TransitionSpec,
    WorldModelAgent,
)
from infrastructure.world_model_agent.prior import build_prior


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class RepairAgent(WorldModelAgent):
    """Learns a planted signal: the word determines whether a high or a low number is good."""

    name = "repair"
    training_steps = 400
    epochs = 5
    batch_size = 64

    def __init__(self, groups: int = 60, seed: int = 0, shuffled: bool = False) -> None:
        self._groups, self._seed, self._shuffled = groups, seed, shuffled

    def spec(self) -> TransitionSpec:
        return TransitionSpec(
            observation={"depth": Box(), "constant": Box()},
            action={"edit": Text(buckets=64)},
            targets={"outcome": Discrete(values=("worse", "fixed")), "reward": Box()},
            success=("outcome", "fixed"),
        )

    def collect(self, context: RunContext) -> Iterator[Transition]:
        generator = random.Random(self._seed)
        rows = []
        for number in range(self._groups * 20):
            depth, word = generator.gauss(0, 1), generator.choice(["swap", "drop", "add"])
            sign = 1 if word == "swap" else -1  # a linear model cannot learn this
            score = 2 * sign * depth + (word == "swap") - 0.5 + generator.gauss(0, 0.3)
            rows.append([f"task-{number // 20}", depth, word, score])
        if self._shuffled:
            scores = [row[3] for row in rows]
            generator.shuffle(scores)
            rows = [[*row[:3], score] for row, score in zip(rows, scores, strict=True)]
        for group, depth, word, score in rows:
            yield Transition(
                group=group,
                observation={"depth": depth, "constant": 1.0},
                action={"edit": f"{word} the line"},
                reward=score,
                next_observation={"outcome": "fixed" if score > 0 else "worse"},
            )


class RecordingLogger:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    warning = info


@pytest.fixture
def repair_agent():
    return RepairAgent


def _context(folder: Path, run: str, seed: int = 0) -> RunContext:
    for name in ("agent", run):
        (folder / name).mkdir(exist_ok=True)
    return RunContext(
        run_id=run,
        attempt=1,
        agent="repair",
        device="cpu",
        seed=seed,
        agent_folder=folder / "agent",
        run_folder=folder / run,
        budget=Budget(seconds=10, transitions=10_000),
        settings=None,
        logger=RecordingLogger(),
        report_progress=lambda *_, **__: None,
    )


def _run(
    agent: WorldModelAgent,
    context: RunContext,
    stop_after: int | None = None,
    precision: PrecisionName = "fp32",
) -> Publication | None:
    epochs = []

    def emit(event):
        if isinstance(event, Evaluated):
            epochs.append(event)
        elif isinstance(event, Notice):
            context.logger.lines.append((event.event, event.fields))
        elif isinstance(event, StepStats):
            assert event.precision == precision

    def commands():
        stop = stop_after is not None and len(epochs) >= stop_after
        return [Stop(reason="test")] if stop else []

    job = agent.build_job(context, list(agent.collect(context)))
    result = train(
        job,
        device=torch.device("cpu"),
        precision=PrecisionState(requested=precision, effective=precision, reason="default"),
        config=FP16TrainingConfig(cpu_half=True, loss_scale=1024.0),
        options=LoopOptions(seed=context.seed),
        folder=Path(context.run_folder) / "checkpoints",
        emit=emit,
        commands=commands,
        best_epoch=Path(context.run_folder) / "best-epoch.pt",
    )
    if result.outcome == "stopped":
        return None
    report = EvaluationReport(
        evaluation=result.evaluation, steps=result.steps, epochs=result.epochs
    )
    return agent.publish(context, job.model, report)


@pytest.fixture
def make_context(tmp_path):
    def make(run: str = "run-1", seed: int = 0) -> RunContext:
        return _context(tmp_path, run, seed)

    return make


@pytest.fixture
def run_once():
    """Build, train and publish as the worker does; stop after *stop_after* epochs if given."""
    return _run


@pytest.fixture(scope="session")
def _first_run(tmp_path_factory):
    """Folder and publication of one run of `RepairAgent`, for all tests that begin with it."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("first-run")
    return folder, _run(RepairAgent(), _context(folder, "run-1"))


@pytest.fixture
def first_publication(_first_run, tmp_path):
    """Publication of a first run, whose published model lies in this test's agent folder."""
    folder, publication = _first_run
    shutil.copytree(folder / "agent", tmp_path / "agent")
    return publication


@pytest.fixture(scope="session")
def repair_data(tmp_path_factory):
    """Spec and transitions of `RepairAgent`, for tests of the prior."""
    agent = RepairAgent(groups=40)
    context = _context(tmp_path_factory.mktemp("repair-data"), "run")
    return agent.spec(), list(agent.collect(context))


@pytest.fixture(scope="session")
def repair_prior(repair_data, tmp_path_factory):
    """Folder of a prior that has learned `repair_data`; not to be changed."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("repair-prior")
    spec, transitions = repair_data
    build_prior(folder, spec, transitions, epochs=16, seed=0, command="make it", notes={})
    return folder
