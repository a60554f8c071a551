"""Files of tensors: all or nothing, hashed, never unpickled."""

import errno
import os
import re
from pathlib import Path

import pytest
import torch

from infrastructure.files import hash_bytes, hash_file
from infrastructure.training.tensor_files import (
    TensorFileError,
    read_tensors,
    replaced_tensors,
    tensor_bytes,
    write_tensors,
)

CONTENT = {"weight": torch.arange(4.0), "steps": [1, (2, None)]}


def test_tensors_come_back_from_a_path_a_file_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    assert write_tensors(path, CONTENT) == hash_file(path)
    data, hashed = tensor_bytes(CONTENT)
    assert hashed == hash_bytes(data)
    with path.open("rb") as file:
        for source in (path, file, data):
            found = read_tensors(source)
            assert torch.equal(found["weight"], CONTENT["weight"])
            assert found["steps"] == CONTENT["steps"]
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt"]


def test_an_error_before_the_end_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_tensors(path, CONTENT)
    before = path.read_bytes()

    def replace_and_fail() -> None:
        with replaced_tensors(path, {"other": torch.zeros(1)}) as written:
            assert written != hash_file(path)
            raise KeyError("stop")

    with pytest.raises(KeyError):
        replace_and_fail()
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt"]


def test_a_full_disk_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_tensors(tmp_path / "a.pt", CONTENT)
    assert list(tmp_path.iterdir()) == []


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("touch owned",))


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, _ = tensor_bytes(Evil())
    with pytest.raises(TensorFileError, match="system") as refused:
        read_tensors(data)
    assert not Path("owned").exists()
    assert "weights_only" not in str(refused.value), "torch's advice to unpickle it"
    assert refused.value.__suppress_context__


@pytest.mark.parametrize("content", [b"", b"torn", b"\x80\x02."])
def test_damaged_bytes_are_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(TensorFileError) as refused:
        read_tensors(content)
    assert "\n" not in str(refused.value)


def test_nothing_else_in_the_product_saves_or_loads_tensors() -> None:
    root = Path(__file__).parents[3]
    folders = (root / name for name in ("agents", "genesis_fp16", "infrastructure"))
    calling = {
        str(path.relative_to(root))
        for folder in folders
        for path in folder.rglob("*.py")
        if {"torch.save(", "torch.load("} & set(re.findall(r"torch\.\w+\(", path.read_text()))
    }
    assert calling == {"infrastructure/training/tensor_files.py"}
