import pytest
import torch

from benchmarks.step.accuracy import compare_accuracy
from benchmarks.step.models import SIZES

CPU = torch.device("cpu")


def test_accuracy_compares_trainings_that_differ_in_precision_alone():
    figure = compare_accuracy(SIZES["tiny"], "bf16", CPU, steps=20, seeds=2)
    assert figure.spread is not None
    assert figure.spread.median == pytest.approx(1.0, abs=0.02)
    assert figure.spread.median != 1.0


def test_accuracy_of_one_precision_against_itself_is_refused():
    figure = compare_accuracy(SIZES["tiny"], "fp32", CPU, steps=2, seeds=1)
    assert figure.verdict.startswith("refused: both")
