"""``python -m benchmarks.agents``: all eighteen agents in one table, and the cost of a round.

``table`` trains every agent in each precision, and steps them all in one fleet. ``round`` runs the
fifteen business agents once: with a cold worker each, and in one process. What it has measured is
kept below ``--output``, so ``--only`` can measure a few agents at a time, and the last call all.
``tuning`` changes one option of the training at a time.

The records of the fifteen, and those of the WaltzRL pair, are generated; see
``benchmarks/agents/records.py``. SE-Darwin collects its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import structlog
import torch

from agents.se_darwin.sandbox import SandboxUnavailableError
from agents.se_darwin_agent import SEDarwinAgent
from benchmarks.agents.round import COLD, THEN, WAYS, Measured, Round, Way, agent_names
from benchmarks.agents.round_tables import agent_rows, require_equal_weights, way_rows
from benchmarks.agents.speed import speed_columns
from benchmarks.agents.subjects import (
    Subject,
    casebank_subject,
    preset_subjects,
    se_darwin_subject,
    waltzrl_subjects,
)
from benchmarks.agents.table import Kept, Learned
from benchmarks.agents.training import CPU, Effort, Trained
from benchmarks.measuring.machine import describe
from benchmarks.measuring.table import format_table, write_csv
from infrastructure.events.precision_state import PRECISIONS, PrecisionName

OUTPUT = Path("benchmark_results/agents")
_COLUMNS = (
    *("agent", "records", "rows", "parameters", "MiB", "steps/s alone", "steps/s in the fleet"),
    *("base rate", "best possible"),
    *(f"{what} {each}" for what in ("accuracy", "skill") for each in PRECISIONS),
    *(f"{what} {each}" for what in ("overflows", "best epoch") for each in PRECISIONS),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write a CSV file."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    machine = describe(CPU)
    print(f"{machine['device']}, torch {machine['torch']}", flush=True)
    commands = {"table": _table, "round": _round, "tuning": _tuning}
    commands[options.command](options)
    return 0


def _table(options: argparse.Namespace) -> None:
    subjects = _subjects(options)
    learning = Effort(steps=options.steps)
    speeds = speed_columns(subjects, learning, rounds=options.rounds, steps=options.block_steps)
    learned = Learned(subjects, learning, _kept(options, "trainings", learning))
    trained: dict[PrecisionName, list[dict[str, Trained]]] = {}
    for precision in options.precision:
        seeds = options.seed if precision == "fp32" else options.seed[: options.half_seeds]
        trained[precision] = [learned.alone(precision, seed) for seed in seeds]
    rows = [row | speeds[row["agent"]] for row in learned.rows(trained)]
    rows = [dict.fromkeys(_COLUMNS, "") | row for row in rows]
    write_csv(options.output / "agents.csv", rows, _COLUMNS)
    print(format_table(rows, _COLUMNS))


def _subjects(options: argparse.Namespace) -> list[Subject]:
    home = options.output / f"home-{options.records}"
    subjects = preset_subjects(home, options.records, seed=0)[: options.agents]
    subjects += waltzrl_subjects(home, options.records, seed=0)
    subjects = [each for each in subjects if _asked(each.name, options)]
    if _asked(SEDarwinAgent.name, options):
        try:
            subjects.append(se_darwin_subject(home, options.candidates, seed=0))
        except SandboxUnavailableError as error:
            print(f"se-darwin: not run: {error}")
    if options.casebank is not None:
        subjects.append(casebank_subject(home, options.casebank))
    elif _asked("casebank", options):
        print("Genesis' own case bank: not run: name its file with --casebank")
    return subjects


def _asked(name: str, options: argparse.Namespace) -> bool:
    return not options.only or name in options.only


def _round(options: argparse.Namespace) -> None:
    asked = {"records": options.records, "steps": options.steps}
    kept = Kept(options.output / "round", asked)
    names = [name for name in agent_names(options.agents) if _asked(name, options)]
    measured = Round(kept.folder, "fp32", options.other)
    measured.prepare(options.records, options.steps or None)
    ways = WAYS if options.other is None else (THEN, *WAYS)
    cold_ways = [way for way in ways if way in (THEN, COLD)]
    cold: dict[Way, dict[str, Measured]] = {way: {} for way in cold_ways}
    for number, name in enumerate(names):
        for way in cold_ways if number % 2 else reversed(cold_ways):
            cold[way][name] = each = measured.cold(way, name)
            print(f"{name}, {way}: {each.cpu_seconds:.1f} CPU seconds", flush=True)
    together = {way: measured.together(way, names) for way in ways if way not in cold_ways}
    for way, done in together.items():
        print(f"{way}: {done.cpu_seconds:.1f} CPU seconds", flush=True)
        require_equal_weights(way, done, cold[COLD])
    qualities = {way: measured.qualities(way, names) for way in cold_ways}
    write_csv(options.output / "round-agents.csv", *(table := agent_rows(cold, qualities)))
    print(format_table(*table), end="\n\n")
    write_csv(options.output / "round.csv", *(table := way_rows(cold, together)))
    print(format_table(*table))
    print("all agents have equal weights in all ways of this checkout")


def _tuning(options: argparse.Namespace) -> None:
    base = Effort(steps=options.steps)
    changes: dict[str, tuple[PrecisionName, Effort]] = {
        "fp32": ("fp32", base),
        "100 steps": ("fp32", replace(base, steps=100)),
        "600 steps": ("fp32", replace(base, steps=600)),
        "batch 64": ("fp32", replace(base, batch_size=64)),
        "no clipping": ("fp32", replace(base, max_grad_norm=None)),
        "fp16": ("fp16", base),
        "scale 1024": ("fp16", replace(base, loss_scale=1024.0)),
        "growth 50": ("fp16", replace(base, growth_interval=50)),
    }
    subjects = _subjects(options)
    table = {each.name: {"agent": each.name} for each in subjects}
    columns = ("agent", *changes)
    for name, (precision, effort) in changes.items():
        folder = "trainings" if effort == base else f"tuning-{name.replace(' ', '-')}"
        learned = Learned(subjects, effort, _kept(options, folder, effort))
        for agent, trained in learned.alone(precision, options.seed[0]).items():
            overflows = f" ({trained.overflows} overflows)" if trained.overflows else ""
            table[agent][name] = f"{trained.accuracy:.3f}{overflows}"
        print(f"{name}: done", flush=True)
    rows = list(table.values())
    write_csv(options.output / "tuning.csv", rows, columns)
    print(format_table(rows, columns))


def _kept(options: argparse.Namespace, folder: str, effort: Effort) -> Kept:
    asked = {"records": options.records, "candidates": options.candidates, **asdict(effort)}
    return Kept(options.output / folder, json.loads(json.dumps(asked)))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agents",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=["table", "round", "tuning"], default="table")
    parser.add_argument("--records", type=int, help="records of each agent")
    parser.add_argument("--candidates", type=int, help="candidates that SE-Darwin runs")
    parser.add_argument("--steps", type=int, help="steps of a training, at most")
    parser.add_argument("--agents", type=int, default=15, help="number of business agents")
    parser.add_argument("--only", nargs="+", default=(), help="names of agents to measure")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--half-seeds", type=int, default=3, help="seeds of FP16 and BF16, at most")
    parser.add_argument("--rounds", type=int, default=7, help="timed blocks of each loop")
    parser.add_argument("--block-steps", type=int, default=4, help="steps in a timed block")
    parser.add_argument("--casebank", type=Path, help="casebank.jsonl of a checkout of Genesis")
    parser.add_argument(
        "--other",
        type=Path,
        metavar="FOLDER",
        help="a checkout of another commit, whose cold workers run the round as well",
    )
    parser.add_argument("--quick", action="store_true", help="a moment of training: no proof")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    if options.quick:
        options.agents, options.seed, options.rounds = 2, [1], 3
        options.output = options.output / "quick"
    if options.command == "round":
        defaults = {"records": 5000, "candidates": 0, "steps": 0}
    else:
        defaults = {"records": 2000, "candidates": 3000, "steps": 300}
    if options.quick:
        defaults = {"records": 600, "candidates": 600, "steps": 20}
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


if __name__ == "__main__":
    sys.exit(main())
