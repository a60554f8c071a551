"""Reads a sample of records: its format, its records, and what is wrong with the other lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from infrastructure.files import open_regular
from infrastructure.trajectories.genesis_records import read_trajectory_pool
from infrastructure.trajectories.record_source.definition import SourceTable
from infrastructure.trajectories.record_source.formats import (
    RecordFormat,
    json_object,
    line_decoder,
)
from infrastructure.trajectories.record_source.lines import (
    DECOMPRESS,
    LINE_TOO_LONG,
    MAX_LINE_BYTES,
    OTHER_COMPRESSED,
)

MAX_SAMPLE = 10_000
"""Number of lines of a sample that are read."""

_MAX_POOL_BYTES = 1 << 28
_LINE_FORMATS: tuple[RecordFormat, ...] = ("transitions", "replay-trajectories", "casebank")

Decoded = TypeVar("Decoded")


class SampleError(ValueError):
    """Nothing in a sample can be read as a record; the message says what was tried."""


@dataclass(kw_only=True, slots=True)
class Sample(Generic[Decoded]):
    """Lines of a sample that could be decoded, and the first that could not.

    Attributes:
        records: The decoded lines, in order.
        lines: Number of lines that are not blank.
        first_problem: Number of the first line that could not be decoded, and why; empty if all
            could.
    """

    records: list[Decoded] = field(default_factory=list)
    lines: int = 0
    first_problem: str = ""

    @property
    def problems(self) -> str:
        """How many lines are not records, and which is the first; empty if all are."""
        count = self.lines - len(self.records)
        what = f"{count} of {self.lines} lines {'is not a record' if count == 1 else 'are not'}"
        what = what if count == 1 else f"{what} records"
        return f"{what}; the first is {self.first_problem}" if count else ""


def read_sample(path: Path, decode: Callable[[bytes], Decoded]) -> Sample[Decoded]:
    """Decode the first `MAX_SAMPLE` lines of the file *path*.

    Args:
        decode: Function from a line to its record; raises ValueError with the reason.

    Raises:
        OSError: *path* cannot be read, or is not a regular file.
    """
    sample: Sample[Decoded] = Sample()
    for number, line in _lines(path):
        sample.lines += 1
        try:
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(LINE_TOO_LONG)
            sample.records.append(decode(line))
        except ValueError as error:
            sample.first_problem = sample.first_problem or f"line {number}: {error}"
    return sample


def detect_format(path: Path) -> RecordFormat:
    """The format in which most records of the sample *path* can be read.

    Raises:
        SampleError: No record can be read.
        OSError: *path* cannot be read, or is not a regular file.
    """
    open_regular(path).close()  # a pipe or a device may have no end
    if path.name.endswith((*DECOMPRESS, *OTHER_COMPRESSED)):
        raise SampleError(f"{path} is compressed: give a sample that is not")
    small = path.stat().st_size <= _MAX_POOL_BYTES
    if small and next(read_trajectory_pool(path, lambda *_: None), None) is not None:
        return "trajectory-pool"
    objects = read_sample(path, json_object)
    if not objects.lines:
        raise SampleError(f"{path} has no record: it is empty; write one JSON object per line")
    if not objects.records:
        raise SampleError(
            f"{path} has no record: of {objects.lines} lines none is a JSON object; "
            f"{objects.first_problem}; write one JSON object per line, in UTF-8"
        )
    counts = Counter[RecordFormat]()
    for name in _LINE_FORMATS:
        sample = read_sample(path, line_decoder(name, SourceTable(path=path)))
        counts[name] = len(sample.records)
    best, count = counts.most_common(1)[0]
    return best if 2 * count > len(objects.records) else "records"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each line that is not blank; of one too long, a little too much."""
    with open_regular(path) as file:
        for number in range(1, MAX_SAMPLE + 1):
            line = rest = file.readline(MAX_LINE_BYTES + 1)
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE_BYTES + 1)
            if not line:
                return
            if line.strip():
                yield number, line
