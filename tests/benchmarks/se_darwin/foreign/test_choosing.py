"""The whole way: a history, the choice, the manifest, and the bugs built from it."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.se_darwin.foreign import algorithms, building, manifest
from benchmarks.se_darwin.foreign.choosing import choose_algorithms
from benchmarks.se_darwin.foreign.clones import Clones

REPOSITORY = "https://example.org/owner/name"
RIGHT = '''\
def half(number):
    """
    >>> half(4)
    2
    >>> half(10)
    5
    >>> half(2)
    1
    >>> half(0)
    0
    """
    return number // 2


def same(number):
    """
    >>> same(1)
    1
    >>> same(2)
    2
    >>> same(3)
    3
    """
    return number
'''


@pytest.fixture
def clones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clones]:
    work = tmp_path / "work"
    work.mkdir()
    for text in (
        RIGHT.replace("// 2", "// 3").replace("return number\n", "return +number\n"),
        RIGHT,
    ):
        (work / "halves.py").write_text(text)
        _git(work, "init", "-q")
        _git(work, "add", ".")
        _git(work, "commit", "-q", "-m", "Change")
    shutil.move(work / ".git", tmp_path / "owner+name")
    monkeypatch.setattr(algorithms, "REPOSITORY", REPOSITORY)
    monkeypatch.setattr(manifest, "FOLDER", tmp_path / "manifests")
    found = Clones(tmp_path)
    yield found
    found.close()


def _git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True)


@pytest.mark.process
def test_a_change_that_a_check_notices_is_chosen_and_built_again(
    clones: Clones, tmp_path: Path
) -> None:
    chosen = choose_algorithms(clones)
    chosen.write()
    [bug] = building.build("algorithms", clones, tmp_path / "built")

    assert bug.name == "halves.half"
    assert "// 3" in bug.code
    assert "// 2" in bug.right_code
    assert bug.test_code.count("assert") == 3
    assert "half(0)" in bug.hidden_test_code + bug.test_code
    assert building.read_built("algorithms", tmp_path / "built") == [bug]


@pytest.mark.process
def test_another_text_than_in_the_manifest_is_refused(clones: Clones, tmp_path: Path) -> None:
    chosen = choose_algorithms(clones)
    [entry] = chosen.bugs
    other = entry.model_copy(update={"visible": entry.visible[:2]})
    chosen.model_copy(update={"bugs": [other]}).write()

    with pytest.raises(ValueError, match="other texts"):
        building.build("algorithms", clones, tmp_path / "built")


@pytest.mark.process
def test_bugs_must_be_built_before_they_are_read(clones: Clones, tmp_path: Path) -> None:
    choose_algorithms(clones).write()

    with pytest.raises(ValueError, match="foreign build --clones"):
        building.read_built("algorithms", tmp_path / "built")
