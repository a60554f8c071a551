"""Atomic files: all of the new content or all of the old, and nothing left behind."""

from pathlib import Path

import pytest

from infrastructure.files import atomic_file, write_atomically


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
