"""Real paired runs: the same agent, data and seed, trained in a half precision and in FP32."""

from __future__ import annotations

import csv
import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path

import structlog
import torch
from pydantic import TypeAdapter

from genesis_fp16.domain.guard import RunPair
from infrastructure.agent_contract import RunContext, Transition
from infrastructure.agent_contract.run_context import Budget
from infrastructure.events import PrecisionName, PrecisionState
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.world_model_agent import WorldModelAgent


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPair:
    """Primary held-out metric of a run in half precision and of its repetition in FP32.

    Attributes:
        agent, metric: Name of the agent and of its primary metric; higher is better.
        precision: The half precision.
        seed: Seed of data and training.
        half, fp32: Values of the metric.
        half_seconds, fp32_seconds: Time of each training.
    """

    agent: str
    metric: str
    precision: str
    seed: int
    half: float
    fp32: float
    half_seconds: float
    fp32_seconds: float

    @property
    def pair(self) -> RunPair:
        """The pair as the guard sees it."""
        return RunPair(
            half_run="half",
            fp32_run="fp32",
            metric=self.metric,
            half=self.half,
            fp32=self.fp32,
            higher_is_better=True,
        )


_PAIR: TypeAdapter[MeasuredPair] = TypeAdapter(MeasuredPair)


def measure_pairs(
    agent_class: type[WorldModelAgent],
    seeds: Iterable[int],
    *,
    precision: PrecisionName,
    transitions: int,
    steps: int,
) -> Iterator[MeasuredPair]:
    """Collect once for each seed, then train twice; every model begins with the same weights."""
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="genesis-pairs-") as name:
            folder = Path(name)
            collected = list(_collect(agent_class(), _context(folder, seed, transitions)))
            values, seconds, metric = [], [], ""
            precisions: tuple[PrecisionName, ...] = (precision, "fp32")
            for each in precisions:
                agent = agent_class()
                agent.training_steps, agent.epochs = steps, 4
                begun = time.monotonic()
                metric, value = _train(
                    agent, _context(folder / each, seed, transitions), collected, each
                )
                values.append(value)
                seconds.append(time.monotonic() - begun)
        yield MeasuredPair(
            agent=agent_class.name,
            metric=metric,
            precision=precision,
            seed=seed,
            half=values[0],
            fp32=values[1],
            half_seconds=round(seconds[0], 2),
            fp32_seconds=round(seconds[1], 2),
        )


def _collect(agent: WorldModelAgent, context: RunContext) -> Iterator[Transition]:
    return islice(agent.collect(context), context.budget.transitions)


def _context(folder: Path, seed: int, transitions: int) -> RunContext:
    for name in ("agent", "run"):
        (folder / name).mkdir(parents=True)
    return RunContext(
        run_id=f"run-{seed}",
        attempt=1,
        agent="measured",
        device="cpu",
        seed=seed,
        agent_folder=folder / "agent",
        run_folder=folder / "run",
        budget=Budget(seconds=600.0, transitions=transitions),
        settings=None,
        logger=structlog.wrap_logger(structlog.ReturnLogger()),
        report_progress=lambda *_, **__: None,
    )


def _train(
    agent: WorldModelAgent,
    context: RunContext,
    collected: Sequence[Transition],
    precision: PrecisionName,
) -> tuple[str, float]:
    torch.manual_seed(context.seed)
    job = agent.build_job(context, collected)
    result = train(
        job,
        device=torch.device("cpu"),
        precision=PrecisionState(requested=precision, effective=precision, reason="default"),
        config=FP16TrainingConfig(cpu_half=True),
        options=LoopOptions(seed=context.seed, checkpoint_interval_seconds=math.inf),
        folder=context.run_folder / "checkpoints",
        emit=lambda _event: None,
        commands=lambda: (),
    )
    if result.evaluation is None:
        raise RuntimeError("the training ended without an evaluation")
    return result.evaluation.primary, result.evaluation.value


def write_pairs(path: Path, pairs: Iterable[MeasuredPair]) -> None:
    """Write *pairs* as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(MeasuredPair)])
        writer.writeheader()
        writer.writerows(asdict(pair) for pair in pairs)


def read_pairs(path: Path) -> list[MeasuredPair]:
    """Read what `write_pairs` wrote."""
    with path.open(newline="") as file:
        return [_PAIR.validate_python(row) for row in csv.DictReader(file)]
