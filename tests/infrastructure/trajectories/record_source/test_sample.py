"""What a sample of records is, and how one is refused."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from infrastructure.trajectories.record_source.formats import json_object
from infrastructure.trajectories.record_source.lines import MAX_LINE_BYTES
from infrastructure.trajectories.record_source.sample import (
    SampleError,
    detect_format,
    read_sample,
)


def test_lines_that_are_not_records_are_counted_with_the_first(tmp_path: Path) -> None:
    path = tmp_path / "sample.jsonl"
    long = b'{"x": "' + b"x" * MAX_LINE_BYTES + b'"}'
    path.write_bytes(b'\n{"a": 1}\r\n' + long + b'\n{"a": 2}\n{"b')
    found = read_sample(path, json_object)
    assert found.records == [{"a": 1}, {"a": 2}]
    assert found.lines == 4
    assert found.problems.startswith("2 of 4 lines are not records; the first is line 3: ")
    assert found.problems.endswith(" 1 MiB")
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n{')
    assert read_sample(path, json_object).problems.startswith("1 of 2 lines is not a record; ")


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular file"):
        detect_format(tmp_path / "pipe")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_a_sample_in_another_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    """A run would refuse its lines, too."""
    rows = [json.dumps({"name": "é", "size": size}, ensure_ascii=False) for size in range(4)]
    path = tmp_path / "sample.jsonl"
    path.write_text("\n".join(rows), encoding=encoding)
    with pytest.raises(SampleError, match=r"line 1: not .*UTF-8"):
        detect_format(path)


def test_a_compressed_sample_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(SampleError, match="is compressed"):
        detect_format(path)


@pytest.mark.parametrize("content", ["", "\n\n", "1\n[]\n", "\x00\xff"])
def test_a_sample_without_records_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "sample").write_text(content, encoding="latin-1")
    with pytest.raises(SampleError, match="has no record"):
        detect_format(tmp_path / "sample")
