"""Which files of the home an attempt begins with."""

from pathlib import Path

import pytest

from genesis_fp16.executors.bucket.inputs import input_files
from genesis_fp16.settings import Settings
from tests.genesis_fp16.executors.attempt_spec import attempt_spec

HERE = (
    *("agents/a/replay/1.jsonl", "agents/a/published/model.pt", "agents/b/replay/1.jsonl"),
    *("runs/r/checkpoints/step-1.pt", "runs/r/snapshot.json", "runs/r/incarnation"),
    *("runs/r/attempts/1/events.ndjson", "runs/q/snapshot.json", "runs/q/checkpoints/1.pt"),
    *("agents/a/.model.pt.0123abcd", "agents/a/.publishing.lock"),
    *("records/one/x.jsonl", "records/two.jsonl", "genesis.db", "agents.d/a.toml"),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in HERE:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "agents.d" / "a.toml").write_text('path = "records/one"\nother = "/etc/passwd"\n')
    (tmp_path / "agents" / "a" / "link").symlink_to("/etc/passwd")
    return tmp_path


def inputs(home: Path, **settings: str) -> set[str]:
    spec = attempt_spec(Settings(home=home), settings, run_id="r", number=2, baseline_of="q")
    names = [path.relative_to(home).as_posix() for path in input_files(spec, home)]
    assert len(names) == len(set(names))
    return set(names)


def test_they_are_those_of_the_agent_its_run_and_what_its_files_name(home: Path) -> None:
    assert inputs(home, records="records/two.jsonl", folder=str(home / "records")) == {
        *("agents/a/replay/1.jsonl", "agents/a/published/model.pt", "agents.d/a.toml"),
        *("runs/r/checkpoints/step-1.pt", "runs/r/snapshot.json", "runs/q/snapshot.json"),
        *("records/one/x.jsonl", "records/two.jsonl"),
    }


@pytest.mark.parametrize("text", ["", ".", "/etc/passwd", "../x", "a\0b", "x" * 5000, "agents/.."])
def test_a_text_that_names_nothing_of_the_home_adds_nothing(home: Path, text: str) -> None:
    assert inputs(home, text=text) == inputs(home)
