"""The limits of the step's time and memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.claims import claims_of
from benchmarks.gpu.findings import Finding, FindingsFile, read_findings
from benchmarks.gpu.section import Task
from benchmarks.gpu.sections import steps
from benchmarks.step.results import Case, Measured

TIMES = {"fp32": 10.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0}


def decided(folder: Path, name: str, results: list[Measured]) -> dict[str, Finding]:
    section = f"steps-{name}"
    names = frozenset(claim.name for claim in claims_of(section))
    findings = FindingsFile(folder / "findings", names)
    device = torch.device("cpu")
    task = Task(name=section, device=device, quick=True, folder=folder, findings=findings)
    steps._DECIDE[name](task, {each.case: each for each in results})
    return {each.claim: each for each in read_findings(folder / "findings")[0]}


def measured(size: str, precision: Any, seconds: float, **values: Any) -> Measured:
    case = Case(size=size, loop="ours", precision=precision)
    return Measured(
        case=replace(case, **values),
        effective=precision,
        seconds=(seconds,) * 4,
        host_reads=0.0,
        peak_bytes=100 if precision == "fp32" else 55,
    )


def large(**times: float) -> list[Measured]:
    return [measured("large", each, s) for each, s in {**TIMES, **times}.items()]


def test_half_must_beat_tf32_too(tmp_path: Path) -> None:
    found = decided(tmp_path, "large", large())
    assert {each.outcome for each in found.values()} == {"proven"}
    assert found["memory-large"].figures == {"ratio": 0.55}


def test_one_half_type_that_is_slower_refutes_it(tmp_path: Path) -> None:
    found = decided(tmp_path, "large", large(bf16=5.0))
    assert found["half-faster-large"].outcome == "refuted"
    assert "1.25" in found["half-faster-large"].measured


@pytest.mark.parametrize(("seconds", "outcome"), [(2.4, "proven"), (2.6, "refuted")])
def test_the_graph_of_a_small_step_has_a_limit(
    tmp_path: Path, seconds: float, outcome: str
) -> None:
    results = [
        measured("small", "fp16", seconds, mode="graph"),
        measured("small", "fp32", 10.0, loop="textbook"),
    ]
    assert decided(tmp_path, "small", results)["graph-small"].outcome == outcome
