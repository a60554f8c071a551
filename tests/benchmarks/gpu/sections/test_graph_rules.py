"""What the section expects of graphs holds for the tape that stands in for them on a CPU."""

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.findings import FindingsFile, read_findings
from benchmarks.gpu.section import Task
from benchmarks.gpu.sections.graph_rules import Wrap, decide_rules
from infrastructure.training import FP16Trainer
from infrastructure.training.cuda_graphs import GraphedTrainer
from tests.infrastructure.training.cuda_graphs.test_graphed_trainer import graphed

NAMES = ("graph-first-steps", "graph-eight-shapes", "graph-changing-settings")


def on_tape(trainer: FP16Trainer) -> GraphedTrainer:
    return graphed(trainer)[0]


@pytest.mark.parametrize(("wrap", "outcome"), [(on_tape, "proven"), (GraphedTrainer, "refuted")])
def test_recorded_steps_pass_and_eager_ones_do_not(
    tmp_path: Path, wrap: Wrap, outcome: str
) -> None:
    task = Task(
        name="graph-rules",
        device=torch.device("cpu"),
        quick=True,
        folder=tmp_path,
        findings=FindingsFile(tmp_path / "findings", frozenset(NAMES)),
    )
    decide_rules(task, wrap)
    findings, _ = read_findings(tmp_path / "findings")
    assert {each.claim: each.outcome for each in findings} == dict.fromkeys(NAMES, outcome)
