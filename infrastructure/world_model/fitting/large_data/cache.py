"""Training data on disk, encoded once and opened again by each further attempt of a run.

The folder has encoded training rows, the sampled transitions, and ``header.json``, which describes
them, has the encoders, and comes last. A folder whose header is damaged, or belongs to other data,
or does not fit the files, is built again.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import cast

from filelock import FileLock

from infrastructure.agent_contract.agent import RecordedTransitions
from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.files import flush_folder, read_json, write_atomically
from infrastructure.trajectories import BufferView, Part, ReplayBuffer
from infrastructure.trajectories.collector import collector_paused
from infrastructure.trajectories.data_checks import Finding
from infrastructure.trajectories.encoding import FeatureEncoder, TargetCodec
from infrastructure.trajectories.history import stream_history
from infrastructure.trajectories.schema import spec_to_json
from infrastructure.world_model.fitting.large_data.survey import (
    PartOf,
    SampleSizes,
    part_function,
    survey,
)
from infrastructure.world_model.fitting.mapped_rows import (
    MappedRows,
    RowWriter,
    columns_from_json,
    columns_to_json,
)
from infrastructure.world_model.fitting.training_data import (
    TrainingData,
    UsabilityCheck,
    data_part,
    fit_encoders,
)

IN_MEMORY_ROWS = 200_000
"""Up to so many transitions stay in memory."""

_FORMAT = 1
_HEADER = "header.json"
_MOST_HEADER_BYTES = 1 << 30
_PARTS: tuple[Part, ...] = ("train", "calibration", "test")
_ENCODED_TOGETHER = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class LargeDataSource:
    """What to encode.

    Attributes:
        transitions: Recorded transitions; are read several times.
        newest: Number of them to use; the newest.
        split_seed: See `prepare_training_data`.
        sizes: Sizes of the samples.
        report: Receives the number of transitions read, and their total if it is known.
    """

    transitions: RecordedTransitions
    newest: int
    split_seed: int = 0
    sizes: SampleSizes = field(default_factory=SampleSizes)
    report: Callable[[int, int | None], None] = lambda _done, _total: None


def prepare_large_data(
    spec: TransitionSpec, source: LargeDataSource, folder: Path
) -> tuple[TrainingData, str]:
    """Encode the training rows of *source* into *folder*, unless an earlier call has.

    Statistics, vocabularies and the linear model are fitted on a sample of the training rows;
    calibration and test data are samples of whole groups. The samples are checked as other data.
    Processes that share *folder* take turns.

    Returns:
        The data, and the reason why an existing folder was not used; empty if it was, or none
        existed.

    Raises:
        InsufficientDataError: See `prepare_training_data`.
        TypeError: Something in the transitions is not a `Transition`.
        OSError: The disk refuses.
    """
    key = _key(spec, source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")), collector_paused():
        reason = ""
        if folder.exists():
            try:
                return _open(spec, key, folder), ""
            except (OSError, ValueError, TypeError, KeyError) as error:
                reason = str(error) or type(error).__name__
        for abandoned in [folder, *folder.parent.glob(f".{folder.name}.????????")]:
            shutil.rmtree(abandoned, ignore_errors=True)
        _build(spec, source, key, folder)
        return _open(spec, key, folder), reason


def _build(spec: TransitionSpec, source: LargeDataSource, key: str, folder: Path) -> None:
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    temporary.mkdir()
    try:
        part_of_group = part_function(spec, lambda: _read(spec, source), source.split_seed)
        found = survey(spec, _read(spec, source), part_of_group, source.sizes)
        findings = found.check(spec)
        encoder, codec = fit_encoders(spec, [row for _, row in found.samples["train"]])
        with RowWriter(temporary) as writer:
            for rows in _together(_training_rows(spec, source, part_of_group, found.transitions)):
                writer.append(
                    encoder.encode_transitions(rows),
                    codec.encode(codec.outcomes(rows)),
                )
            columns = writer.finish()
        for part, sample in found.samples.items():
            with closing(ReplayBuffer(temporary / part)) as buffer:
                for _, transition in sample:
                    buffer.append(transition)
        body = {
            "key": key,
            "columns": columns_to_json(columns),
            "encoder": encoder.to_json(),
            "codec": codec.to_json(),
            "samples": {part: len(sample) for part, sample in found.samples.items()},
            "unusable": dict(found.unusable),
            "findings": [asdict(finding) for finding in findings],
        }
        text = json.dumps(body)
        digest = hashlib.sha256(text.encode()).hexdigest()
        write_atomically(temporary / _HEADER, json.dumps({"sha256": digest, "body": text}))
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    flush_folder(folder.parent)


def _open(spec: TransitionSpec, key: str, folder: Path) -> TrainingData:
    """Open what `_build` wrote.

    Raises:
        OSError, ValueError, TypeError, KeyError: It cannot be used; the message has the reason.
    """
    saved = cast("Mapping[str, str]", read_json(folder / _HEADER, limit=_MOST_HEADER_BYTES))
    text = saved["body"]
    if hashlib.sha256(text.encode()).hexdigest() != saved["sha256"]:
        raise ValueError(f"{folder / _HEADER} is damaged")
    body = json.loads(text)
    if body["key"] != key:
        raise ValueError(f"{folder} belongs to other data")
    mapped = MappedRows(folder, columns_from_json(body["columns"]))
    encoder = FeatureEncoder.from_json(spec, body["encoder"])
    codec = TargetCodec.from_json(spec, body["codec"])
    samples = {part: _read_sample(folder / part, body["samples"][part]) for part in _PARTS}
    return TrainingData(
        spec=spec,
        encoder=encoder,
        codec=codec,
        parts={
            part: data_part(codec, rows, encoder.encode_transitions(rows))
            for part, rows in samples.items()
        },
        unusable=body["unusable"],
        findings=[
            Finding(**{**finding, "fields": tuple(finding["fields"])})
            for finding in body["findings"]
        ],
        mapped=mapped,
    )


def _read_sample(folder: Path, count: int) -> list[Transition]:
    rows = list(iter(ReplayBuffer(folder).read()))  # a list of the view would read it twice
    if len(rows) != count:
        raise ValueError(f"{folder} has {len(rows)} readable transitions instead of {count}")
    return rows


def _key(spec: TransitionSpec, source: LargeDataSource) -> str:
    """Hash of all that the folder depends on; of data without a snapshot, one that never recurs."""
    recorded = source.transitions
    snapshot = recorded.snapshot.to_json() if isinstance(recorded, BufferView) else None
    facts = {
        "format": _FORMAT,
        "spec": spec_to_json(spec),
        "segments": secrets.token_hex(16) if snapshot is None else snapshot,
        "newest": source.newest,
        "split_seed": source.split_seed,
        "sizes": asdict(source.sizes),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _read(
    spec: TransitionSpec, source: LargeDataSource, total: int | None = None
) -> Iterator[Transition]:
    """The newest transitions with their history, oldest first."""
    transitions = source.transitions
    count = transitions.at_most() if isinstance(transitions, BufferView) else len(transitions)
    skipped = max(0, len(transitions) - source.newest) if count > source.newest else 0
    newest: Iterable[Transition] = islice(transitions, skipped, None)
    if spec.history > 1:
        newest = stream_history(spec, newest)
    for number, transition in enumerate(newest):
        if number % _ENCODED_TOGETHER == 0:
            source.report(number, total)
        yield transition


def _training_rows(
    spec: TransitionSpec, source: LargeDataSource, part_of_group: PartOf, total: int
) -> Iterator[Transition]:
    """The usable training transitions, once more."""
    usable = UsabilityCheck(spec).usable(_read(spec, source, total))
    for transition in chain.from_iterable(usable):
        if part_of_group(transition.group) == "train":
            yield transition


def _together(transitions: Iterator[Transition]) -> Iterator[list[Transition]]:
    while rows := list(islice(transitions, _ENCODED_TOGETHER)):
        yield rows
