"""Losses and areas on inputs small enough to check by hand."""

import math

import numpy as np
import pytest

from benchmarks.world_model import metrics


def test_log_loss_of_the_label_that_occurred():
    probability = np.array([[0.25, 0.75], [1.0, 0.0]])
    losses = metrics.log_loss(probability, np.array([1, 1]))
    assert losses[0] == pytest.approx(-math.log(0.75))
    assert losses[1] == pytest.approx(-math.log(metrics.SMALLEST_PROBABILITY))


def test_auc_counts_ties_half():
    right = np.array([False, True, True, False])
    assert metrics.auc(np.array([0.1, 0.9, 0.8, 0.2]), right) == 1.0
    assert metrics.auc(np.array([0.5, 0.5, 0.5, 0.5]), right) == 0.5
    assert metrics.auc(np.array([0.9, 0.1, 0.8, 0.2]), right) == pytest.approx(0.25)


def test_auc_of_one_class_is_unknown():
    assert math.isnan(metrics.auc(np.array([0.1, 0.2]), np.array([True, True])))


def test_error_over_deviation_tells_the_worst_dimension():
    errors = np.array([[1.0, 1.0], [-1.0, -1.0]])
    stated = np.array([[1.0, 0.1], [1.0, 0.1]])
    assert metrics.error_over_deviation(errors, stated) == pytest.approx(10.0)
    assert metrics.error_over_deviation(errors, 1 / stated) == pytest.approx(0.1)


def test_coverage_is_the_share_inside():
    errors = np.array([[0.5], [-2.0], [1.0], [0.0]])
    assert metrics.coverage(errors, np.ones((4, 1))) == 0.75


def test_scaled_error_leaves_constant_dimensions_out():
    errors = np.array([[2.0, 7.0], [-2.0, 7.0]])
    assert metrics.scaled_error(errors, np.array([2.0, 0.0])) == 1.0


def test_clustered_error_of_rows_that_repeat():
    """Rows of a group that repeat each other tell no more than one of them."""
    values = np.array([1.0, 3.0])
    alone = metrics.clustered_error(values, ["a", "b"])
    repeated = metrics.clustered_error(np.repeat(values, 10), ["a"] * 10 + ["b"] * 10)
    assert alone == pytest.approx(1.0)
    assert repeated == pytest.approx(alone)
    assert metrics.clustered_error(values, ["a", "a"]) == math.inf
