"""Segments in a Parquet file, from which each original file of JSON lines can be restored.

Each field of a transition is a column, such as ``observation.speed``; a null says that the record
lacks the field. A line that the columns cannot hold byte for byte is in the column ``raw``: one
that is altered or torn, and one whose values are of other types than the column's. The file's
metadata names the segments, with their sizes and hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import accumulate, islice, pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.agent_contract.transition import FieldValue, Transition
from infrastructure.files import atomic_file
from infrastructure.trajectories.record import RecordError, decode_record, encode_record
from infrastructure.trajectories.segments import PARQUET_SUFFIX, OnSkip, decode_line

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, DataType, Table

_GROUP_ROWS = 1 << 15
_METADATA, _KINDS_KEY = b"genesis.segments", b"genesis.kinds"
_PARTS = ("observation", "action", "next_observation", "info")
_JSON = "json"
_INT64 = range(-(1 << 63), 1 << 63)
_KINDS: Mapping[type, str] = {float: "double", int: "int64", bool: "bool", str: "string"}
_OWN: Mapping[str, str] = {
    "group": "string",
    "reward": "double",
    "terminated": "bool",
    "propensity": "double",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetSegment:
    """One segment in a Parquet file.

    Attributes:
        name: Name of the file of JSON lines.
        size: Its size.
        whole: Length of its complete lines.
        first_row, rows: Its rows in the Parquet file, one for each line.
        sha256: Hash of its bytes.
    """

    name: str
    size: int
    whole: int
    first_row: int
    rows: int
    sha256: str


Compacted: TypeAlias = tuple[Path, ParquetSegment]
"""A Parquet file and a segment in it."""


class ParquetError(ValueError):
    """A Parquet file does not hold segments, or not what was written to it."""


def segments_in(path: Path) -> dict[str, ParquetSegment]:
    """Return the segments in *path*, by name.

    Raises:
        OSError: The file cannot be read.
        ParquetError: It is damaged, or holds no segments.
        MisconfiguredError: pyarrow is not installed.
    """
    parquet = _pyarrow_parquet(path)
    import pyarrow as pa

    try:
        described_file = parquet.read_metadata(path)
        metadata, rows = described_file.metadata or {}, described_file.num_rows
        described = json.loads(metadata[_METADATA])
        found = {each["name"]: ParquetSegment(**each) for each in described}
        described_rows = sum(segment.rows for segment in found.values())
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise ParquetError(f"{path} does not describe segments: {error!r}") from error
    if described_rows != rows:
        raise ParquetError(f"{path} describes {described_rows} rows, but has {rows}")
    return found


def find_compacted(folder: Path, on_skip: OnSkip) -> dict[str, Compacted]:
    """Return the segments in all Parquet files of *folder*, by name; report unreadable files.

    Raises:
        MisconfiguredError: There are some, and pyarrow is not installed.
    """
    found = dict[str, Compacted]()
    for path in sorted(folder.glob(f"*{PARQUET_SUFFIX}")):
        try:
            found |= {name: (path, segment) for name, segment in segments_in(path).items()}
        except (OSError, ParquetError) as error:
            on_skip(path, 0, f"cannot be read: {error}")
    return found


def write_parquet(path: Path, segments: Sequence[Path], poll: Callable[[], object]) -> None:
    """Write *segments*, which must not grow, to the new Parquet file *path*.

    It appears complete, flushed, and only if each segment can be restored from it byte for byte.

    Args:
        poll: Called between groups of rows; an exception that it raises ends the work.

    Raises:
        OSError: A segment cannot be read, or the disk refuses.
        ParquetError: A segment cannot be restored.
        MisconfiguredError: pyarrow is not installed.
    """
    _pyarrow_parquet(path)
    with atomic_file(path) as file:
        temporary = Path(file.name)
        _write(temporary, segments, poll)
        for segment in segments_in(temporary).values():
            digest = hashlib.sha256()
            for number, line in enumerate(restored_lines(temporary, segment)):
                digest.update(line)
                if number % _GROUP_ROWS == 0:
                    poll()
            if digest.hexdigest() != segment.sha256:
                raise ParquetError(f"{segment.name} cannot be restored from Parquet")


def read_parquet_segment(
    path: Path, segment: ParquetSegment, length: int, on_skip: OnSkip, *, newest_first: bool = False
) -> Iterator[Transition]:
    """Yield the transitions in the first *length* bytes of *segment*; report those skipped.

    Args:
        newest_first: Whether to begin with the last one.
    """
    name = path.with_name(segment.name)
    try:
        for rows in _row_groups(path, segment, newest_first=newest_first):
            for offset, row in reversed(rows) if newest_first else rows:
                if offset >= length:
                    continue
                transition = (
                    decode_line(row, name, offset, on_skip) if isinstance(row, bytes) else row
                )
                if transition is not None:
                    yield transition
    except OSError as error:
        on_skip(path, 0, f"cannot be read: {error}")


def restored_lines(path: Path, segment: ParquetSegment) -> Iterator[bytes]:
    """Yield the lines of *segment* as they were recorded; the last may be torn.

    Raises:
        OSError: The file cannot be read.
    """
    for rows in _row_groups(path, segment):
        for _, row in rows:
            yield row if isinstance(row, bytes) else encode_record(row)


def hash_of_segment(path: Path, segment: ParquetSegment, length: int) -> str:
    """SHA-256 of the first *length* bytes of *segment* as it was recorded.

    Raises:
        OSError: The file cannot be read.
    """
    if length == segment.size:
        return segment.sha256
    digest = hashlib.sha256()
    for line in restored_lines(path, segment):
        digest.update(line[:length])
        length -= min(length, len(line))
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """A line: its offset, its bytes, and the transition in it if the columns may hold it."""

    offset: int
    content: bytes
    transition: Transition | None


class _Columns:
    """Names and kinds of the fields' columns, chosen from some lines."""

    def __init__(self, lines: Sequence[_Line]) -> None:
        self.kinds = {part: dict[str, str]() for part in _PARTS}
        for line in lines:
            if line.transition is None:
                continue
            for part, kinds in self.kinds.items():
                for name, value in getattr(line.transition, part).items():
                    kind = _kind(value)
                    if _is_storable(name):
                        known = kinds.setdefault(name, kind)
                        if kind not in (known, ""):
                            kinds[name] = _JSON if known else kind
        for kinds in self.kinds.values():
            kinds.update({name: "list<double>" for name, kind in kinds.items() if not kind})
        self._numbers = {
            part: {name: number for number, name in enumerate(kinds)}
            for part, kinds in self.kinds.items()
        }

    def hold(self, line: _Line) -> bool:
        """Whether the columns hold *line* byte for byte, with its fields in their order."""
        transition = line.transition
        if transition is None or not _is_storable(transition.group):
            return False
        for part, kinds in self.kinds.items():
            numbers, last = self._numbers[part], -1
            for name, value in getattr(transition, part).items():
                number = numbers.get(name, -1)
                if number <= last or not _fits(kinds[name], value):
                    return False
                last = number
        return encode_record(transition) == line.content

    def table(self, lines: Sequence[_Line]) -> Table:
        """Arrow table of *lines*."""
        import pyarrow as pa

        held = [line.transition if self.hold(line) else None for line in lines]
        raw = [line.content if row is None else None for line, row in zip(lines, held, strict=True)]
        columns: dict[str, Any] = {
            "raw": pa.array(raw, pa.binary()),
            "offset": pa.array([line.offset for line in lines], pa.int64()),
        }
        for name, arrow in _OWN.items():
            values = [None if row is None else getattr(row, name) for row in held]
            columns[name] = pa.array(values, pa.type_for_alias(arrow))
        for part, kinds in self.kinds.items():
            rows = [{} if row is None else getattr(row, part) for row in held]
            for name, kind in kinds.items():
                values = [row.get(name) for row in rows]
                if kind == _JSON:
                    values = [None if value is None else json.dumps(value) for value in values]
                columns[f"{part}.{name}"] = pa.array(values, _arrow_type(kind))
        kinds_text = json.dumps(self.kinds).encode()
        return pa.table(columns).replace_schema_metadata({_KINDS_KEY: kinds_text})


def _kind(value: FieldValue) -> str:
    """Kind of the column that holds *value*; empty for an empty list, which fits any list."""
    if type(value) is not tuple:
        return _KINDS[type(value)]
    kinds = {_KINDS[type(item)] for item in value}
    if not kinds:
        return ""
    return f"list<{kinds.pop()}>" if len(kinds) == 1 else _JSON


def _fits(kind: str, value: FieldValue) -> bool:
    if kind == _JSON:
        return True
    if kind.startswith("list<") != (type(value) is tuple) or _kind(value) not in (kind, ""):
        return False
    items = value if type(value) is tuple else (value,)
    if kind in ("int64", "list<int64>"):
        return all(item in _INT64 for item in items)
    if kind in ("string", "list<string>"):
        return all(_is_storable(cast(str, item)) for item in items)
    return True


def _is_storable(text: str) -> bool:
    """Whether *text* is UTF-8; JSON also allows half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _arrow_type(kind: str) -> DataType:
    import pyarrow as pa

    if kind == _JSON:
        return pa.string()
    inner = kind.removeprefix("list<").removesuffix(">")
    return pa.list_(pa.type_for_alias(inner)) if kind != inner else pa.type_for_alias(kind)


def _write(path: Path, segments: Sequence[Path], poll: Callable[[], object]) -> None:
    """Write the rows of *segments*, one after the other, and describe them at the end."""
    import pyarrow.parquet as pq

    described = list[ParquetSegment]()
    lines = _lines(segments, described)
    group = list(islice(lines, _GROUP_ROWS))
    columns = _Columns(group)
    table = columns.table(group)
    options = {
        "compression": "zstd",
        "use_dictionary": [name for name in table.column_names if name != "offset"],
        "column_encoding": {"offset": "DELTA_BINARY_PACKED"},
        "write_page_checksum": True,
    }
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        while group:
            writer.write_table(columns.table(group))
            poll()
            group = list(islice(lines, _GROUP_ROWS))
        text = json.dumps([asdict(segment) for segment in described])
        writer.add_key_value_metadata({_METADATA: text.encode()})


def _lines(segments: Sequence[Path], described: list[ParquetSegment]) -> Iterator[_Line]:
    """Yield the lines of *segments*; add each segment's description once it is read."""
    rows = 0
    for path in segments:
        digest, offset, first, whole = hashlib.sha256(), 0, rows, 0
        with path.open("rb") as file:
            for line in file:
                digest.update(line)
                try:
                    transition = decode_record(line.rstrip(b"\n"))
                except RecordError:
                    transition = None
                yield _Line(offset=offset, content=line, transition=transition)
                offset += len(line)
                rows += 1
                whole = offset if line.endswith(b"\n") else whole
        described.append(
            ParquetSegment(
                name=path.name,
                size=offset,
                whole=whole,
                first_row=first,
                rows=rows - first,
                sha256=digest.hexdigest(),
            )
        )


def _batches(path: Path, segment: ParquetSegment, *, newest_first: bool = False) -> Iterator[Table]:
    """Yield the rows of *segment* as Arrow tables, group by group.

    Raises:
        OSError: The file cannot be read, or is damaged.
        MisconfiguredError: pyarrow is not installed.
    """
    parquet = _pyarrow_parquet(path)
    import pyarrow as pa

    first, end = segment.first_row, segment.first_row + segment.rows
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            counts = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
            starts = [sum(counts[:number]) for number in range(len(counts))]
            numbers = [n for n, at in enumerate(starts) if at < end and at + counts[n] > first]
            for number in reversed(numbers) if newest_first else numbers:
                table = file.read_row_group(number, use_threads=False)
                start = max(0, first - starts[number])
                yield table.slice(start, min(counts[number], end - starts[number]) - start)
    except pa.ArrowInvalid as error:
        raise OSError(f"{path} is damaged: {error}") from error


def _row_groups(
    path: Path, segment: ParquetSegment, *, newest_first: bool = False
) -> Iterator[list[tuple[int, Transition | bytes]]]:
    """Yield the rows of *segment* group by group; see `_rows`.

    Parquet has no checksum of its schema: damage shows when the columns are read.

    Raises:
        OSError: The file cannot be read, or is damaged.
        MisconfiguredError: pyarrow is not installed.
    """
    for batch in _batches(path, segment, newest_first=newest_first):
        try:
            rows = list(_rows(batch))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise OSError(f"{path} is damaged: {error!r}") from error
        yield rows


def _rows(table: Table) -> Iterator[tuple[int, Transition | bytes]]:
    """Yield offset and transition of each row of an Arrow table; the line where it is raw.

    Raises:
        AttributeError, LookupError, TypeError, ValueError: The schema is damaged.
    """
    kinds = json.loads(table.schema.metadata[_KINDS_KEY])
    _check_types(table, kinds)
    own = {name: table[name].to_pylist() for name in ("raw", "offset", *_OWN)}
    parts = {part: _part_rows(table, part, kinds[part]) for part in _PARTS}
    columns = zip(*own.values(), *parts.values(), strict=True)
    for raw, offset, group, reward, terminated, propensity, *fields in columns:
        if raw is not None:
            yield offset, raw
            continue
        observation, action, following, info = fields
        yield (
            offset,
            Transition(
                group=group,
                observation=observation,
                action=action,
                reward=reward,
                next_observation=following,
                terminated=terminated,
                propensity=propensity,
                info=info,
            ),
        )


def _check_types(table: Table, kinds: Mapping[str, Mapping[str, str]]) -> None:
    """Check the types of the columns, which damage may change.

    Raises:
        TypeError: A column is of another type than `_Columns.table` made it.
    """
    import pyarrow as pa

    wanted = {"raw": pa.binary(), "offset": pa.int64()}
    wanted |= {name: pa.type_for_alias(alias) for name, alias in _OWN.items()}
    for part in _PARTS:
        wanted |= {f"{part}.{name}": _arrow_type(kind) for name, kind in kinds[part].items()}
    for name, arrow in wanted.items():
        if table[name].type != arrow:
            raise TypeError(f"column {name} holds {table[name].type}, expected {arrow}")


def _part_rows(table: Table, part: str, kinds: Mapping[str, str]) -> list[dict[str, FieldValue]]:
    """Fields of each row; a null stands for a field that the record lacks."""
    if not kinds:
        return [{} for _ in range(table.num_rows)]
    names = list(kinds)
    columns = [_values(table[f"{part}.{name}"], kind) for name, kind in kinds.items()]
    has_nulls = any(table[f"{part}.{name}"].null_count for name in names)
    rows = zip(*columns, strict=True)
    if has_nulls:
        return [
            {name: value for name, value in zip(names, row, strict=True) if value is not None}
            for row in rows
        ]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _values(column: ChunkedArray, kind: str) -> list[Any]:
    """Python values of an Arrow column; None for null."""
    if kind == _JSON:
        parsed = [None if text is None else json.loads(text) for text in column.to_pylist()]
        return [tuple(value) if isinstance(value, list) else value for value in parsed]
    if not kind.startswith("list<"):
        return list(column.to_pylist())
    array = column.combine_chunks()
    items = array.flatten().to_pylist()  # of lists that are not null
    lengths = [length or 0 for length in array.value_lengths().to_pylist()]
    ends = list(accumulate(lengths, initial=0))
    lists = [tuple(items[start:end]) for start, end in pairwise(ends)]
    if not array.null_count:
        return lists
    valid = array.is_valid().to_pylist()
    return [value if is_list else None for value, is_list in zip(lists, valid, strict=True)]


def _pyarrow_parquet(path: Path) -> ModuleType:
    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:
        raise MisconfiguredError(
            f"{path} holds transitions in Parquet, which needs pyarrow: install "
            "genesis-fp16[parquet]"
        ) from error
