"""Runs until the guard notices a loss, and false alarms: its detector on resampled real pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from benchmarks.baselines.pairs import MeasuredPair
from genesis_fp16.domain.guard import HISTORY_LIMIT, GuardSettings, RunPair
from genesis_fp16.guard.detectors import detect_metric_drift

LOSS = 0.02  # share of FP32's metric, which document 001 promises to notice
HEALTHY_RUNS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Noticing:
    """What the guard makes of an agent's pairs.

    Attributes:
        agent: Name of the agent.
        every_runs: `Settings.baseline_every_runs`.
        limit: `GuardSettings.guard_metric_drift`.
        within_20_runs: Share of agents with a true loss that are noticed within 20 runs.
        runs: Runs until 95 % of them are noticed; None if that takes more than 40 pairs.
        late_runs: The same if the loss begins after 32 pairs without one.
        false_alarms: Share of agents without a loss that trip within the healthy runs.
    """

    agent: str
    every_runs: int
    limit: float
    within_20_runs: float
    runs: int | None
    late_runs: int | None
    false_alarms: float


def simulate(
    pairs: Sequence[MeasuredPair],
    *,
    every_runs: int,
    limit: float,
    agents: int,
    seed: int,
    healthy_runs: int = HEALTHY_RUNS,
) -> Noticing:
    """Let *agents* draw from the real *pairs* of one agent; the direction of chance is random."""
    settings = GuardSettings(guard_metric_drift=limit)
    random = Random(seed)  # noqa: S311 - not for cryptography
    early = [_pairs_until_noticed(pairs, settings, random, before=0) for _ in range(agents)]
    late = [_pairs_until_noticed(pairs, settings, random, before=32) for _ in range(agents)]
    within = sum(each is not None and each * every_runs <= 20 for each in early)
    alarms = sum(_trips(pairs, settings, random, healthy_runs // every_runs) for _ in range(agents))
    return Noticing(
        agent=pairs[0].agent,
        every_runs=every_runs,
        limit=limit,
        within_20_runs=within / agents,
        runs=_runs(early, every_runs),
        late_runs=_runs(late, every_runs),
        false_alarms=alarms / agents,
    )


def _draw(pairs: Sequence[MeasuredPair], random: Random, loss: float) -> RunPair:
    """A real pair, its difference in a random direction, with *loss* added."""
    measured = random.choice(pairs).pair
    chance = random.choice((-1.0, 1.0)) * (measured.half - measured.fp32)
    return replace(measured, half=measured.fp32 + chance - loss * abs(measured.fp32))


def _pairs_until_noticed(
    pairs: Sequence[MeasuredPair], settings: GuardSettings, random: Random, before: int
) -> int | None:
    """Number of pairs with the loss until the guard trips; None if over 40."""
    history = [_draw(pairs, random, 0.0) for _ in range(before)]
    for count in range(1, 41):
        history.append(_draw(pairs, random, LOSS))
        if detect_metric_drift(history, settings) is not None:
            return count
    return None


def _trips(
    pairs: Sequence[MeasuredPair], settings: GuardSettings, random: Random, count: int
) -> bool:
    history: list[RunPair] = []
    for _ in range(count):
        history = [*history[1 - HISTORY_LIMIT :], _draw(pairs, random, 0.0)]
        if detect_metric_drift(history, settings) is not None:
            return True
    return False


def _runs(noticed: Sequence[int | None], every_runs: int) -> int | None:
    found = sorted(each for each in noticed if each is not None)
    enough = -(-95 * len(noticed) // 100)
    return found[enough - 1] * every_runs if len(found) >= enough else None
