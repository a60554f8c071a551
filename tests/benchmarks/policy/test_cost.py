"""The share of a training that comparisons take, measured on a training of two rounds."""

import pytest

pytest.importorskip("transformers", reason="not installed: the extra 'policy' has it")

from agents.policy.settings import PolicySettings
from agents.policy.tasks import sorting
from benchmarks.policy import cost

pytestmark = pytest.mark.process  # trains for seconds


def test_the_first_comparison_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "TASKS", {"sorting": sorting(warm_up_rounds=4)})
    policy = PolicySettings(
        task="sorting", start="random", rounds=2, rounds_per_epoch=6, prompts_per_round=4
    )
    row = cost.measure_cost("fp32", policy, seed=0)
    assert (row["precision"], row["rounds"], row["comparisons"]) == ("fp32", "2", "1")
    seconds, share = float(row["seconds"]), float(row["share"].rstrip("%")) / 100
    assert row["first"] == row["mean"]
    assert 0 < float(row["first"]) <= share * seconds + 0.02
