"""How often a training's search begins, and how long one may outlast it."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.worker.collection import SNAPSHOT_FILE
from genesis_fp16.worker.rung import RungSearch
from infrastructure.events import PrecisionState, Role
from infrastructure.events.event import BaseEvent, Notice, PrecisionChanged, RungSearched
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from tests.infrastructure.training.bandit import Bandit

ROLLED_BACK = PrecisionState(requested="fp16", effective="fp32", reason="guard")
HALF = PrecisionState(requested="fp16", effective="fp16", reason="default")


class Searched:
    """A training in FP32 after a rollback, whose searches run *program* in place of Python."""

    def __init__(self, folder: Path, program: str, clock: Callable[[], float]) -> None:
        (folder / SNAPSHOT_FILE).write_text("{}")
        spec = RunSpec.model_construct(
            run_folder=folder, attempt_folder=folder / "1", attempt=1, rung_search_seconds=300.0
        )
        job = Bandit(reference=False).job
        self.events: list[BaseEvent] = []
        self.search = RungSearch(spec, job, self.events.append, clock)
        for number in range(8):
            self.search.keep({"x": torch.full((1, 4), float(number))})
        config = FP16TrainingConfig(cpu_half=True)
        self.trainer = FP16Trainer(job.model, job.optimizer(job.model.parameters()), config)
        self.search_folder = folder / "rung"
        self.python = folder / "python"
        self.python.write_text(f"#!/bin/sh\n{program}\n")
        self.python.chmod(0o700)

    def roll_back(self, half: PrecisionState = HALF) -> None:
        for state in (half, ROLLED_BACK):
            self.trainer.set_precision(state)
            self.search.note(PrecisionChanged(step=0, state=state, loss_scale=1.0))
            self.search.observe(self.trainer)

    def request(self) -> dict[str, object]:
        """What the last search was asked."""
        read: dict[str, object] = json.loads((self.search_folder / "request.json").read_text())
        return read

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, RungSearched)]


def test_a_search_may_outlast_its_training_by_30_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    searched = Searched(tmp_path, "exec sleep 600", lambda: 10.0 * len(asked))
    monkeypatch.setattr(sys, "executable", str(searched.python))
    with searched.search as search:
        searched.roll_back()
        search.finish(lambda: asked.append(0.0))
        assert len(asked) == 3, "each check takes 10 seconds"
        assert searched.reasons() == []
    [reason] = searched.reasons()
    assert reason.startswith("the training ended before the search did")
    assert not (tmp_path / "rung" / "weights.pt").exists()


def test_after_three_searches_of_an_attempt_no_more_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = Searched(tmp_path, "echo broken >&2; exit 3", itertools.count(0.0, 0.3).__next__)
    monkeypatch.setattr(sys, "executable", str(searched.python))
    with searched.search as search:
        for number in range(1, 4):
            searched.roll_back()
            search.finish()
            while len(searched.reasons()) < number:
                search.observe(searched.trainer)
        searched.roll_back()
    assert all("exit code 3: broken" in reason for reason in searched.reasons())
    [notice] = [event for event in searched.events if isinstance(event, Notice)]
    assert notice.event == "rung_not_searched"
    assert notice.fields["reason"] == "3 searches were made in this attempt"


PARTS = {"critic": "bf16"}
BY_GUARD = PrecisionState(requested="fp16", effective="bf16", reason="guard")


@pytest.mark.parametrize(
    ("before", "other"),
    [
        ([HALF], "bf16"),
        ([replace(HALF, parts=PARTS)], None),
        ([replace(HALF, parts=PARTS), HALF], None),
        ([replace(HALF, parts={"critic": "fp32"})], "bf16"),
        ([replace(HALF, roles={Role.REFERENCE: "bf16/bf16/fp32"})], None),
        ([replace(HALF, roles={Role.REFERENCE: "fp32/fp32/fp32"})], "bf16"),
        ([BY_GUARD], None),
        ([replace(HALF, reason="operator")], None),
    ],
)
def test_the_other_half_type_is_not_tried_again_where_it_did_not_suffice(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: list[PrecisionState],
    other: str | None,
) -> None:
    searched = Searched(tmp_path, "exit 3", itertools.count(0.0, 0.3).__next__)
    monkeypatch.setattr(sys, "executable", str(searched.python))
    with searched.search:
        for half in before:
            searched.roll_back(half)
        asked = searched.request()
    assert (asked["half"], asked["other_half"]) == ("fp16", other)
