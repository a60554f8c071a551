"""Encodes model inputs: one object serves training and prediction.

It receives observations and actions only, so that no reward, outcome or target can reach the
input.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldType,
    Text,
    Transition,
    TransitionSpec,
)
from infrastructure.trajectories.column_checks import inputs_fit
from infrastructure.trajectories.encoding.features import Features, Tokens
from infrastructure.trajectories.encoding.standardiser import Numbers, Standardiser
from infrastructure.trajectories.schema import Values, input_problem, labels_of

MAX_TOKENS = 512
MIN_TABLE_ROWS = 8

_TOKEN = re.compile(r"\w+|[^\w\s]")


class FeatureEncoder:
    """Turns observations and actions into `Features`.

    Args:
        standardisers: Statistics of each `Box` field by its key, ``observation.NAME`` or
            ``action.NAME``.
        seen: Flags of each `Discrete` field by its key: whether training data held each declared
            label, in order, and last whether it held any undeclared one. Empty for models saved
            by a version that did not record this.
        constant: Keys of fields that did not vary; they are not encoded.
        buckets: Buckets of each `Text` field by its key that occurred in the training data,
            ascending. Tokens are numbered by their bucket's position in it; tokens of other
            buckets are dropped, because nothing was learned about them. All buckets of a field
            without an entry are kept, as in models saved by a version that did not record this.

    Raises:
        ValueError: *buckets* are not ascending, or not buckets of their field.
    """

    def __init__(
        self,
        spec: TransitionSpec,
        standardisers: Mapping[str, Standardiser],
        seen: Mapping[str, Sequence[bool]],
        constant: Sequence[str],
        buckets: Mapping[str, Sequence[int]],
    ) -> None:
        self._spec = spec
        self._standardisers = dict(standardisers)
        self._seen = {key: tuple(flags) for key, flags in seen.items()}
        self.constant = tuple(constant)
        fields = {key: field for key, field in _text_fields(spec) if key not in self.constant}
        self._buckets = {
            key: _checked_buckets(key, field, buckets[key])
            for key, field in fields.items()
            if key in buckets
        }
        self._numbers = {
            key: _positions(kept, fields[key].buckets) for key, kept in self._buckets.items()
        }

    @classmethod
    def fit(
        cls, spec: TransitionSpec, observations: Sequence[Values], actions: Sequence[Values]
    ) -> FeatureEncoder:
        """Compute statistics; fields and dimensions without variance are dropped.

        Args:
            observations: Observations of the *training* groups only, one per row.
            actions: Actions of the same rows.
        """
        return cls._fit(spec, observations, actions)[0]

    @classmethod
    def fit_and_encode(
        cls, spec: TransitionSpec, observations: Sequence[Values], actions: Sequence[Values]
    ) -> tuple[FeatureEncoder, Features]:
        """`fit`, then `encode` the same rows; their texts are hashed once."""
        encoder, hashed = cls._fit(spec, observations, actions)
        return encoder, encoder._encode(observations, actions, hashed)

    @classmethod
    def _fit(
        cls, spec: TransitionSpec, observations: Sequence[Values], actions: Sequence[Values]
    ) -> tuple[FeatureEncoder, dict[str, Tokens]]:
        """Return the encoder, and the hashed texts of each field that varied."""
        standardisers, seen, constant = {}, {}, []
        hashed = dict[str, Tokens]()
        for key, field, values in _columns(spec, observations, actions):
            if isinstance(field, Box):
                standardiser = Standardiser.fit(_numbers(values, field), squeeze=True)
                standardisers[key] = standardiser
                if standardiser.width == 0:
                    constant.append(key)
            elif isinstance(field, Discrete):
                seen[key] = _one_hot(values, field).any(dim=0).tolist()
                if len(set(labels_of(values))) < 2:
                    constant.append(key)
            elif all(value == values[0] for value in values):
                constant.append(key)
            else:
                tokens = _hashed(values, field)
                if len(tokens.buckets):
                    hashed[key] = tokens
                else:  # blanks only
                    constant.append(key)
        sizes = {key: field.buckets for key, field in _text_fields(spec)}
        occurring = {key: tokens.buckets.unique().tolist() for key, tokens in hashed.items()}
        buckets = {key: numbers for key, numbers in occurring.items() if len(numbers) < sizes[key]}
        return cls(spec, standardisers, seen, constant, buckets), hashed

    @property
    def dense_width(self) -> int:
        """Number of dense features."""
        width = 0
        for key, field, _ in _columns(self._spec, (), ()):
            if isinstance(field, Box):
                width += self._standardisers[key].width
            elif isinstance(field, Discrete) and key not in self.constant:
                width += len(field.values) + 1
        return width

    @property
    def text_rows(self) -> dict[str, int]:
        """Number of tokens that are told apart, of each text field that varied."""
        return {
            key: len(self._buckets[key]) if key in self._buckets else field.buckets
            for key, field in _text_fields(self._spec)
            if key not in self.constant
        }

    @property
    def table_rows(self) -> dict[str, int]:
        """`text_rows` rounded up to a power of two, but at most the field's buckets.

        Networks of agents with similar texts so have the same shape, and train in one fleet.
        """
        fields = dict(_text_fields(self._spec))
        return {
            key: min(fields[key].buckets, max(MIN_TABLE_ROWS, 1 << (rows - 1).bit_length()))
            for key, rows in self.text_rows.items()
        }

    def standardiser(self, key: str) -> Standardiser | None:
        """Return the statistics of the field *key*; None if it is not a `Box`."""
        return self._standardisers.get(key)

    def encode(self, observations: Sequence[Values], actions: Sequence[Values]) -> Features:
        """Encode rows; missing numbers become the mean, undeclared labels become *unknown*.

        Tokens whose bucket did not occur in the training data are dropped.

        Raises:
            ValueError: A field is missing or of another type than the spec declares; the
                message names row, field and value.
        """
        return self._encode(observations, actions, {})

    def _encode(
        self,
        observations: Sequence[Values],
        actions: Sequence[Values],
        hashed: Mapping[str, Tokens],
    ) -> Features:
        """`encode`; *hashed* are texts that are hashed already."""
        if not inputs_fit(self._spec, observations, actions):
            for row, (observation, action) in enumerate(zip(observations, actions, strict=True)):
                if problem := input_problem(self._spec, observation, action):
                    raise ValueError(f"row {row} cannot be encoded: {problem}")
        dense: list[Tensor] = [torch.empty(len(observations), 0)]
        texts, rows_of_tables = {}, self.table_rows
        ood_N = torch.zeros(len(observations), dtype=torch.bool)
        for key, field, values in _columns(self._spec, observations, actions):
            is_constant = key in self.constant
            if isinstance(field, Discrete):  # a constant one may have another label now
                one_hot_NL = _one_hot(values, field)
                if key in self._seen:
                    ood_N |= one_hot_NL[:, ~torch.tensor(self._seen[key])].any(dim=1)
                dense += [] if is_constant else [one_hot_NL]
            elif is_constant:
                continue
            elif isinstance(field, Text):
                tokens = hashed[key] if key in hashed else _hashed(values, field)
                numbers = self._numbers.get(key)
                tokens = tokens if numbers is None else tokens.renumber(numbers)
                texts[key] = tokens.with_shares(rows_of_tables[key])
            else:
                numbers_NC = _numbers(values, field)
                dense.append(self._standardisers[key].apply(numbers_NC))
                ood_N |= torch.from_numpy(self._standardisers[key].is_out_of_range(numbers_NC))
        return Features(dense=torch.cat(dense, dim=1), texts=texts, out_of_distribution=ood_N)

    def encode_transitions(self, transitions: Sequence[Transition]) -> Features:
        """Encode recorded transitions; see `encode`."""
        return self.encode([t.observation for t in transitions], [t.action for t in transitions])

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` needs in addition to the spec."""
        statistics = {key: item.to_json() for key, item in self._standardisers.items()}
        seen = {key: list(flags) for key, flags in self._seen.items()}
        return {
            "standardisers": statistics,
            "seen": seen,
            "constant": list(self.constant),
            "buckets": {key: list(kept) for key, kept in self._buckets.items()},
        }

    @classmethod
    def from_json(cls, spec: TransitionSpec, value: Mapping[str, object]) -> FeatureEncoder:
        """Rebuild the encoder that `to_json` described.

        Raises:
            KeyError, TypeError, ValueError: *value* does not describe an encoder of *spec*.
        """
        statistics = cast(Mapping[str, Mapping[str, list[float]]], value["standardisers"])
        buckets = value.get("buckets", {})
        if not isinstance(buckets, Mapping):
            raise TypeError(f"the buckets of text fields must be a table, got {buckets!r:.40}")
        boxes = [key for key, field, _ in _columns(spec, (), ()) if isinstance(field, Box)]
        return cls(
            spec,
            {key: Standardiser.from_json(statistics[key]) for key in boxes},
            cast(Mapping[str, Sequence[bool]], value.get("seen", {})),
            cast(Sequence[str], value["constant"]),
            buckets,
        )


def _columns(
    spec: TransitionSpec, observations: Sequence[Values], actions: Sequence[Values]
) -> Iterator[tuple[str, FieldType, list[object]]]:
    """Yield key, type and values of each input field, in the order the spec declares them."""
    for name, field in spec.observation.items():
        yield f"observation.{name}", field, [row[name] for row in observations]
    for name, field in spec.action.items():
        yield f"action.{name}", field, [row[name] for row in actions]


def _text_fields(spec: TransitionSpec) -> Iterator[tuple[str, Text]]:
    """Yield key and type of each text field, in the order the spec declares them."""
    for key, field, _ in _columns(spec, (), ()):
        if isinstance(field, Text):
            yield key, field


def _checked_buckets(key: str, field: Text, buckets: Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(buckets) if isinstance(buckets, Sequence) else ()
    whole = bool(numbers) and all(type(bucket) is int for bucket in numbers)
    ascending = whole and all(first < second for first, second in pairwise(numbers))
    if not ascending or numbers[0] < 0 or numbers[-1] >= field.buckets:
        raise ValueError(
            f"the buckets of {key} must be at least one whole number from 0 to "
            f"{field.buckets - 1}, in ascending order"
        )
    return numbers


def _positions(buckets: Sequence[int], count: int) -> Tensor:
    """Position of each of *count* buckets in *buckets*, ``[count]`` int64; -1 if it is absent."""
    positions = torch.full((count,), -1)
    positions[torch.tensor(buckets)] = torch.arange(len(buckets))
    return positions


def _hashed(values: Sequence[object], field: Text) -> Tokens:
    """Hash the texts of all rows, each distinct string once."""
    known = dict[object, list[int]]()
    rows = []
    for value in values:
        row = known.get(value) if isinstance(value, str) else None
        if row is None:
            row = buckets_of(cast(str, value), field.buckets)
            if isinstance(value, str):
                known[value] = row
        rows.append(row)
    return Tokens.of(rows)


def _numbers(values: Sequence[object], field: Box) -> Numbers:
    """Convert recorded values of *field* to ``[N, C]`` float64."""
    width = field.shape[0] if field.shape else 1
    flat = chain.from_iterable(cast("Sequence[Sequence[float]]", values)) if field.shape else values
    return np.fromiter(flat, dtype=np.float64, count=len(values) * width).reshape(
        len(values), width
    )


def _one_hot(values: Sequence[object], field: Discrete) -> Tensor:
    """Return ``[N, labels + 1]`` float32; the last column marks undeclared labels."""
    position = {label: index for index, label in enumerate(field.values)}
    unknown = len(field.values)
    rows = torch.tensor([position.get(label, unknown) for label in labels_of(values)])
    return torch.nn.functional.one_hot(rows.long(), unknown + 1).float()


def buckets_of(text: str | Sequence[str], buckets: int) -> list[int]:
    """Hash *text* into numbers below *buckets*, alike in every process and Python version.

    A string is split into words and punctuation marks; these and each adjacent pair are hashed.
    A list holds tokens that its author chose; each is hashed unchanged. Tokens after the first
    512 are dropped.
    """
    if not isinstance(text, str):
        return [_bucket(token, buckets) for token in text[:MAX_TOKENS]]
    tokens = _TOKEN.findall(text)[:MAX_TOKENS]
    pairs = [f"{first} {second}" for first, second in pairwise(tokens)]
    return [_bucket(token, buckets) for token in tokens + pairs]


@lru_cache(maxsize=1 << 16)
def _bucket(token: str, buckets: int) -> int:
    return zlib.crc32(token.encode("utf-8", "surrogatepass")) % buckets
