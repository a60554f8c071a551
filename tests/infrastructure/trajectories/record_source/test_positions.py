from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from infrastructure.trajectories.record_source.positions import (
    Position,
    PositionsFile,
    resume_at,
    seam_of,
)


def test_positions_of_another_source_or_a_damaged_file_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    assert PositionsFile(path, "a").read() == {}
    position = Position(device=1, inode=2, offset=3, lines=1, seam="x")
    PositionsFile(path, "a").write([position])
    assert PositionsFile(path, "a").read() == {(1, 2): position}
    assert PositionsFile(path, "b").read() == {}
    path.write_text("{}")
    assert PositionsFile(path, "a").read() == {}


@pytest.mark.parametrize("change", ["none", "append", "head", "tail", "shorter"])
def test_a_file_is_resumed_only_if_it_still_begins_with_what_was_read(
    tmp_path: Path, change: str
) -> None:
    content = bytes(range(256)) * 100
    path = tmp_path / "a"
    path.write_bytes(content)
    status = path.stat()
    known = Position(
        device=status.st_dev,
        inode=status.st_ino,
        offset=len(content),
        lines=9,
        seam=seam_of(io.BytesIO(content), len(content)),
    )
    altered = {
        "none": content,
        "append": content + b"more",
        "head": b"x" + content[1:],
        "tail": content[:-1] + b"x" + b"more",
        "shorter": content[:-1],
    }[change]
    path.write_bytes(altered)
    with path.open("rb") as file:
        found = resume_at(file, known, os.fstat(file.fileno()))
    assert (found == known) is (change in ("none", "append"))
    assert found.offset in (0, len(content))
