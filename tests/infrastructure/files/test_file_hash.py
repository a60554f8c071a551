"""Sizes and hashes of files."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from infrastructure.files import FileHash, hash_bytes, hash_file


@given(content=st.binary())
def test_a_file_and_its_content_have_one_hash(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("hash") / "file"
    path.write_bytes(content)
    expected = FileHash(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    assert hash_file(path) == hash_bytes(content) == expected
    with path.open("rb") as file:
        assert hash_file(file) == expected


def test_a_pipe_and_a_damaged_record_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular file"):
        hash_file(tmp_path / "pipe")
    with pytest.raises(ValidationError, match="sha256"):
        FileHash(bytes=1, sha256="short")
