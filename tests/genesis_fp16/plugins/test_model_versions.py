"""Kept versions of a published model: taken, put back, interrupted, damaged, without room."""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from genesis_fp16.plugins.model_versions import (
    DataFacts,
    ModelVersion,
    ModelVersionError,
    describe_published,
    keep_unrecorded,
    keep_version,
    kept_runs,
    publishing,
    put_back,
    read_versions,
    version_in_use,
)
from infrastructure.files import write_atomically

DATA = DataFacts(transitions=7, size=700, sha256="d" * 64)


def publish(agent: Path, content: str) -> None:
    """Publish as world models are: an index, written last, names a file of weights by its hash."""
    folder = agent / "published"
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(content.encode()).hexdigest()
    index = folder / "model.json"
    before = json.loads(index.read_text())["weights"] if index.exists() else ""
    write_atomically(folder / f"weights-{digest[:8]}.pt", content)
    write_atomically(index, json.dumps({"weights": digest}))
    for path in folder.glob("weights-*"):
        if path.stem[8:] not in (digest[:8], before[:8]):  # a reader may have that one open
            path.unlink()


def load(agent: Path) -> str:
    """The published model, as a reader finds it."""
    digest = json.loads((agent / "published" / "model.json").read_text())["weights"]
    content = (agent / "published" / f"weights-{digest[:8]}.pt").read_text()
    assert hashlib.sha256(content.encode()).hexdigest() == digest
    return content


def keep(agent: Path, name: str, content: str, *, at: float, count: int = 5) -> None:
    """Publish *content* by the run *name*, and keep it."""
    replaced = version_in_use(agent, read_versions(agent))
    publish(agent, content)
    version = ModelVersion(
        id=name,
        run_id=name,
        published_at=at,
        replaced=replaced,
        reason=f"reason of {name}",
        metrics={"skill": at, "odd": float("nan")},
        data=DATA,
        files=describe_published(agent),
    )
    keep_version(agent, version, keep=count)


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """An agent's folder with three kept versions; the last is in use."""
    folder = tmp_path / "agents" / "a"
    for number in (1, 2, 3):
        keep(folder, f"r{number}", f"model {number}" * 1000, at=float(number))
    return folder


def in_use(agent: Path) -> str | None:
    return version_in_use(agent, read_versions(agent))


def test_a_version_tells_its_run_data_metrics_and_what_it_replaced(agent: Path) -> None:
    versions = read_versions(agent)
    assert [version.id for version in versions] == ["r3", "r2", "r1"]
    newest = versions[0].facts
    assert newest is not None
    assert (newest.run_id, newest.replaced, newest.data) == ("r3", "r2", DATA)
    assert newest.reason == "reason of r3"
    assert newest.metrics["skill"] == 3.0
    assert newest.metrics["odd"] != newest.metrics["odd"], "also what is no number"
    assert in_use(agent) == "r3"


def test_any_version_is_put_back_byte_for_byte_and_may_be_left_again(agent: Path) -> None:
    for name in ("r1", "r3", "r2", "r1"):
        assert put_back(agent, name).id == name
        assert load(agent) == f"model {name[1]}" * 1000
        assert in_use(agent) == name
    keep(agent, "r4", "model 4", at=4.0)
    versions = {version.id: version.facts for version in read_versions(agent)}
    assert versions["r4"] is not None
    assert versions["r4"].replaced == "r1", "what was in use, not what was published last"


def test_old_versions_go_but_never_the_one_that_was_replaced(agent: Path) -> None:
    put_back(agent, "r1")
    keep(agent, "r4", "model 4", at=4.0, count=2)
    assert kept_runs(agent) == {"r4", "r1"}
    keep(agent, "r5", "model 5", at=5.0, count=1)
    assert kept_runs(agent) == {"r5"}
    assert load(agent) == "model 5"


def test_a_file_that_two_versions_share_is_stored_once(agent: Path) -> None:
    shared = [path for path in (agent / "versions").rglob("weights-*") if path.stat().st_nlink > 1]
    assert len(shared) >= 2, "the model in use before, which readers may have open"


@pytest.mark.process
@pytest.mark.parametrize("target", ["r1", "r2"])
def test_killed_at_any_moment_the_old_or_the_new_model_is_in_use(agent: Path, target: str) -> None:
    """And another try completes it."""
    old, new = load(agent), f"model {target[1]}" * 1000
    seen, deaths = set(), 0
    for call in range(1, 100):
        child = os.fork()
        if child == 0:
            _die_at_the_file_operation(call)
            put_back(agent, target)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        seen.add(load(agent))
        if os.WIFEXITED(status):
            break
        deaths += 1
    assert deaths >= 5
    assert seen == {old, new}
    assert in_use(agent) == target
    assert not list((agent / "published").rglob(".*")), "no temporary file is left"


def _die_at_the_file_operation(number: int) -> None:
    """Let this process be killed instead of its operation of that number on a file."""
    done = [0]

    def counted(operation: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            done[0] += 1
            if done[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*arguments, **options)

        return call

    for name in ("rename", "replace", "unlink", "fsync", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))


def test_a_damaged_version_is_refused_before_anything_changes(agent: Path) -> None:
    [weights] = list((agent / "versions/r1/files").glob("weights-*"))
    content = weights.read_bytes()
    before = load(agent)
    for damage in (content[:-1], b"X" + content[1:], None):
        weights.unlink()
        if damage is not None:
            weights.write_bytes(damage)
        with pytest.raises(ModelVersionError, match=r"r1 of a is damaged.*weights-") as caught:
            put_back(agent, "r1")
        assert caught.value.exit_code == 65
        assert "r1" in {version.id for version in read_versions(agent) if version.problem}
    for facts in ("{", '{"id": "r2"}', "null"):
        (agent / "versions/r2/version.json").write_text(facts)
        with pytest.raises(ModelVersionError, match=r"r2 of a is damaged.*version\.json"):
            put_back(agent, "r2")
    with pytest.raises(ModelVersionError, match=r"'\.\./r1'; kept: r1, r2, r3"):
        put_back(agent, "../r1")
    assert load(agent) == before
    assert in_use(agent) == "r3"


def test_a_version_that_names_files_elsewhere_is_damaged(agent: Path) -> None:
    path = agent / "versions/r1/version.json"
    facts = json.loads(path.read_text())
    for name in ("../../secret", "/etc/hostname", "a//b", "a\0b"):
        facts["files"] = {name: {"size": 1, "sha256": "0"}}
        path.write_text(json.dumps(facts))
        with pytest.raises(ModelVersionError, match="below published/"):
            put_back(agent, "r1")


def test_a_full_disk_changes_nothing(tmp_path: Path, small_disk) -> None:
    agent = tmp_path / "disk" / "agents" / "a"
    with small_disk(tmp_path / "disk"):
        keep(agent, "r1", "a" * 1_000_000, at=1.0)
        keep(agent, "r2", "b" * 500_000, at=2.0)
        publish(agent, "c" * 1_000)
        publish(agent, "d" * 1_000)  # the weights of r1 are in the kept version alone
        (agent / "filler").write_bytes(b"x" * (shutil.disk_usage(agent).free - 100_000))
        before = describe_published(agent)
        with pytest.raises(OSError, match="No space"):
            put_back(agent, "r1")
        assert load(agent) == "d" * 1_000
        assert describe_published(agent) == before
        with pytest.raises(OSError, match="No space"):
            keep(agent, "r3", "e" * 60_000, at=3.0)
        assert kept_runs(agent) == {"r1", "r2"}
        (agent / "filler").unlink()
        put_back(agent, "r1")
        assert load(agent) == "a" * 1_000_000


def test_a_model_of_an_older_release_is_kept_before_it_is_replaced(tmp_path: Path) -> None:
    agent = tmp_path / "a"
    keep_unrecorded(agent, now=9.0)
    assert read_versions(agent) == []
    publish(agent, "old")
    keep_unrecorded(agent, now=9.0)
    keep_unrecorded(agent, now=9.0)
    keep(agent, "r1", "new", at=9e9)
    [newer, older] = read_versions(agent)
    assert older.id.startswith("unrecorded-")
    assert older.facts is not None
    assert (older.facts.run_id, older.facts.data) == (None, None)
    assert newer.facts is not None
    assert newer.facts.replaced == older.id
    put_back(agent, older.id)
    assert load(agent) == "old"


def test_one_at_a_time_publishes_or_puts_back(agent: Path) -> None:
    busy = pytest.raises(ModelVersionError, match="is publishing")
    with publishing(agent, wait_seconds=0.0), busy, publishing(agent, wait_seconds=0.0):
        pass
    with publishing(agent, wait_seconds=0.0):
        pass
