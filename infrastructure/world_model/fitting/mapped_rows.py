"""Encoded training rows in memory-mapped files: what a batch needs of each row, and nothing else.

Each tensor is a file of its own, row after row. Tokens of a text field are concatenated; a file
beside them has the position after each row's last token.

Shapes: N rows, T text tokens over all rows.
"""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infrastructure.trajectories.encoding import Features, Tokens

_DENSE = "dense"
_TARGET = "target."
_ENDS = ".ends"
_PER_TOKEN = tuple(
    each.name for each in dataclasses.fields(Tokens) if each.name not in ("lengths", "shares")
)

Span = tuple[int, int]
"""First row, and the one after the last."""


class MappedRowsError(ValueError):
    """The files are missing, damaged, or do not fit their description."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnFile:
    """One file.

    Attributes:
        file: Name of the file.
        dtype: Type of its numbers, as numpy names it.
        width: Numbers in a row; None if the rows are not vectors.
        count: Number of rows, or of tokens.
    """

    file: str
    dtype: str
    width: int | None
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array in the file."""
        return (self.count,) if self.width is None else (self.count, self.width)

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


class RowWriter:
    """Writes encoded rows to a new folder; a context manager.

    Args:
        folder: Folder of the files; must exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = ExitStack()
        self._open = dict[str, BinaryIO]()
        self._columns = dict[str, ColumnFile]()
        self._tokens = dict[str, int]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.__exit__(kind, error, trace)

    def append(self, features: Features, targets: Mapping[str, Tensor]) -> None:
        """Write further rows.

        Raises:
            OSError: The disk refuses.
        """
        self._write(_DENSE, features.dense.numpy())
        for key, tokens in features.texts.items():
            ends_N = self._tokens.get(key, 0) + tokens.lengths.cumsum(0)
            self._tokens[key] = int(ends_N[-1])
            self._write(f"{key}{_ENDS}", ends_N.numpy())
            for name in _PER_TOKEN:
                column_T = getattr(tokens, name).numpy()
                is_whole = column_T.dtype.kind == "i"  # numbers of buckets: 4 bytes are enough
                self._write(f"{key}.{name}", column_T.astype(np.int32) if is_whole else column_T)
        for name, target in targets.items():
            self._write(f"{_TARGET}{name}", target.numpy())

    def finish(self) -> dict[str, ColumnFile]:
        """Wait until all is on the disk, and describe the files by their column.

        Raises:
            OSError: The disk refuses.
        """
        for file in self._open.values():
            file.flush()
            os.fsync(file.fileno())
        return dict(self._columns)

    def _write(self, name: str, array: NDArray[np.generic]) -> None:
        if name not in self._open:
            file = f"{len(self._open)}.bin"
            self._open[name] = self._files.enter_context((self._folder / file).open("xb"))
            self._columns[name] = ColumnFile(
                file=file,
                dtype=array.dtype.name,
                width=array.shape[1] if array.ndim == 2 else None,
                count=0,
            )
        self._open[name].write(np.ascontiguousarray(array).data)
        column = self._columns[name]
        self._columns[name] = replace(column, count=column.count + len(array))


class MappedRows:
    """Rows that a `RowWriter` wrote; only what is read of them is in memory.

    Args:
        folder: Folder of the files.
        columns: What `RowWriter.finish` returned.

    Raises:
        MappedRowsError: A file is missing or has another size.
    """

    def __init__(self, folder: Path, columns: Mapping[str, ColumnFile]) -> None:
        self._folder, self._columns = folder, dict(columns)
        if _DENSE not in columns:
            raise MappedRowsError(f"{folder} has no dense features")
        for column in columns.values():
            path = folder / column.file
            size = path.stat().st_size if path.is_file() else -1
            if size != column.nbytes:
                raise MappedRowsError(f"{path} has {size} bytes instead of {column.nbytes}")
        self._targets = [name for name in columns if name.startswith(_TARGET)]
        others = columns.keys() - set(self._targets)
        self._texts = sorted(n.removesuffix(_ENDS) for n in others if n.endswith(_ENDS))

    def __len__(self) -> int:
        return self._columns[_DENSE].count

    @property
    def row_bytes(self) -> float:
        """Mean size of a row."""
        return sum(column.nbytes for column in self._columns.values()) / max(1, len(self))

    def read(
        self, spans: Sequence[Span], reused: ReadBuffers | None = None
    ) -> tuple[Features, dict[str, Tensor]]:
        """Copy the rows of *spans*, one span after the other: features, and targets by name.

        Args:
            reused: Memory of an earlier call, whose results are overwritten; new memory costs more
                time than the copy.

        Raises:
            OSError: A file cannot be read, or is shorter than it was.
        """
        buffers = ReadBuffers() if reused is None else reused
        rows = sum(end - start for start, end in spans)
        texts = {key: self._read_tokens(key, spans, buffers) for key in self._texts}
        features = Features(
            dense=self._read(_DENSE, spans, buffers),
            texts=texts,
            out_of_distribution=torch.zeros(rows, dtype=torch.bool),
        )
        targets = {
            name.removeprefix(_TARGET): self._read(name, spans, buffers) for name in self._targets
        }
        return features, targets

    def remove(self) -> None:
        """Delete the folder; a further attempt would build it again."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read_tokens(self, key: str, spans: Sequence[Span], buffers: ReadBuffers) -> Tokens:
        ends = self._map(f"{key}{_ENDS}")
        lengths, token_spans = [], []
        for start, end in spans:
            before = int(ends[start - 1]) if start else 0
            own = np.array(ends[start:end])
            lengths.append(np.diff(own, prepend=before))
            token_spans.append((before, int(own[-1])))
        columns = {name: self._read(f"{key}.{name}", token_spans, buffers) for name in _PER_TOKEN}
        return Tokens(
            lengths=torch.from_numpy(np.concatenate(lengths)),
            **{
                n: each.long() if each.dtype == torch.int32 else each for n, each in columns.items()
            },
        )

    def _read(self, name: str, spans: Sequence[Span], buffers: ReadBuffers) -> Tensor:
        """Copy *spans* into memory; unlike a map's, the pages of the file do not add up there."""
        column, position = self._columns[name], 0
        count = sum(end - start for start, end in spans)
        copied = buffers.take(name, column, count)
        target = copied.data.cast("B") if count else memoryview(b"")
        row_bytes = column.nbytes // max(1, column.count)
        with (self._folder / column.file).open("rb", buffering=0) as file:
            for start, end in spans:
                size = (end - start) * row_bytes
                part = target[position : position + size]
                if os.preadv(file.fileno(), [part], start * row_bytes) != size:
                    raise OSError(errno.EIO, "is shorter than it was", file.name)
                position += size
        return torch.from_numpy(copied)

    def _map(self, name: str) -> NDArray[np.generic]:
        column = self._columns[name]
        path = self._folder / column.file
        return np.memmap(path, mode="r", dtype=column.dtype, shape=column.shape)


class ReadBuffers:
    """Memory that `MappedRows.read` copies into, so that a next call need not ask for new one."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[np.generic]] = {}

    def take(self, name: str, column: ColumnFile, count: int) -> NDArray[np.generic]:
        """An array for *count* rows of *column*, which may be in use since an earlier call."""
        array = self._arrays.get(name)
        if array is None or len(array) < count:
            shape = replace(column, count=count).shape
            array = self._arrays[name] = np.empty(shape, dtype=column.dtype)
        return array[:count]


def columns_to_json(columns: Mapping[str, ColumnFile]) -> dict[str, object]:
    """Return the description of the files as a JSON object."""
    return {
        name: [column.file, column.dtype, column.width, column.count]
        for name, column in columns.items()
    }


def columns_from_json(value: object) -> dict[str, ColumnFile]:
    """Rebuild what `columns_to_json` wrote.

    Raises:
        TypeError, ValueError: *value* does not describe files.
    """
    columns = {}
    for name, described in cast("Mapping[str, Iterable[object]]", value).items():
        file, dtype, width, count = described
        columns[name] = ColumnFile(
            file=cast(str, file),
            dtype=cast(str, dtype),
            width=cast("int | None", width),
            count=cast(int, count),
        )
    return columns
