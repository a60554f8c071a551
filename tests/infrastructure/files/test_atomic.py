"""Atomic files: all of the new content or all of the old, and nothing left behind."""

import os
import time
from pathlib import Path

import pytest

from infrastructure.files import atomic_file, copy_folder, remove_abandoned, write_atomically


@pytest.mark.parametrize("content", ["größer", b"\x00\xff", ""])
def test_content_replaces_what_was_there(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_an_error_inside_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")

    def write_half() -> None:
        with atomic_file(path) as file:
            file.write(b"half of the new")
            raise ValueError("half written")

    with pytest.raises(ValueError, match="half"):
        write_half()
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_nothing_is_visible_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with atomic_file(path) as file:
        file.write(b"new")
        file.flush()
        assert not path.exists()
    assert path.read_text() == "new"


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "absent" / "state.json", "new")


def test_what_a_killed_writer_has_left_is_removed(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "state.json") as file:
        abandoned = Path(file.name)
        os.link(abandoned, tmp_path / "copy")  # as a kill before the rename would leave it
    (tmp_path / "copy").rename(abandoned)
    kept = [tmp_path / name for name in (".hidden", ".name.12345678.txt", "state.json.12345678")]
    for path in kept:
        path.touch()
    (tmp_path / ".folder.12345678").mkdir()
    remove_abandoned(tmp_path)
    assert abandoned.exists()
    os.utime(abandoned, (time.time() - 61, time.time() - 61))
    remove_abandoned(tmp_path)
    assert not abandoned.exists()
    abandoned.touch()
    remove_abandoned(tmp_path, older_seconds=0.0)
    assert not abandoned.exists()
    assert all(path.exists() for path in kept)
    assert (tmp_path / ".folder.12345678").is_dir()


def test_a_folder_is_copied_whole_or_not_at_all(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "deep" / "target"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "file").write_bytes(b"x" * 100_000)
    (source / "gone").symlink_to("nowhere")
    with pytest.raises(OSError, match="No such file"):
        copy_folder(source, target)
    assert list(target.parent.iterdir()) == []
    (source / "gone").unlink()
    copy_folder(source, target)
    assert (target / "sub" / "file").read_bytes() == b"x" * 100_000
    (source / "sub" / "file").write_bytes(b"later")
    copy_folder(source, target)  # as another rank would
    assert (target / "sub" / "file").read_bytes() == b"x" * 100_000
    copy_folder(tmp_path / "missing", tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []
    assert [each.name for each in target.parent.iterdir()] == ["target"]
