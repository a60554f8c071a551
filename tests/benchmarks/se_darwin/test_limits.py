import pytest
import torch

from benchmarks.measuring.spread import Interval
from benchmarks.se_darwin import limits
from benchmarks.se_darwin.calibration import Rows


@pytest.mark.parametrize(("rank", "execute", "met"), [(40e-6, 4e-3, True), (60e-6, 2e-3, False)])
def test_cost(rank, execute, met):
    assert [check.met for check in limits.cost(rank, execute)] == [met, met]


def test_precision_is_decided_by_the_bound_not_by_the_mean():
    gap = {"fp16 x": Interval(figure=0.001, low=-0.02, high=0.02)}
    [check] = limits.precision("any", gap)
    assert check.met is False
    assert check.row()["verdict"] == "MISSED"


def test_calibration_has_limits_on_policy_only():
    rows = Rows(
        probability=torch.tensor([0.5, 0.5]),
        repaired=torch.tensor([False, True]),
        covered=torch.tensor([True, False]),
        groups=["a", "b"],
    )
    name = "calibrated on own choices, held to own choices"
    assert [s.met for s in limits.calibration({name: rows})] == [True, False]
    other = "calibrated on all candidates, held to all candidates"
    assert [s.met for s in limits.calibration({other: rows})] == [None, None]


def test_hidden_inputs_must_all_pass_to_count():
    assert limits.hidden([1.0] * 99 + [0.5]).met is True
    assert limits.hidden([1.0] * 97 + [0.99] * 3).met is False


def test_shuffled_labels_are_checked_on_every_head():
    metrics = {"outcome.auroc": 0.52, "outcome.nll_skill": -0.1, "score_delta.nll_skill": 0.3}
    assert [check.met for check in limits.shuffled_labels(metrics)] == [True, True, False]
