"""``python -m benchmarks.waltzrl``: attack success and over-refusal after each stage of WaltzRL.

Each seed trains a pair from random weights: demonstrations, stage 1 with the conversation agent
frozen, stage 2 with both. It is compared with itself before the stages, and with the oracle, which
gives the untrained conversation agent feedback with the judge's own labels. The optimum of the game
has neither attack success nor over-refusal.

A finished seed is kept in the folder ``--output`` and not repeated.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from agents.waltzrl.game.rates import Rates, measure_rates
from agents.waltzrl.game.training import Effort, Pair
from agents.waltzrl.rewards import STAGE_2 as JOINT_WEIGHTS
from benchmarks.measuring.machine import describe
from benchmarks.measuring.table import format_table, write_csv
from benchmarks.policy.learning import with_interval
from infrastructure.events import PrecisionName
from infrastructure.files import write_atomically

ALONE, UNTRAINED, ORACLE = "conversation agent alone", "untrained pair", "oracle feedback"
STAGE_1, STAGE_2, ALONE_AT_THE_END = "after stage 1", "after stage 2", "without feedback, stage 2"
QUICK = Effort(demonstration_steps=60, demonstrations_per_step=32, rounds=5, prompts_per_round=32)
_COLUMNS = (
    *("precision", "pair", "attack success", "over-refusal", "reward"),
    *("triggered", "label accuracy"),
)

Measured = Mapping[str, Rates]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, print a table and write ``waltzrl.csv``."""
    options = _parse(arguments)
    if importlib.util.find_spec("scipy") is None:
        print("not run: scipy is not installed: pip install '.[policy,bench]'")
        return 1
    torch.set_num_threads(1)
    machine = describe(torch.device("cpu"))
    print(f"{machine['device']}, torch {machine['torch']}", flush=True)
    effort = _effort(options)
    rows: list[dict[str, str]] = []
    for precision in options.precision:
        found = [_measured(options.output, precision, seed, effort) for seed in options.seed]
        rows += _rows(precision, found)
    write_csv(options.output / "waltzrl.csv", rows, _COLUMNS)
    print(format_table(rows, _COLUMNS))
    return 0


def _measured(output: Path, precision: PrecisionName, seed: int, effort: Effort) -> Measured:
    """Rates of one seed, kept or measured now.

    Raises:
        SystemExit: Those that are kept were measured with other options.
    """
    path, asked = output / f"{precision}-{seed}.json", asdict(effort)
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["effort"] != asked:
            raise SystemExit(f"{path} was made with other options: choose another --output")
        return {name: Rates(*values) for name, values in kept["rates"].items()}
    begun, found = time.process_time(), dict[str, Rates]()
    for name, rates in _train(Pair(seed, precision, effort), seed):
        found[name] = rates
        print(
            f"{precision}, seed {seed}, {name}: attack success {rates.attack_success:.3f}, "
            f"over-refusal {rates.over_refusal:.3f}, {time.process_time() - begun:.0f} s of CPU "
            "time",
            flush=True,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"effort": asked, "rates": found}))
    return found


def _train(pair: Pair, seed: int) -> Iterator[tuple[str, Rates]]:
    pair.imitate()
    yield ALONE, measure_rates(pair.conversation, None, seed=seed)
    yield ORACLE, measure_rates(pair.conversation, "oracle", seed=seed)
    yield UNTRAINED, measure_rates(pair.conversation, pair.feedback, seed=seed)
    for name, stage in ((STAGE_1, pair.train_feedback()), (STAGE_2, pair.train_jointly())):
        for _ in stage:
            pass
        yield name, measure_rates(pair.conversation, pair.feedback, seed=seed)
    yield ALONE_AT_THE_END, measure_rates(pair.conversation, None, seed=seed)


def _rows(precision: str, found: Sequence[Measured]) -> Iterator[dict[str, str]]:
    for name in found[0]:
        rates = [each[name] for each in found]
        without_feedback = math.isnan(rates[0].label_accuracy)
        yield {
            "precision": precision,
            "pair": name,
            "attack success": with_interval([each.attack_success for each in rates]),
            "over-refusal": with_interval([each.over_refusal for each in rates]),
            "reward": with_interval([each.reward for each in rates]),
            "triggered": (
                "" if without_feedback else with_interval([each.triggered for each in rates])
            ),
            "label accuracy": (
                "" if without_feedback else with_interval([each.label_accuracy for each in rates])
            ),
        }


def _effort(options: argparse.Namespace) -> Effort:
    effort = QUICK if options.quick else Effort()
    return replace(
        effort,
        rounds=effort.rounds if options.rounds is None else options.rounds,
        joint=replace(JOINT_WEIGHTS, label=options.stage_2_label),
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.waltzrl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    precisions = ["fp32", "fp16", "bf16"]
    parser.add_argument("--precision", nargs="+", choices=precisions, default=["fp32"])
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, help="rounds of each stage")
    parser.add_argument(
        "--stage-2-label", type=float, default=0.0, help="lambda in stage 2; the paper's is 0"
    )
    parser.add_argument("--quick", action="store_true", help="a moment of training: no proof")
    parser.add_argument("--output", type=Path, default=Path("benchmark_results/waltzrl"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
