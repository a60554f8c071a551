"""The committed pairs keep the promise that the default setting is chosen for."""

from collections.abc import Sequence

import pytest

from benchmarks.baselines.__main__ import MEASURED
from benchmarks.baselines.noticing import simulate
from benchmarks.baselines.pairs import MeasuredPair, read_pairs, write_pairs
from genesis_fp16.settings import Settings


@pytest.fixture
def pairs() -> Sequence[MeasuredPair]:
    return read_pairs(MEASURED)


def test_pairs_survive_the_file(pairs, tmp_path) -> None:
    write_pairs(tmp_path / "pairs.csv", pairs)
    assert read_pairs(tmp_path / "pairs.csv") == pairs
    assert {pair.agent for pair in pairs} == {"pendulum", "se-darwin"}


@pytest.mark.parametrize("agent", ["pendulum", "se-darwin"])
def test_a_true_loss_of_2_percent_is_noticed_within_20_runs(pairs, agent) -> None:
    settings = Settings()
    found = simulate(
        [pair for pair in pairs if pair.agent == agent],
        every_runs=settings.baseline_every_runs,
        limit=settings.guard_metric_drift,
        agents=20,
        seed=0,
        healthy_runs=60,
    )
    assert found.within_20_runs >= 0.95
    assert found.false_alarms <= 0.1
