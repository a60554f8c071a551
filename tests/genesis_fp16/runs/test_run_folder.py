"""The record of removed weights, and the removal of a folder."""

import os
from pathlib import Path

import pytest

from genesis_fp16.runs.run_folder import (
    WEIGHTS_REMOVED,
    delete,
    describe_removal,
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
    assert left.endswith("the rest was removed on a day")


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
    assert delete(folder) == 5
    assert list(folder.iterdir()) == [link]
    link.unlink()
    assert delete(folder) == 0
    assert not folder.exists()
    assert treasure.read_bytes() == b"gold"
