"""Data sets of Minari, the format of the Farama Foundation for offline episodes, in and out.

A space of arrays becomes a field of numbers, a discrete one a field of integers, a text one a field
of text. Fields of a `Dict` or `Tuple` space are named ``observation.KEY`` or ``observation.0``;
other spaces have one field, ``observation`` or ``action``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.agent_contract.transition import FieldValue, Transition
from infrastructure.trajectories.history import stream_sequences

if TYPE_CHECKING:
    from gymnasium import Space
    from minari import MinariDataset

MOST_NUMBERS = 4096
"""Numbers that a field may have; an image has more."""

_EPISODES_TOGETHER = 256
_VERSIONED = re.compile(r"-v\d+$")
_MOST_LABELS = (1 << 63) - 1  # a `Discrete` space counts in int64


class MinariError(ValueError):
    """A data set cannot be read or written; the message says why, and what to do."""


def read_minari(dataset: str) -> Iterator[Transition]:
    """Yield the transitions of a local data set, episode by episode; each is a group.

    Args:
        dataset: Identity of a data set in Minari's folder, such as ``D4RL/door/human-v2``, or path
            of a data set's folder. Nothing is downloaded.

    Raises:
        MisconfiguredError: minari is not installed.
        MinariError: There is no such data set, or a value cannot be a field.
    """
    minari = _minari()
    try:
        path = Path(dataset)
        data = minari.MinariDataset(path) if path.is_dir() else minari.load_dataset(dataset)
    except (FileNotFoundError, ValueError, OSError) as error:
        raise MinariError(
            f"cannot read the data set {dataset!r} ({error}): download it by minari download"
        ) from error
    for episode in _episodes(data, dataset):
        group = f"{data.spec.dataset_id}#{episode.id}"
        observations = _rows("observation", episode.observations, len(episode) + 1)
        actions = _rows("action", episode.actions, len(episode))
        for step, action in enumerate(actions):
            yield Transition(
                group=group,
                observation=observations[step],
                action=action,
                reward=float(episode.rewards[step]),
                next_observation=observations[step + 1],
                terminated=bool(episode.terminations[step]),
                info={"truncated": True} if episode.truncations[step] else {},
            )


def write_minari(dataset: str, transitions: Iterable[Transition]) -> int:
    """Write *transitions* as the new data set *dataset* in Minari's folder.

    An episode is a sequence of a group in which each transition continues the one before. Numbers
    become float64. Propensities and ``info`` are left out, but for ``truncated``.

    Args:
        dataset: Identity, such as ``mine/pendulum-v0``.
        transitions: Recorded transitions; are read twice.

    Returns:
        Number of episodes.

    Raises:
        MisconfiguredError: minari is not installed.
        MinariError: There are none, their fields differ or cannot be stored, or the data set
            exists or has no version.
    """
    minari = _minari()
    if not _VERSIONED.search(dataset):
        raise MinariError(f"the data set {dataset!r} needs a version at its end, such as -v0")
    observation, action = _Shapes("observation"), _Shapes("action")
    for transition in transitions:
        observation.add(transition.observation)
        observation.add(transition.next_observation)
        action.add(transition.action)
    if not observation.fields:
        raise MinariError("there are no transitions to write: let the agent collect some")
    spaces = {"observation_space": observation.space(), "action_space": action.space()}
    names = list(observation.fields)
    episodes = (
        _episode(number, sequence, observation, action)
        for number, sequence in enumerate(stream_sequences(transitions, names))
    )
    data, count = None, 0
    while together := list(islice(episodes, _EPISODES_TOGETHER)):
        count += len(together)
        if data is not None:
            data.update_dataset_from_buffer(together)
            continue
        try:
            data = minari.create_dataset_from_buffers(dataset, together, **spaces)
        except (TypeError, ValueError) as error:
            raise MinariError(f"cannot write the data set {dataset!r}: {error}") from error
    return count


def _episodes(data: MinariDataset, dataset: str) -> Iterator[Any]:
    """Yield the episodes of a data set; its files are read here.

    Raises:
        MinariError: A file is damaged.
    """
    episodes = iter(data.iterate_episodes())
    while True:
        try:
            episode = next(episodes)
        except StopIteration:
            return
        except (LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise MinariError(
                f"cannot read the data set {dataset!r}, which is damaged ({error}): download it "
                "again"
            ) from error
        yield episode


def _rows(name: str, values: object, count: int) -> list[dict[str, FieldValue]]:
    """Fields of each step of an episode, whose *values* are arrays in the shape of their space."""
    if isinstance(values, Mapping | tuple):
        items = values.items() if isinstance(values, Mapping) else enumerate(values)
        rows: list[dict[str, FieldValue]] = [{} for _ in range(count)]
        for key, inner in items:
            for row, fields in zip(rows, _rows(f"{name}.{key}", inner, count), strict=True):
                row.update(fields)
        return rows
    steps = list(cast("Sequence[object]", values))
    if steps and isinstance(steps[0], str | bytes):
        texts = [each.decode() if isinstance(each, bytes) else str(each) for each in steps]
        return [{name: text} for text in texts]
    array = np.asarray(steps)
    numbers = array.reshape(count, -1)
    if array.dtype.kind not in "fiub" or numbers.shape[1] > MOST_NUMBERS:
        raise MinariError(
            f"{name} has values of shape {array.shape[1:]} and type {array.dtype}: a field may "
            f"have up to {MOST_NUMBERS} numbers"
        )
    if array.ndim == 1:
        return [{name: value} for value in array.tolist()]
    return [{name: tuple(row)} for row in numbers.tolist()]


@dataclass(kw_only=True, slots=True)
class _Shape:
    """What the values of a field have in common."""

    kind: type
    width: int | None
    low: int = 0
    high: int = 0
    longest: int = 1
    characters: set[str] = field(default_factory=set)


class _Shapes:
    """The fields of observations or actions, and the space that holds them all."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.fields: dict[str, _Shape] = {}

    def add(self, values: Mapping[str, FieldValue | None]) -> None:
        if self.fields and values.keys() != self.fields.keys():
            raise MinariError(
                f"every {self.part} needs the same fields, next_observation included: "
                f"{sorted(self.fields)} and {sorted(values)} were recorded"
            )
        for name, value in values.items():
            if value is None:
                raise MinariError(f"{self.part} {name!r} is missing, which Minari does not allow")
            self._add(name, value)

    def _add(self, name: str, value: FieldValue) -> None:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        kind = float if is_list else int if isinstance(value, bool) else type(value)
        width = len(cast("Sequence[float]", value)) if is_list else None
        shape = self.fields.setdefault(name, _Shape(kind=kind, width=width))
        if {shape.kind, kind} == {int, float} and shape.width == width:
            shape.kind = kind = float
        texts = is_list and any(isinstance(item, str) for item in cast("Sequence[object]", value))
        if shape.kind is not kind or shape.width != width or texts:
            raise MinariError(f"{self.part} {name!r} must have values of one type and length")
        if isinstance(value, str):
            shape.longest = max(shape.longest, len(value))
            shape.characters |= set(value)
        elif isinstance(value, int):
            shape.low, shape.high = min(shape.low, value), max(shape.high, value)

    def space(self) -> Space[Any]:
        from gymnasium import spaces

        found: dict[str, Space[Any]] = {}
        for name, shape in self.fields.items():
            if shape.kind is str:
                characters = "".join(sorted(shape.characters)) or " "
                found[name] = spaces.Text(shape.longest, min_length=0, charset=characters)
            elif shape.kind is int:
                if max(shape.high, -shape.low, shape.high - shape.low + 1) > _MOST_LABELS:
                    raise MinariError(
                        f"{self.part} {name!r} has whole numbers from {shape.low} to {shape.high}, "
                        "too many for Minari: record them as floats"
                    )
                found[name] = spaces.Discrete(shape.high - shape.low + 1, start=shape.low)
            else:
                size = () if shape.width is None else (shape.width,)
                found[name] = spaces.Box(-np.inf, np.inf, size, np.float64)
        return found[self.part] if self._is_plain else spaces.Dict(self._named(found))

    def column(self, rows: Sequence[Mapping[str, FieldValue | None]]) -> object:
        """Values of *rows* in the form of `space`."""
        columns = {
            name: [row[name] for row in rows]
            if shape.kind is str
            else np.array([row[name] for row in rows], dtype=np.dtype(shape.kind))
            for name, shape in self.fields.items()
        }
        return columns[self.part] if self._is_plain else self._named(columns)

    @property
    def _is_plain(self) -> bool:
        return list(self.fields) == [self.part]

    def _named(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The columns without the prefix that `_rows` gives their names.

        Raises:
            MinariError: Two have one name then, or a name cannot be one of an HDF5 file.
        """
        named = {name.removeprefix(f"{self.part}."): column for name, column in columns.items()}
        if len(named) < len(columns):
            raise MinariError(
                f"two fields of the {self.part} differ in the prefix '{self.part}.' alone, which "
                f"Minari does not keep: rename one of {sorted(columns)}"
            )
        if refused := [name for name in named if "/" in name or name in ("", ".")]:
            raise MinariError(
                f"{self.part} {refused[0]!r} cannot be the name of a field in Minari, whose files "
                "take a slash for a folder: rename it"
            )
        return named


def _episode(
    number: int, steps: Sequence[Transition], observation: _Shapes, action: _Shapes
) -> object:
    from minari.data_collector import EpisodeBuffer

    last = steps[-1]
    rows = [*(step.observation for step in steps), last.next_observation]
    truncations = [bool(step.info.get("truncated", False)) for step in steps]
    truncations[-1] = truncations[-1] or not last.terminated
    return EpisodeBuffer(
        id=number,
        observations=observation.column(rows),
        actions=action.column([step.action for step in steps]),
        rewards=[step.reward for step in steps],
        terminations=[step.terminated for step in steps],
        truncations=truncations,
    )


def _minari() -> ModuleType:
    try:
        return import_module("minari")
    except ImportError as error:
        raise MisconfiguredError(
            "data sets of Minari need its package: install genesis-fp16[minari]"
        ) from error
