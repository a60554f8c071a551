import numpy as np
import pytest

from agents.se_darwin.features import NUMBERS
from benchmarks.se_darwin import ranking
from benchmarks.se_darwin.replay import ReplayTask


def _task(outcomes, nodes, suspiciousness=None):
    suspiciousness = suspiciousness or [0.0] * len(outcomes)
    place = NUMBERS.index("suspiciousness")
    actions = tuple({"numbers": [0.0] * place + [value]} for value in suspiciousness)
    repairs = {i: f"repair {i}" for i, outcome in enumerate(outcomes) if outcome == "fixed"}
    return ReplayTask(
        name="any",
        observation={},
        actions=actions,
        outcomes=tuple(outcomes),
        nodes=tuple(nodes),
        repairs=repairs,
    )


def test_executions_are_counted_in_order_of_score():
    task = _task(["same", "fixed", "worse"], [0, 1, 2])
    assert ranking.by_score(np.array([3.0, 2.0, 1.0]), task) == 2
    assert ranking.by_score(np.array([1.0, 1.0, 9.0]), task) == 3
    assert ranking.by_score(np.array([0.0, 1.0, 0.0]), task) == 1


def test_decay_leaves_a_node_that_keeps_failing():
    """Scores favour the many candidates of node 0; the repair is the first of node 1."""
    task = _task(["same"] * 6 + ["fixed"], [0] * 6 + [1])
    scores = np.arange(7, 0, -1.0)
    assert ranking.by_score(scores, task) == 7
    assert ranking.by_decayed_rank(scores, task) < 5


def test_decay_changes_nothing_where_every_node_has_one_candidate():
    task = _task(["same"] * 4 + ["fixed"], range(5))
    scores = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    assert ranking.by_decayed_rank(scores, task) == ranking.by_score(scores, task)


def test_untrained_policies_look_where_tests_fail():
    outcomes = ["same"] * 19 + ["fixed"]
    task = _task(outcomes, range(20), [0.0] * 19 + [1.0])
    counts = {name: count(task) for name, count in ranking.untrained_policies().items()}
    assert counts["Ochiai sorted"] == 1
    assert counts["GenProg-like"] < counts["random"] == pytest.approx(10.5, abs=5)


def test_the_first_repair_of_a_ranking_is_the_one_kept():
    task = _task(["fixed", "same", "fixed"], [0, 1, 2])
    assert ranking.first_repairs({0: np.array([1.0, 9.0, 2.0])}, [task]) == [(0, "repair 2")]
