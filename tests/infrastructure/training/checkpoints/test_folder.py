from pathlib import Path

import pytest
import torch

from infrastructure.training.checkpoints import CheckpointFolder
from infrastructure.training.distributed import Ranks


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "saved", 2, torch.device("cpu"), Ranks())


def test_only_the_newest_are_kept(folder: CheckpointFolder, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / ".step-0000000001.pt.tmp").touch()  # of a writer that was killed
    for step in (9, 10, 11):
        path, size = folder.save(step, {"weights": torch.ones(3), "step": step})
        assert path.stat().st_size == size
    names = [path.name for path in folder.paths()]
    assert names == ["step-0000000011.pt", "step-0000000010.pt"]
    left = {path.name.removesuffix(".json") for path in (tmp_path / "saved").iterdir()}
    assert left == set(names)


def test_what_cannot_be_read_is_passed_over(folder: CheckpointFolder) -> None:
    for step in (1, 2):
        newest, _ = folder.save(step, {"weights": torch.full((3,), float(step))})
    newest.write_bytes(newest.read_bytes()[:-9])
    unreadable: list[Exception] = []
    found = folder.newest({}, unreadable.append)
    assert found is not None
    path, state = found
    assert path.name == "step-0000000001.pt"
    assert state["weights"].tolist() == [1.0, 1.0, 1.0]
    assert len(unreadable) == 1
    assert str(newest) in str(unreadable[0])


def test_an_empty_folder_has_none(folder: CheckpointFolder) -> None:
    assert folder.newest({}, list[Exception]().append) is None
    assert folder.paths() == []


def test_what_a_killed_writer_has_left_is_removed(folder: CheckpointFolder, tmp_path: Path) -> None:
    """Weights without a manifest are not a checkpoint, and nothing would ever delete them."""
    newest, _ = folder.save(1, {"weights": torch.ones(3)})
    half_written = tmp_path / "saved" / "step-0000000002.pt"
    temporary = tmp_path / "saved" / ".step-0000000003.pt.0123abcd"
    for path in (half_written, temporary):
        path.write_bytes(b"torn")
    found = folder.newest({}, list[Exception]().append)
    assert found is not None
    assert found[0] == newest
    assert not half_written.exists()
    assert not temporary.exists()
    half_written.write_bytes(b"torn")
    folder.save(4, {"weights": torch.ones(3)})
    assert not half_written.exists()
