"""``python -m benchmarks.waltzrl``: attack success and over-refusal after each stage of WaltzRL.

Each seed trains a pair from random weights: demonstrations, stage 1 with the conversation agent
frozen, stage 2 with both. The demonstrations are learned in FP32, so that each precision begins the
stages with the same pair. It is compared with itself before the stages, and with the oracle, which
gives the untrained conversation agent feedback with the judge's own labels. The optimum of the game
has neither attack success nor over-refusal. With ``--ablations`` the same untrained pairs are also
trained with other rewards for the feedback agent.

A finished seed is kept in the folder ``--output`` and not repeated.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

import torch

from agents.waltzrl.game.dialogue import Adviser
from agents.waltzrl.game.rates import Rates, measure_rates
from agents.waltzrl.game.training import Effort, Pair
from agents.waltzrl.rewards import STAGE_1 as LABELS_COUNT
from agents.waltzrl.rewards import STAGE_2 as LABELS_DO_NOT_COUNT
from agents.waltzrl.rewards import FeedbackWeights
from benchmarks.measuring.machine import describe
from benchmarks.measuring.table import format_table, write_csv
from infrastructure.events import PrecisionName
from infrastructure.files import write_atomically

ALONE, UNTRAINED, ORACLE = "conversation agent alone", "untrained pair", "oracle feedback"
STAGE_1, STAGE_2, ALONE_AT_THE_END = "after stage 1", "after stage 2", "without feedback, stage 2"
QUICK = Effort(demonstration_steps=60, demonstrations_per_step=32, rounds=5, prompts_per_round=32)
_COLUMNS = (
    *("precision", "reward of feedback", "pair", "attack success", "over-refusal", "reward"),
    *("triggered", "label accuracy", "overflows"),
)

PAPER = "WaltzRL"
_ALONE = replace(LABELS_COUNT, gated=False)
_ALONE_WITHOUT_LABELS = replace(LABELS_DO_NOT_COUNT, gated=False)
REWARDS: Mapping[str, tuple[FeedbackWeights, FeedbackWeights]] = MappingProxyType(
    {
        PAPER: (LABELS_COUNT, LABELS_DO_NOT_COUNT),
        "lambda 0.25 in both stages": (LABELS_COUNT, LABELS_COUNT),
        "DIR alone": (_ALONE, _ALONE_WITHOUT_LABELS),
        "DIR alone, lambda 0 in both stages": (_ALONE_WITHOUT_LABELS, _ALONE_WITHOUT_LABELS),
    }
)
"""Weights in stage 1 and 2. The first are the paper's; "DIR alone" is not multiplied by R_label."""


class Measured(NamedTuple):
    """Rates of one pair of agents after training.

    Attributes:
        reward: Key of `REWARDS`.
        pair: Which pair.
        rates: Its rates.
        overflows: Optimizer steps of both agents so far whose gradients overflowed.
        steps: Optimizer steps of both agents so far.
    """

    reward: str
    pair: str
    rates: Rates
    overflows: int
    steps: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, print a table and write ``waltzrl.csv``."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    machine = describe(torch.device("cpu"))
    print(f"{machine['device']}, torch {machine['torch']}", flush=True)
    effort = QUICK if options.quick else Effort()
    if options.rounds is not None:
        effort = replace(effort, rounds=options.rounds)
    rewards = list(REWARDS) if options.ablations else [PAPER]
    rows: list[dict[str, str]] = []
    for precision in options.precision:
        seeds = [_measured(options, precision, seed, effort, rewards) for seed in options.seed]
        rows += _rows(precision, seeds)
    write_csv(options.output / "waltzrl.csv", rows, _COLUMNS)
    print(format_table(rows, _COLUMNS))
    return 0


def _measured(
    options: argparse.Namespace,
    precision: PrecisionName,
    seed: int,
    effort: Effort,
    rewards: Sequence[str],
) -> list[Measured]:
    """What one seed gave, kept or measured now.

    Raises:
        SystemExit: What is kept was measured with other options.
    """
    path = options.output / f"{precision}-{seed}.json"
    asked = {"effort": asdict(effort), "rewards": list(rewards)}
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["asked"] != asked:
            raise SystemExit(f"{path} was made with other options: choose another --output")
        return [
            Measured(reward, pair, Rates(*rates), overflows, steps)
            for reward, pair, rates, overflows, steps in kept["measured"]
        ]
    begun, found = time.process_time(), list[Measured]()
    pair = copy.deepcopy(_untrained(seed, effort))
    pair.set_precision(precision)
    for each in _train(pair, seed, rewards, repeats=1 if options.quick else 8):
        found.append(each)
        print(
            f"{precision}, seed {seed}, {each.reward}, {each.pair}: attack success "
            f"{each.rates.attack_success:.3f}, over-refusal {each.rates.over_refusal:.3f}, "
            f"{time.process_time() - begun:.0f} s of CPU time",
            flush=True,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"asked": asked, "measured": found}))
    return found


@cache
def _untrained(seed: int, effort: Effort) -> Pair:
    """The untrained pair, which every precision begins with."""
    pair = Pair(seed, effort)
    pair.imitate()
    return pair


def _train(untrained: Pair, seed: int, rewards: Iterable[str], repeats: int) -> Iterator[Measured]:
    def measure(reward: str, name: str, pair: Pair, adviser: Adviser) -> Measured:
        rates = measure_rates(pair.conversation, adviser, repeats=repeats, seed=seed)
        trainers = (pair.conversation.trainer, pair.feedback.trainer)
        overflows = sum(int(each.get_stats()["overflow_steps"]) for each in trainers)
        steps = sum(each.training_steps for each in trainers)
        return Measured(reward, name, rates, overflows, steps)

    yield measure(PAPER, ALONE, untrained, None)
    yield measure(PAPER, ORACLE, untrained, "oracle")
    yield measure(PAPER, UNTRAINED, untrained, untrained.feedback)
    after_stage_1 = dict[FeedbackWeights, Pair]()
    for reward in rewards:
        first, second = REWARDS[reward]
        if first not in after_stage_1:
            after_stage_1[first] = copy.deepcopy(untrained)
            deque(after_stage_1[first].train_feedback(first), maxlen=0)
        pair = copy.deepcopy(after_stage_1[first])
        yield measure(reward, STAGE_1, pair, pair.feedback)
        deque(pair.train_jointly(second), maxlen=0)
        yield measure(reward, STAGE_2, pair, pair.feedback)
        yield measure(reward, ALONE_AT_THE_END, pair, None)


def _rows(precision: str, seeds: Sequence[Sequence[Measured]]) -> Iterator[dict[str, str]]:
    for same in zip(*seeds, strict=True):  # the same pair of each seed
        rates = [each.rates for each in same]
        advised = not math.isnan(rates[0].label_accuracy)
        yield {
            "precision": precision,
            "reward of feedback": same[0].reward,
            "pair": same[0].pair,
            "attack success": _with_range([each.attack_success for each in rates]),
            "over-refusal": _with_range([each.over_refusal for each in rates]),
            "reward": _with_range([each.reward for each in rates]),
            "triggered": _with_range([each.triggered for each in rates]) if advised else "",
            "label accuracy": (
                _with_range([each.label_accuracy for each in rates]) if advised else ""
            ),
            "overflows": f"{sum(each.overflows for each in same)} of "
            f"{sum(each.steps for each in same)}",
        }


def _with_range(values: Sequence[float]) -> str:
    """Mean over seeds, with the lowest and the highest if there are several."""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{fmean(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.waltzrl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    precisions = ["fp32", "fp16", "bf16"]
    parser.add_argument("--precision", nargs="+", choices=precisions, default=["fp32"])
    parser.add_argument("--seed", nargs="+", type=int, default=[4, 5, 6, 7, 8])
    parser.add_argument("--rounds", type=int, help="rounds of each stage")
    parser.add_argument(
        "--ablations", action="store_true", help="also train with other rewards of the feedback"
    )
    parser.add_argument("--quick", action="store_true", help="a moment of training: no proof")
    parser.add_argument("--output", type=Path, default=Path("benchmark_results/waltzrl"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
