"""What a run of pytest says about a claim."""

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.findings import Finding, FindingsFile, read_findings
from benchmarks.gpu.section import Task
from benchmarks.gpu.sections import cuda_tests

pytestmark = pytest.mark.process

FILE = """
import pytest

@pytest.mark.cuda
@pytest.mark.parametrize("number", [1, 2])
def test_some(number):
    assert number == 1, "not one"

@pytest.mark.cuda
def test_good():
    pass

@pytest.mark.cuda
def test_skipped():
    pytest.skip("needs a CUDA device")
"""


@pytest.mark.parametrize(
    ("test", "outcome", "said"),
    [
        ("test_some", "refuted", "1 of 2 tests passed; test_some[2]: AssertionError: not one"),
        ("test_good", "proven", "1 of 1 tests passed"),
        ("test_skipped", "not measurable", "needs a CUDA device"),
    ],
)
def test_it_decides_as_pytest_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str, outcome: str, said: str
) -> None:
    (tmp_path / "test_it.py").write_text(FILE)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # those take most of the time
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = cuda\n")
    monkeypatch.setattr(cuda_tests, "TESTS", {"reads": f"{tmp_path / 'test_it.py'}::{test}"})
    findings = FindingsFile(tmp_path / "findings", frozenset({"reads"}))
    device = torch.device("cpu")
    cuda_tests.decide(
        Task(name="x", device=device, quick=True, folder=tmp_path, findings=findings), "reads"
    )
    found: Finding = read_findings(tmp_path / "findings")[0][0]
    assert found.outcome == outcome
    assert said in found.measured + found.reason
