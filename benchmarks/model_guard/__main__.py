"""Run it: ``python -m benchmarks.model_guard``.

Each trial publishes a model as a run does, with the gate's own metrics, and shows the predictor's
judge and the daemon's guard what comes true: for each kind of drift once from a third of the rows
that nothing has seen (healthy), once with a drift planted after the first of them. Of the inputs,
one is changed that is drawn among those whose change costs at least a fifth of the held-out skill,
measured on all drifted rows; where none does, the trial is printed and does not count. Sets of the
report only.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch

from benchmarks.model_guard.drift import KINDS, Rows, changes
from benchmarks.world_model.catalogue import DATA_SETS
from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.domain.predictor import JudgedOutcomes
from genesis_fp16.guard.models.watch import ModelWatch
from genesis_fp16.predictor.judge import HeldOut, InputDrift, judge_rows
from infrastructure.world_model import EnsembleNetwork, WorldModel
from infrastructure.world_model.fitting import FittedModel, prepare_training_data
from infrastructure.world_model.fitting.scoring import row_nll
from infrastructure.world_model_agent.publication import gate_publication

SETS = ("fair", "sms_spam", "diamonds", "computers", "randhie")
TUNING_SETS = ("hotel_rates", "budget_food", "deliveries", "saratoga", "hpc_data")
TRAINED_ROWS = 2500
ENOUGH_SKILL = 0.4  # standard deviations of a loss: the least of the sets for tuning
BEFORE, WITHIN, STEP = 200, 500, 10  # outcomes before the drift, after it, and in a report


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A model with what the gate measured."""

    model: FittedModel
    reference: HeldOut
    fresh: Rows
    target: str


def publish(name: str, seed: int) -> Published | None:
    """Fit a model on a set; None if the gate refuses it."""
    recording = DATA_SETS[name].record(seed, TRAINED_ROWS)
    if len(recording.fresh) < BEFORE + WITHIN:  # a small set
        rows = len(recording.transitions) + len(recording.fresh)
        recording = DATA_SETS[name].record(seed, rows - BEFORE - WITHIN)
    data = prepare_training_data(recording.spec, recording.transitions)
    model = WorldModel(recording.spec, seed=seed)
    model.fit(data, device="cpu", precision="fp32")
    if model.fitted_model is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        ensemble = model.fitted_model.ensemble
        decision = gate_publication(data, ensemble, Path(folder), EnsembleNetwork)
    reference = HeldOut.of(decision.metrics)
    if not decision.published or reference is None or len(recording.fresh) < BEFORE + WITHIN - STEP:
        return None
    return Published(
        model=decision.candidate,
        reference=reference,
        fresh=recording.fresh,
        target=recording.target,
    )


def acted_after(published: Published, rows: Rows, settings: GuardSettings) -> int | None:
    """Number of outcomes after which the guard takes the model back; None if it does not."""
    watch = ModelWatch(
        version="v",
        held_out_loss=published.reference.loss,
        base_rate_loss=published.reference.base_rate,
    )
    drift, encoder = InputDrift("v"), published.model.encoder
    for start in range(0, len(rows), STEP):
        seen = rows[start : start + STEP]
        judged: JudgedOutcomes | None = judge_rows(published.model, published.reference, "v", seen)
        drift.add(encoder.standardised_observations([row.observation for row in seen]))
        if judged is None:
            continue
        judged.input_drift = drift.largest
        if watch.add(judged, settings) and watch.has_failed(settings):
            return start + STEP
    return None


def cost(published: Published, rows: Rows) -> float:
    """Share of the held-out skill that is lost on *rows*."""
    codec, reference = published.model.codec, published.reference
    with torch.inference_mode():
        predicted = published.model.predict_transitions(rows)
        loss = float(row_nll(predicted, codec.outcomes(rows), codec).mean())
    return (loss - reference.loss) / (reference.base_rate - reference.loss)


def trial(
    published: Published, kind: str, seed: int, settings: GuardSettings
) -> dict[str, Any] | None:
    """A drift of a *kind*, and a healthy run on rows of its own; None if nothing can be changed."""
    source, fresh = random.Random(f"{kind} {seed}"), published.fresh
    third, part = len(fresh) // len(KINDS), KINDS.index(kind)
    healthy = fresh[part * third : (part + 1) * third]
    before, after = fresh[:BEFORE], fresh[BEFORE:]
    possible = changes(kind, published.model.spec, published.target, fresh)
    drifted = {field: change(after, source) for field, change in possible.items()}
    costs = {field: cost(published, rows) for field, rows in drifted.items()}
    if not costs:
        return None
    costly = [field for field in costs if costs[field] >= settings.model_guard_skill_loss]
    field = source.choice(costly) if costly else max(costs, key=costs.__getitem__)
    noticed = acted_after(published, [*before, *drifted[field][:WITHIN]], settings)
    reference = published.reference
    return {
        "kind": kind,
        "field": field,
        "cost": costs[field],
        "skill": (reference.base_rate - reference.loss) / reference.deviation,
        "error": reference.error / reference.deviation,
        "healthy": acted_after(published, healthy, settings),
        "healthy_rows": len(healthy),
        "healthy_cost": cost(published, healthy),
        "drift": None if noticed is None else noticed - BEFORE,
    }


def _share(trials: Sequence[Mapping[str, Any]]) -> str:
    acted = [each for each in trials if each["drift"] is not None and each["drift"] > 0]
    return f"acted in {len(acted)} of {len(trials)} within {WITHIN} outcomes"


def _ceiling(trials: Sequence[Mapping[str, Any]]) -> str:
    """What a test of the mean loss would notice that knows the moment and the size of the drift.

    It compares the outcomes since then with the test rows of the publication, and acts in one of 60
    healthy runs; no test of the mean is more powerful (Neyman and Pearson), losses being normal.
    """
    normal = NormalDist()
    powers = [
        normal.cdf(
            each["cost"] * each["skill"] / math.sqrt(1 / WITHIN + each["error"] ** 2)
            - normal.inv_cdf(1 - 1 / 60)
        )
        for each in trials
    ]
    return f"told the moment and the size, a test of the mean loss would act in {sum(powers):.1f}"


def _able(trials: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [each for each in trials if each["skill"] >= ENOUGH_SKILL]


def describe(result: Mapping[str, Any]) -> str:
    """A trial in a line."""
    where = f"{result['set']} {result['seed']}, {result['kind']}, {result['field']}"
    return (
        f"{where}: costs {result['cost']:.0%} of a skill of {result['skill']:.2f} standard "
        f"deviations, acted after {result['drift']}; healthy, {result['healthy_rows']} rows that "
        f"cost {result['healthy_cost']:.0%}: {result['healthy']}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print each trial and the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=20, help="drifts of each kind")
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--tuning", action="store_true", help="on the sets for tuning")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    settings, began = GuardSettings(), time.process_time()
    sets = TUNING_SETS if given.tuning else SETS
    done = list[dict[str, Any]]()
    for seed in range(given.first_seed, given.first_seed + 2 * given.each):
        counts = Counter(each["kind"] for each in done)
        missing = [kind for kind in KINDS if counts[kind] < given.each]
        published = publish(sets[seed % len(sets)], seed) if missing else None
        if published is None:
            continue
        for kind in missing:
            result = trial(published, kind, seed, settings)
            if result is None:
                continue
            result |= {"set": sets[seed % len(sets)], "seed": seed}
            print(describe(result), flush=True)
            if result["cost"] >= settings.model_guard_skill_loss:
                done.append(result)
    for kind in KINDS:
        print(f"{kind}: {_share([each for each in done if each['kind'] == kind])}")
    for low, high in ((0.2, 0.5), (0.5, 1.0), (1.0, float("inf"))):
        some = [each for each in done if low <= each["cost"] < high]
        print(f"cost of {low:g} to {high:g} of the skill: {_share(some)}")
    print(f"skill of {ENOUGH_SKILL:g} standard deviations or more: {_share(_able(done))}")
    print(f"all kinds: {_share(done)}; {_ceiling(done)}")
    false = [each for each in done if each["healthy"] is not None]
    early = [each for each in done if isinstance(each["drift"], int) and each["drift"] <= 0]
    print(f"healthy: acted in {len(false)} of {len(done)}; before a drift: {len(early)}")
    print(f"{time.process_time() - began:.0f} CPU s")


if __name__ == "__main__":
    main()
