"""What is measured, each in a process of its own, so that its peak memory is its own."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from benchmarks.data_scale.agent import SyntheticAgent, generate
from benchmarks.run.subjects import CPU, PRECISION, loop_options, make_context
from infrastructure.agent_contract import EvaluationReport
from infrastructure.agent_contract.run_context import ROWS_FOLDER
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import train
from infrastructure.trajectories import ReplayBuffer
from infrastructure.trajectories.compaction import compact
from infrastructure.world_model.fitting.batches import Batches, BatchStream, MappedBatches
from infrastructure.world_model.fitting.large_data import LargeDataSource, prepare_large_data
from infrastructure.world_model.fitting.training_data import TrainingData

_BATCH = 256
_ROUNDS = 7
Measured = dict[str, float]


def record(home: Path, rows: int) -> Measured:
    """Record synthetic transitions through the replay buffer, in ten segments."""
    begun, transitions = time.perf_counter(), generate(rows)
    buffer = ReplayBuffer(home / "synthetic" / "replay")
    for _ in range(10):
        with closing(buffer):
            for transition in islice(transitions, -(-rows // 10)):
                buffer.append(transition)
    return {"seconds": time.perf_counter() - begun}


def run(home: Path, rows: int, steps: int = 500) -> Measured:
    """Encode, train and decide, as a run does after collecting, with the given steps."""
    context = make_context("synthetic", home, "run", seed=0, seconds=1.0)
    agent, begun = SyntheticAgent(rows, steps), time.perf_counter()
    view = ReplayBuffer(context.agent_folder / "replay").read()
    job = agent.build_job(context, view)
    encoded, encoding_peak = time.perf_counter(), _peak()
    kept = context.run_folder / ROWS_FOLDER  # a decision removes it
    if kept.is_dir():
        shutil.copytree(kept, home / "rows", copy_function=os.link)
    result = train(
        job,
        device=CPU,
        precision=PRECISION,
        config=FP16TrainingConfig(),
        options=loop_options(0),
        folder=context.run_folder / "checkpoints",
        emit=lambda _event: None,
        commands=lambda: (),
        best_epoch=context.run_folder / "best.pt",
    )
    if result.evaluation is None:
        raise RuntimeError("the training was not evaluated")
    trained = time.perf_counter()
    report = EvaluationReport(
        evaluation=result.evaluation, steps=result.steps, epochs=result.epochs
    )
    publication = agent.publish(context, job.model.eval(), report)
    return {
        "encode_seconds": encoded - begun,
        "encode_peak_gib": encoding_peak,
        "train_seconds": trained - encoded,
        "publish_seconds": time.perf_counter() - trained,
        "published": float(publication.published),
        "nll_skill": publication.metrics["nll_skill"],
    }


def compact_all(home: Path, rows: int) -> Measured:
    """Move a copy of the segments to Parquet, and read it."""
    replay, copied = home / "synthetic" / "replay", home / "compacted" / "replay"
    shutil.copytree(replay, copied, copy_function=os.link)
    begun, before = time.perf_counter(), 0
    size = sum(path.stat().st_size for path in copied.iterdir())
    while (done := compact(copied, smallest=0, largest=1 << 40)) is not None:
        before += done.bytes_before
    compacted = time.perf_counter()
    parquet = sum(path.stat().st_size for path in copied.iterdir())
    read = sum(1 for _ in ReplayBuffer(copied).read())
    if (before, read) != (size, rows):
        raise RuntimeError(f"{before} of {size} bytes were compacted, {read} rows are left")
    return {
        "rows_per_second": rows / (compacted - begun),
        "read_rows_per_second": rows / (time.perf_counter() - compacted),
        "json_bytes_per_row": size / rows,
        "parquet_bytes_per_row": parquet / rows,
    }


def reopen(home: Path, rows: int) -> Measured:
    """Open the encoded rows as a further attempt does; few rows are encoded first."""
    if not (home / "rows").is_dir():
        _prepare(home, rows)
    begun = time.perf_counter()
    _prepare(home, rows)
    return {"seconds": time.perf_counter() - begun}


def speed(home: Path, rows: int) -> Measured:
    """Samples a second of batches from mapped files beside those of tensors in memory."""
    data = _prepare(home, rows)
    mapped = data.mapped
    if mapped is None:
        raise RuntimeError("the rows are not mapped")
    count = len(mapped)
    features, targets = mapped.read([(0, count)])
    part = replace(data.train, features=features, targets=targets)
    steps = max(1, min(20_000, 2 * count // _BATCH))
    streams: dict[str, Batches] = {
        "memory": BatchStream(part=part, batch_size=_BATCH, steps_per_epoch=steps, seed=0),
        "mapped": MappedBatches(mapped, batch_size=_BATCH, steps_per_epoch=steps, seed=0),
    }
    rates: dict[str, list[float]] = {name: [] for name in streams}
    for epoch in range(_ROUNDS):
        for name, stream in streams.items():
            batches = iter(stream.epoch(epoch))
            next(batches)  # shuffles
            begun = time.perf_counter()
            taken = sum(len(batch["dense"]) for batch in batches)
            rates[name].append(taken / (time.perf_counter() - begun))
    shares = [one / other for one, other in zip(rates["mapped"], rates["memory"], strict=True)]
    return {
        "row_bytes": mapped.row_bytes,
        **{f"{name}_samples_per_second": statistics.median(each) for name, each in rates.items()},
        "share": statistics.median(shares),
    }


STEPS: Mapping[str, Callable[[Path, int], Measured]] = {
    "record": record,
    "run": run,
    "reopen": reopen,
    "speed": speed,
    "compact": compact_all,
}


def measure(step: str, home: Path, rows: int) -> Measured:
    """Do one of `STEPS` with one thread; adds the peak memory of this process."""
    with _one_thread():
        return STEPS[step](home, rows) | {"peak_gib": _peak()}


def _prepare(home: Path, rows: int) -> TrainingData:
    spec = SyntheticAgent(rows, 1).spec()
    view = ReplayBuffer(home / "synthetic" / "replay").read()
    source = LargeDataSource(transitions=view, newest=rows)
    return prepare_large_data(spec, source, home / "rows")[0]


def _peak() -> float:
    """Highest resident memory of this process, in GiB; mapped pages count."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
