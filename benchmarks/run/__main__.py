"""``python -m benchmarks.run``: what a run costs besides learning, by phase and per step."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch._dynamo

from benchmarks.measuring.machine import describe
from benchmarks.measuring.spread import Spread
from benchmarks.measuring.table import format_table, write_csv
from benchmarks.run.phases import measure_run
from benchmarks.run.subjects import AGENTS, CPU, make_context
from benchmarks.run.training import TrainingCost, measure_training
from infrastructure.trajectories import ReplayBuffer

OUTPUT = Path("benchmark_results")
_PARTS = ("batches", "evaluations", "checkpoints")
_SHARES = ("agent", "batch", "training ÷ bare steps", *_PARTS, "rest")
_PHASES = ("agent", "run", "phase", "seconds")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run each agent twice by phase, then time its training beside bare steps; print both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[32, 256])
    parser.add_argument("--steps", type=int, default=3000, help="steps of a timed training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=2, help="runs by phase, one after the other")
    parser.add_argument("--collect-seconds", type=float, default=120.0)
    parser.add_argument("--home", type=Path, help="folder of agents that have recorded before")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the CSV files")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{describe(CPU)['device']}, torch {torch.__version__}; processor seconds", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        home = options.home or Path(temporary)
        phases = [row for name in options.agents for row in _phase_rows(name, home, options)]
        shares = [row for name in options.agents for row in _share_rows(name, home, options)]
    if phases:
        write_csv(options.output / "run_phases.csv", phases, _PHASES)
    write_csv(options.output / "run_training.csv", shares, _SHARES)
    return 0


def _phase_rows(name: str, home: Path, options: argparse.Namespace) -> list[dict[str, str]]:
    rows = []
    for number in range(1, options.runs + 1):
        times = measure_run(
            name,
            home,
            f"run-{number}",
            seed=options.seed + number,
            collect_seconds=options.collect_seconds,
        )
        measured = {**times.seconds, "total": times.total}
        own = [
            {"agent": name, "run": str(number), "phase": phase, "seconds": f"{seconds:.2f}"}
            for phase, seconds in measured.items()
        ]
        print(format_table(own, _PHASES), end="\n\n", flush=True)
        rows += own
    return rows


def _share_rows(name: str, home: Path, options: argparse.Namespace) -> list[dict[str, str]]:
    rows = []
    transitions = list(ReplayBuffer(home / name / "replay").read())
    for batch_size in options.batch_sizes:
        costs = []
        for number in range(options.rounds):
            agent = AGENTS[name]()
            agent.training_steps, agent.training_passes = options.steps, options.steps
            agent.patience = None  # as many steps in every run
            agent.batch_size = batch_size
            with tempfile.TemporaryDirectory() as folder:
                context = make_context(name, Path(folder), "share", seed=number, seconds=1.0)
                job = agent.build_job(context, transitions)
                costs.append(measure_training(job, context.run_folder / "checkpoints", number))
        rows.append({"agent": name, "batch": str(batch_size), **_shares(costs)})
        print(format_table(rows[-1:], _SHARES), end="\n\n", flush=True)
    return rows


def _shares(costs: Sequence[TrainingCost]) -> dict[str, str]:
    """Medians over *costs*; the parts in shares of the bare steps."""
    ratio = Spread.of([cost.ratio for cost in costs])
    parts = {
        part: Spread.of([getattr(cost, part) / cost.bare for cost in costs]).median
        for part in _PARTS
    }
    rest = ratio.median - 1.0 - sum(parts.values())
    return {
        "training ÷ bare steps": f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})",
        **{part: f"{share:.3f}" for part, share in parts.items()},
        "rest": f"{rest:.3f}",
    }


if __name__ == "__main__":
    raise SystemExit(main())
