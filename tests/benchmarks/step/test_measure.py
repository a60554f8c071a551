import pytest
import torch

from benchmarks.step import cases
from benchmarks.step.loops import Setup
from benchmarks.step.measure import measure
from benchmarks.step.models import SIZES
from benchmarks.step.results import Case, Measured, NotRun

pytestmark = pytest.mark.process  # trains for seconds

CPU = torch.device("cpu")
TINY = SIZES["tiny"]


def test_cases_of_a_size_share_their_rounds():
    requested = [
        Case(size="tiny", loop=loop, precision=precision)
        for loop in ("textbook", "ours")
        for precision in ("fp32", "tf32", "fp16")
    ]
    results = measure(TINY, requested, CPU, rounds=2, seed=0)
    assert set(results) == set(requested)
    for case, result in results.items():
        if case.precision == "tf32":
            assert isinstance(result, NotRun)
            continue
        assert isinstance(result, Measured)
        assert result.effective == case.precision
        assert len(result.seconds) == 2
        assert min(result.seconds) > 0
        assert result.host_reads == 0
        assert result.peak_bytes is None


def test_a_loop_that_fails_is_a_row_with_its_error(monkeypatch):
    def refuse(setup: Setup):
        raise NotImplementedError("no such clipping")

    monkeypatch.setitem(cases.LOOPS, "fabric", refuse)
    case = Case(size="tiny", loop="fabric", precision="fp16")
    result = measure(TINY, [case], CPU, rounds=1, seed=0)[case]
    assert result == NotRun(case=case, reason="NotImplementedError: no such clipping")
