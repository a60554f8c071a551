"""``python -m benchmarks.se_darwin.searching``: executions of the agent's search, by ranker.

A cheap benchmark to tune the search on: bugs of our own corpus and the handwritten ones, models
trained on other modules, and a cache of executions. What users get is measured by
`benchmarks.se_darwin.foreign`, on bugs that nobody tuned anything on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import torch

from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search import Evolution, Policy, RandomRanker, Ranker, SuspicionRanker
from benchmarks.se_darwin.bugs import Bug
from benchmarks.se_darwin.dataset import FULL, Dataset, Log, build_dataset, open_caching_sandbox
from benchmarks.se_darwin.learning import choose, make_fold, train_ensemble
from infrastructure.world_model import WorldModel
from infrastructure.world_model.fitting import fit_linear

OUTPUT = Path("benchmark_results")


def search(
    sandbox: Sandbox, bug: Bug, ranker: Ranker, *, budget: int, seed: int
) -> tuple[int, str] | None:
    """Return executions until the repair and its source; None if *budget* executions find none."""
    rng = Random(f"{seed}/{bug.task.name}")
    evolution = Evolution(bug.task, sandbox, rng, Policy(ranker=ranker))
    while evolution.evaluations < budget:
        outcomes = evolution.run_generation(budget - evolution.evaluations)
        for outcome in outcomes:
            if outcome.child.fixed:
                return evolution.evaluations, outcome.child.source
        if not outcomes:
            break
    return None


def train_models(data: Dataset, steps: int, seed: int) -> list[WorldModel]:
    """Train one model for each fold, on the other folds, in FP32."""
    models = []
    for number in range(max(data.fold_of.values()) + 1):
        fold = make_fold(data.one_edit, data.fold_of, number)
        ensemble = train_ensemble(fold.data, "fp32", steps, seed + number)
        learned = choose(fold.data, ensemble, fit_linear(fold.data))
        models.append(WorldModel.from_fitted(learned.model, {}))
    return models


def compare(
    sandbox: Sandbox,
    bugs: Sequence[Bug],
    rankers: Mapping[str, Sequence[Ranker]],
    fold_of: Mapping[str, int],
    *,
    budget: int,
    seed: int,
) -> dict[str, list[int | None]]:
    """Return executions by ranker and bug; of its models, one that has not seen the module."""
    return {
        name: [
            None if found is None else found[0]
            for bug in bugs
            for ranker in [by_fold[fold_of.get(bug.module, 0) % len(by_fold)]]
            for found in [search(sandbox, bug, ranker, budget=budget, seed=seed)]
        ]
        for name, by_fold in rankers.items()
    }


def describe(family: str, found: Mapping[str, Sequence[int | None]], budget: int) -> list[str]:
    """Return the rows of a table; a bug that is not repaired counts as the whole budget."""
    rows = []
    for name, counts in found.items():
        spent = sorted(budget if count is None else count for count in counts)
        within = [
            sum(count is not None and count <= most for count in counts) for most in (25, 100)
        ]
        rows.append(
            f"| {family} | {name} | {len(counts)} | {sum(count is not None for count in counts)} | "
            f"{within[0]} | {within[1]} | {spent[len(spent) // 2]} | {sum(spent)} |"
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the bugs, train the models, search, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.se_darwin.searching", description=__doc__
    )
    parser.add_argument("--functions", type=int, default=130, help="functions to break")
    parser.add_argument("--budget", type=int, default=300, help="executions of each search")
    parser.add_argument("--steps", type=int, default=1200, help="optimizer steps of each model")
    parser.add_argument("--seed", type=int, default=0, help="seed of bugs, weights and searches")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the cache")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    started = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)

    run(options, log)
    return 0


def run(options: argparse.Namespace, log: Log) -> None:
    """See `main`."""
    effort = replace(FULL, functions=options.functions, bugs_each=1, foreign=0, folds=3)
    cache = options.output / ".cache" / "executions.sqlite"
    with closing(open_caching_sandbox(cache, parallel=2)) as sandbox:
        data = build_dataset(sandbox, effort, options.seed, log)
        rankers: dict[str, Sequence[Ranker]] = {
            "model": train_models(data, options.steps, options.seed),
            "suspicion": [SuspicionRanker()],
            "random": [RandomRanker()],
        }
        log("| bugs | ranker | number | repaired | <= 25 | <= 100 | median | sum |")
        for family, bugs in (
            ("one edit", [case.bug for case in data.one_edit]),
            ("two edits", data.two_edits),
            ("handwritten", [case.bug for case in data.written]),
        ):
            found = compare(
                sandbox, bugs, rankers, data.fold_of, budget=options.budget, seed=options.seed
            )
            for row in describe(family, found, options.budget):
                log(row)


if __name__ == "__main__":
    raise SystemExit(main())
