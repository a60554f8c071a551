"""The record of removed weights, and the removal of a folder."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from genesis_fp16.runs.run_folder import (
    WEIGHTS_REMOVED,
    delete,
    describe_removal,
    opened,
    remove_weights,
    weights_removal_reason,
)


def test_the_reason_for_removed_weights_is_read_from_a_file(tmp_path: Path) -> None:
    word = tmp_path / WEIGHTS_REMOVED
    assert weights_removal_reason(tmp_path) == ""
    word.write_text("removed\n")
    assert weights_removal_reason(tmp_path) == "removed"
    word.unlink()
    os.mkfifo(word)
    assert weights_removal_reason(tmp_path) == ""


def test_files_left_of_a_removed_folder_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert describe_removal(folder, None) == ""
    assert describe_removal(folder, "removed on a day") == "removed on a day"
    folder.mkdir()
    assert describe_removal(folder, None) == ""
    left = describe_removal(folder, "removed on a day")
    assert str(folder) in left
    assert left.endswith("removed on a day")


@pytest.mark.parametrize("depth", [1, 1200])
def test_everything_but_links_is_deleted(tmp_path: Path, depth: int) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_bytes(b"gold")
    folder = deepest = tmp_path / "run"
    folder.mkdir()
    for _ in range(depth):
        deepest /= "d"
        deepest.mkdir()
    (deepest / "file").write_bytes(b"12345")
    (folder / "empty").mkdir()
    link = folder / "link"
    link.symlink_to(treasure)
    with opened(tmp_path) as within:
        assert sum(delete(within, "run")) == 5
        assert list(folder.iterdir()) == [link]
        link.unlink()
        assert sum(delete(within, "run")) == 0
    assert not folder.exists()
    assert treasure.read_bytes() == b"gold"


@pytest.fixture
def swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Put a link in the place of a folder in the moment before it is opened."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep" / "treasure").write_bytes(b"gold")
    (elsewhere / "treasure").write_bytes(b"gold")
    real = os.open

    def swap(folder: Path) -> Path:
        def open_after_swap(name: str, *arguments: object, **options: object) -> int:
            if name == folder.name and not folder.is_symlink():
                folder.rename(tmp_path / "aside")
                folder.symlink_to(elsewhere)
            return real(name, *arguments, **options)

        monkeypatch.setattr(os, "open", open_after_swap)
        return elsewhere

    return swap


@pytest.mark.parametrize("swapped", ["run", "run/checkpoints", "run/checkpoints/deep"])
def test_a_link_that_takes_the_place_of_a_folder_is_not_followed(
    tmp_path: Path, swap: Callable[[Path], Path], swapped: str
) -> None:
    (tmp_path / "run" / "checkpoints" / "deep").mkdir(parents=True)
    elsewhere = swap(tmp_path / swapped)
    with opened(tmp_path) as within, pytest.raises(OSError, match="Not a directory"):
        sum(delete(within, "run"))
    assert len(list(elsewhere.rglob("treasure"))) == 2


def test_weights_are_not_removed_through_a_link(
    tmp_path: Path, swap: Callable[[Path], Path]
) -> None:
    (tmp_path / "run" / "checkpoints" / "deep").mkdir(parents=True)
    elsewhere = swap(tmp_path / "run" / "checkpoints")
    with (
        opened(tmp_path) as within,
        opened("run", within) as run,
        pytest.raises(OSError, match="Not a directory"),
    ):
        sum(remove_weights(run, "old"))
    assert len(list(elsewhere.rglob("treasure"))) == 2


def test_a_folder_that_is_moved_away_meanwhile_takes_nothing_else_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's new parent is not the one it was found in, so nothing there is deleted."""
    (tmp_path / "run" / "inner" / "deep").mkdir(parents=True)
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    real = os.open

    def move(name: str, *arguments: object, **options: object) -> int:
        if name == "..":
            monkeypatch.setattr(os, "open", real)
            (tmp_path / "run" / "inner" / "deep").rename(elsewhere / "deep")
        return real(name, *arguments, **options)

    monkeypatch.setattr(os, "open", move)
    with opened(tmp_path) as within, pytest.raises(OSError, match="moved while"):
        sum(delete(within, "run"))
    assert (elsewhere / "deep").is_dir()
