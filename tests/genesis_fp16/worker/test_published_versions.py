"""Versions that real runs keep."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genesis_fp16.plugins.model_versions import read_versions, version_in_use
from infrastructure.events.event import Notice, Published

Start = Callable[..., Any]


def run(start: Start, tmp_path: Path, number: int, **changes: object) -> Any:
    """A whole run of its own."""
    folder = tmp_path / f"run{number}"
    attempt = start(number, run_id=f"r{number}", run_folder=folder, **changes)
    assert attempt.end() == 0, attempt.log
    return attempt


def test_each_published_model_is_kept_with_its_run_and_data(start: Start, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    for number in (1, 2, 3):
        run(start, tmp_path, number, keep_models=2, settings={"epochs": number})
    newest, older = read_versions(agent)
    assert (newest.id, older.id) == ("r3", "r2")
    assert newest.facts is not None
    assert older.facts is not None
    assert newest.facts.data is not None
    assert older.facts.data is not None
    assert (older.facts.data.transitions, newest.facts.data.transitions) == (8, 12)
    sizes = json.loads((tmp_path / "run3" / "snapshot.json").read_text()).values()
    assert newest.facts.data.size == sum(sizes)
    assert newest.facts.data.sha256 != older.facts.data.sha256
    assert newest.facts.reason == "first"
    assert newest.facts.metrics.keys() == {"mse"}
    assert newest.facts.replaced == "r2"
    assert version_in_use(agent, read_versions(agent)) == "r3"


def test_a_model_is_published_although_its_version_cannot_be_kept(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "versions").touch()
    attempt = run(start, tmp_path, 1)
    assert attempt.of(Published)[0].published
    assert "model_version_not_kept" in {event.event for event in attempt.of(Notice)}
    assert (tmp_path / "agent" / "published" / "model.pt").exists()
