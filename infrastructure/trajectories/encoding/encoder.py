"""Encodes model inputs: one object serves training and prediction.

It receives observations and actions only, so that no reward, outcome or target can reach the
input.

A missing value is encoded as the training data's mean. Where the training data had gaps, too, a
mark of it lets the model learn what a gap means; elsewhere the row is flagged, and predictions are
averaged over values of the training data, see `Features.unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
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
from infrastructure.trajectories.encoding.examples import Examples
from infrastructure.trajectories.encoding.features import Features, Tokens
from infrastructure.trajectories.encoding.flags import (
    IS_BLANK,
    IS_CUT,
    IS_FAR,
    IS_MISSING,
    IS_UNKNOWN,
    IS_UNSEEN,
    Flags,
)
from infrastructure.trajectories.encoding.hashed_texts import hashed_tokens
from infrastructure.trajectories.encoding.learned import (
    Learned,
    choose_examples,
    example_value,
    is_gap,
)
from infrastructure.trajectories.encoding.quantile_bins import QuantileBins
from infrastructure.trajectories.encoding.sentence_embedding import FittedEmbedding
from infrastructure.trajectories.encoding.standardiser import Numbers, Standardiser
from infrastructure.trajectories.encoding.text_column import (
    EncodedTexts,
    RecentTexts,
    TextColumn,
    TextRows,
)
from infrastructure.trajectories.schema import Values, input_problem, is_missing, labels_of

MIN_TABLE_ROWS = 8
EMBEDDED_FEATURES = 1 << 13
"""Most features of a text field that the ensemble embeds; the linear model takes all."""


class FeatureEncoder:
    """Turns observations and actions into `Features`.

    Args:
        standardisers: Statistics of each `Box` field by its key, ``observation.NAME`` or
            ``action.NAME``.
        seen: Flags of each `Discrete` field by its key: whether training data held each declared
            label, in order, and last whether it held any undeclared one. Empty for models saved
            by a version that did not record this.
        constant: Keys of fields that did not vary; they are not encoded.
        buckets: Of models saved by a version without vocabularies, buckets of each `Text` field
            that occurred in the training data, ascending. Tokens are numbered by their bucket's
            position in it; tokens of other buckets are dropped. All buckets of a field without an
            entry are kept.
        learned: What the training data says. None for models saved by a version that took missing
            and unknown values for out of distribution.

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
        learned: Learned | None,
    ) -> None:
        self._spec = spec
        self._standardisers = dict(standardisers)
        self._seen = {key: tuple(flags) for key, flags in seen.items()}
        self._unseen = {key: ~torch.tensor(flags) for key, flags in self._seen.items()}
        known = learned or Learned(
            shares={}, gaps={}, texts={}, bins={}, embeddings={}, too_large={}
        )
        self._learned, self._shrinks_unknown = known, learned is None
        self._shares, self._gaps, self._bins = known.shares, known.gaps, known.bins
        self._too_large = known.too_large
        self.constant = tuple(constant)
        fields = {key: field for key, field in _text_fields(spec) if key not in self.constant}
        self._texts = {key: known.texts[key] for key in fields if key in known.texts}
        self._recent = {
            key: RecentTexts(column, blank_is_known=key in self._gaps)
            for key, column in self._texts.items()
        }
        self._embeddings = {
            key: embedding for key, embedding in known.embeddings.items() if key in fields
        }
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
        encoder, texts = cls._fit(spec, observations, actions)
        return encoder, encoder._encode(observations, actions, texts)

    @classmethod
    def _fit(
        cls, spec: TransitionSpec, observations: Sequence[Values], actions: Sequence[Values]
    ) -> tuple[FeatureEncoder, dict[str, TextRows]]:
        """Return the encoder, and the hashed texts of each field that varied."""
        standardisers, seen, shares, constant = {}, {}, {}, list[str]()
        gaps, columns, texts = dict[str, list[bool]](), dict[str, TextColumn](), {}
        bins, embeddings = dict[str, QuantileBins](), dict[str, FittedEmbedding]()
        too_large, examples = dict[str, list[bool]](), dict[str, list[object]]()
        unpredicted, chosen_rows = _unpredicted_numbers(spec), choose_examples(len(observations))
        for key, field, values in _columns(spec, observations, actions):
            if not isinstance(field, Text):
                examples[key] = [example_value(field, values[row]) for row in chosen_rows]
            if isinstance(field, Box):
                numbers_NC = _numbers(values, field)
                standardiser = Standardiser.fit(numbers_NC, squeeze=True)
                standardisers[key] = standardiser
                unusable_NC = Standardiser.unusable(numbers_NC)
                gaps[key] = [is_gap(each) for each in unusable_NC.T]
                too_large[key] = [is_gap(each) for each in (unusable_NC & ~np.isnan(numbers_NC)).T]
                varies = standardiser.width > 0
                if key in unpredicted and varies:
                    present_NC = numbers_NC[~unusable_NC[:, 0]]
                    chosen = QuantileBins.fit(standardiser.apply(present_NC).double().numpy())
                    bins |= {key: chosen} if chosen else {}
            elif isinstance(field, Discrete):
                columns_NL = _one_hot(values, field)
                seen[key] = columns_NL[:, :-1].any(dim=0).tolist()
                gaps[key] = [is_gap(columns_NL[:, -1].numpy())]
                means = columns_NL if gaps[key][0] else columns_NL[columns_NL[:, -1] == 0.0, :-1]
                shares[key] = means.mean(0).tolist()
                varies = len(set(labels_of([v for v in values if not is_missing(v)]))) > 1
            else:
                texts[key] = rows = TextRows.of(values)
                gaps[key] = [is_gap(rows.is_blank_D[rows.place_N.numpy()])]
                columns[key] = TextColumn.fit(rows, field.buckets)
                if field.embedding:
                    embeddings[key] = FittedEmbedding.fit(field.embedding, values)
                varies = len(rows.is_missing_D) > 1 and len(columns[key].vocabulary) > 0
            if not varies and not any(gaps[key]):
                constant.append(key)
        encoder = cls(
            spec,
            standardisers,
            seen,
            constant,
            {},
            Learned(
                shares=shares,
                gaps={key: marks for key, marks in gaps.items() if any(marks)},
                texts=columns,
                bins=bins,
                embeddings=embeddings,
                too_large={key: marks for key, marks in too_large.items() if any(marks)},
                examples=examples,
            ),
        )
        return encoder, texts

    @cached_property
    def examples(self) -> Examples | None:
        """Some training rows, whose values stand for what a row lacks; None if there are none.

        Their texts are missing.
        """
        observations = self.example_rows("observation")
        if not observations:
            return None
        return Examples.of(self.encode(observations, self.example_rows("action")).dense)

    def example_rows(self, part: Literal["observation", "action"]) -> list[dict[str, Any]]:
        """Values of the numbers and labels of the training rows that stand for what a row lacks."""
        examples = self._learned.examples
        fields = self._spec.observation if part == "observation" else self._spec.action
        keys = {name: f"{part}.{name}" for name in fields}
        known = {name: examples[key] for name, key in keys.items() if key in examples}
        count = len(next(iter(examples.values()), ()))
        return [{name: each[row] for name, each in known.items()} for row in range(count)]

    @property
    def dense_width(self) -> int:
        """Number of dense features."""
        return sum(self._width(key, field) for key, field, _ in _columns(self._spec, (), ()))

    @property
    def observation_width(self) -> int:
        """Number of dense features of the observation, which come first."""
        return sum(
            self._width(key, field)
            for key, field, _ in _columns(self._spec, (), ())
            if key.startswith("observation.")
        )

    def _width(self, key: str, field: FieldType) -> int:
        """Number of dense features of the field *key*."""
        width = sum(self._gaps.get(key, ()))
        if isinstance(field, Box):
            width += self._standardisers[key].width
            width += self._bins[key].width if key in self._bins else 0
        elif isinstance(field, Discrete) and key not in self.constant:
            width += len(field.values) + 1
        return width + (self._embeddings[key].width if key in self._embeddings else 0)

    @property
    def text_rows(self) -> dict[str, int]:
        """Number of tokens that the ensemble embeds, of each text field that varied."""
        return {
            key: min(self._texts[key].vocabulary.words, EMBEDDED_FEATURES)
            if key in self._texts
            else len(self._buckets[key])
            if key in self._buckets
            else field.buckets
            for key, field in _text_fields(self._spec)
            if key not in self.constant
        }

    @property
    def linear_rows(self) -> dict[str, int] | None:
        """Number of tokens of the linear model's texts; None if they are those of `text_rows`."""
        if not self._texts:
            return None
        return {key: len(column.vocabulary) for key, column in self._texts.items()}

    @cached_property
    def table_rows(self) -> dict[str, int]:
        """`text_rows` rounded up to a power of two, but at most the field's buckets.

        Networks of agents with similar texts so have the same shape, and train in one fleet.
        """
        fields = dict(_text_fields(self._spec))
        return {
            key: max(
                rows,
                min(fields[key].buckets, max(MIN_TABLE_ROWS, 1 << (rows - 1).bit_length())),
            )
            for key, rows in self.text_rows.items()
        }

    @property
    def format(self) -> int:
        """Lowest format of model files whose readers can use the encoder; see `model_files`."""
        if self._texts or self._gaps or self._bins:
            return 4
        return 3 if self._buckets else 2

    def standardiser(self, key: str) -> Standardiser | None:
        """Return the statistics of the field *key*; None if it is not a `Box`."""
        return self._standardisers.get(key)

    def gaps(self, key: str) -> Sequence[bool]:
        """Whether the model has learned what a gap means, of each dimension of the `Box` *key*."""
        return self._gaps.get(key) or [False] * len(self._standardisers[key].kept)

    def bins(self, key: str) -> QuantileBins | None:
        """Return the bins of the field *key*; None if it has none."""
        return self._bins.get(key)

    def label_inputs(self, key: str) -> tuple[Tensor, Sequence[bool]]:
        """Dense inputs of the labels of the `Discrete` field *key*.

        Returns:
            Inputs of each declared label, a missing and an undeclared one, ``[L + 2, D]`` float32;
            and whether the training data does not explain the label.
        """
        field = next(each for name, each, _ in _columns(self._spec, (), ()) if name == key)
        labels = cast(Discrete, field).values
        values = [*labels, None, "?".join(("", *labels))]  # longer than any label
        flags = Flags(len(values))
        columns = self._encode_labels(key, _one_hot(values, cast(Discrete, field)), flags)
        odd_L = torch.stack([*flags.by_text.values(), flags.out_of_distribution_N]).any(dim=0)
        return torch.cat([torch.empty(len(values), 0), *columns], dim=1), odd_L.tolist()

    def encode(self, observations: Sequence[Values], actions: Sequence[Values]) -> Features:
        """Encode rows; a value that is missing or unknown becomes the mean, and is flagged.

        `None`, NaN and an absent key mean that a value is missing. Where the training data had
        gaps, a gap has a mark of its own instead of the flag. Words that did not occur in the
        training data are dropped.

        Raises:
            ValueError: A field is of another type than the spec declares; the message names row,
                field and value.
        """
        return self._encode(observations, actions, {})

    def standardised_observations(self, observations: Sequence[Values]) -> Tensor:
        """Standardised numbers of the observations, 0 where one is missing: ``[N, K]`` float32."""
        columns = [torch.empty(len(observations), 0)]
        for key, field, values in _columns(self._spec, observations, [{}] * len(observations)):
            if isinstance(field, Box) and key.startswith("observation."):
                columns.append(self._standardisers[key].apply(_numbers(values, field)))
        return torch.cat(columns, dim=1)

    def _encode(
        self,
        observations: Sequence[Values],
        actions: Sequence[Values],
        texts: Mapping[str, TextRows],
    ) -> Features:
        """`encode`; *texts* are hashed already."""
        try:
            fits = inputs_fit(self._spec, observations, actions)
        except AttributeError:  # a row is not a mapping
            fits = False
        if not fits:
            for row, (observation, action) in enumerate(zip(observations, actions, strict=True)):
                if problem := input_problem(self._spec, observation, action):
                    raise ValueError(f"row {row} cannot be encoded: {problem}")
        dense: list[Tensor] = [torch.empty(len(observations), 0)]
        tokens, linear = dict[str, Tokens](), dict[str, Tokens]()
        flags, rows_of_tables = Flags(len(observations)), self.table_rows
        blocks = dict[str, int]()
        for key, field, values in _columns(self._spec, observations, actions):
            blocks[key] = len(dense)
            if isinstance(field, Box):
                dense += self._encode_numbers(key, _numbers(values, field), flags)
            elif isinstance(field, Discrete):
                dense += self._encode_labels(key, _one_hot(values, field), flags)
            elif key in self.constant:
                continue
            elif key not in self._texts:
                known = hashed_tokens(values, field.buckets, self._numbers.get(key))
                flags.add(key, IS_UNKNOWN, known.lengths == 0)
                tokens[key] = known.with_shares(rows_of_tables[key])
            else:
                encoded, columns = self._encode_texts(key, values, texts.get(key), flags)
                words = encoded.words.first(EMBEDDED_FEATURES)
                linear[key] = encoded.tokens
                tokens[key] = words.with_shares(rows_of_tables[key])
                dense += columns
        return Features(
            dense=torch.cat(dense, dim=1),
            texts=tokens,
            out_of_distribution=flags.out_of_distribution_N,
            linear_texts=linear or None,
            flags=flags.by_text,
            unknown=_unknown(dense, blocks, flags.unknown),
        )

    def _encode_numbers(self, key: str, numbers_NC: Numbers, flags: Flags) -> list[Tensor]:
        """Columns of a `Box`: its standardised dimensions, its bins, then marks of gaps."""
        standardiser, gaps = self._standardisers[key], self._gaps.get(key)
        if key in self._too_large:
            is_known_NC = Standardiser.unusable(numbers_NC) & np.array(self._too_large[key])
            numbers_NC = np.where(is_known_NC, np.nan, numbers_NC)
        is_missing_NC = np.isnan(numbers_NC)
        if is_missing_NC.any():
            kept_C = np.array(standardiser.kept)
            unknown_NC = torch.from_numpy(is_missing_NC & kept_C & ~np.array(gaps or False))
            flags.add(key, IS_MISSING, unknown_NC.any(dim=1), shrinks=self._shrinks_unknown)
            bins_NB = unknown_NC[:, :1].expand(
                -1, self._bins[key].width if key in self._bins else 0
            )
            flags.add_unknown(key, torch.cat([standardiser.select_kept(unknown_NC), bins_NB], 1))
        far_N = torch.from_numpy(standardiser.is_out_of_range(numbers_NC))
        flags.add(key, IS_FAR, far_N, shrinks=True)
        columns = [standardiser.apply(numbers_NC)] if standardiser.width else []
        if key in self._bins:
            columns.append(self._bins[key].apply(columns[0].double().numpy()))
        if gaps:
            marks_NC = Standardiser.unusable(numbers_NC)[:, np.array(gaps)]
            columns.append(torch.from_numpy(marks_NC.astype(np.float32)))
        return columns

    def _encode_labels(self, key: str, columns_NL: Tensor, flags: Flags) -> list[Tensor]:
        """Columns of a `Discrete` field: labels, undeclared, and missing where that was learned."""
        has_gaps = key in self._gaps
        labels_NL = columns_NL if has_gaps else columns_NL[:, :-1]
        unseen_L = self._unseen.get(key)  # a field that was constant may have another label now
        if unseen_L is not None:
            occurs_L = np.asarray(columns_NL.numpy().any(axis=0))
            if not occurs_L[-1] and not (occurs_L[:-1] & unseen_L.numpy()).any():
                return [] if key in self.constant else [labels_NL]  # none is unknown or missing
        unknown_N = torch.zeros(len(columns_NL), dtype=torch.bool)
        if unseen_L is not None:
            unknown_N = columns_NL[:, :-1][:, unseen_L].any(dim=1)
            flags.add(key, IS_UNSEEN, unknown_N, shrinks=self._shrinks_unknown)
        if key in self.constant:
            return []
        if not has_gaps:
            missing_N = columns_NL[:, -1].bool()
            flags.add(key, IS_MISSING, missing_N, shrinks=self._shrinks_unknown)
            unknown_N = unknown_N | missing_N
        flags.add_unknown(key, unknown_N[:, None].expand_as(labels_NL))
        if key in self._shares and bool(unknown_N.any()):
            labels_NL = torch.where(unknown_N[:, None], torch.tensor(self._shares[key]), labels_NL)
        return [labels_NL]

    def _encode_texts(
        self, key: str, values: Sequence[object], rows: TextRows | None, flags: Flags
    ) -> tuple[EncodedTexts, list[Tensor]]:
        """Texts, and their dense columns: marks of gaps, then vectors.

        Args:
            rows: The texts, if they are hashed already.
        """
        if rows is None:
            encoded = self._recent[key].encode(values)
        else:
            encoded = self._texts[key].encode(rows, blank_is_known=key in self._gaps)
        columns = self._encode_blanks(key, encoded.flags_N4, flags)
        if key in self._embeddings:
            columns.append(self._embeddings[key].apply(values))
        return encoded, columns

    def _encode_blanks(self, key: str, flags_N4: NDArray[np.bool_], flags: Flags) -> list[Tensor]:
        """Mark of texts that are missing or blank, if that was learned; and flags of a text."""
        is_gap = key in self._gaps
        if flags_N4.any():
            missing_N, blank_N, cut_N, unknown_N = torch.from_numpy(flags_N4).unbind(1)
            flags.add(key, IS_CUT, cut_N)
            flags.add(key, IS_UNKNOWN, unknown_N)
            if not is_gap:
                flags.add(key, IS_MISSING, missing_N)
                flags.add(key, IS_BLANK, blank_N & ~missing_N)
        return [torch.from_numpy(flags_N4[:, 1:2].astype(np.float32))] if is_gap else []

    def encode_transitions(self, transitions: Sequence[Transition]) -> Features:
        """Encode recorded transitions; see `encode`."""
        return self.encode([t.observation for t in transitions], [t.action for t in transitions])

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` needs in addition to the spec."""
        statistics = {key: item.to_json() for key, item in self._standardisers.items()}
        seen = {key: list(flags) for key, flags in self._seen.items()}
        saved: dict[str, object] = {
            "standardisers": statistics,
            "seen": seen,
            "constant": list(self.constant),
            "buckets": {key: list(kept) for key, kept in self._buckets.items()},
        }
        if not self._shrinks_unknown:
            saved |= self._learned.to_json()
        return saved

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
            None if value.get("gaps") is None else Learned.from_json(value),
        )


def _columns(
    spec: TransitionSpec, observations: Sequence[Values], actions: Sequence[Values]
) -> Iterator[tuple[str, FieldType, list[object]]]:
    """Yield key, type and values of each input field, in the order the spec declares them."""
    for name, field in spec.observation.items():
        yield f"observation.{name}", field, [row.get(name) for row in observations]
    for name, field in spec.action.items():
        yield f"action.{name}", field, [row.get(name) for row in actions]


def _text_fields(spec: TransitionSpec) -> Iterator[tuple[str, Text]]:
    """Yield key and type of each text field, in the order the spec declares them."""
    for key, field, _ in _columns(spec, (), ()):
        if isinstance(field, Text):
            yield key, field


def _unpredicted_numbers(spec: TransitionSpec) -> frozenset[str]:
    """Keys of the observation's scalar `Box` fields that are not targets, nor earlier steps."""
    return frozenset(
        f"observation.{name}"
        for name in spec.current_fields
        if spec.observation[name] == Box() and name not in spec.targets
    )


def _unknown(
    dense: Sequence[Tensor], blocks: Mapping[str, int], unknown: Mapping[str, Tensor]
) -> Tensor | None:
    """Which dense features are not known, ``[N, D]`` bool; None if all are.

    Args:
        blocks: Position in *dense* of the first columns of each field.
        unknown: See `Flags`.
    """
    if not unknown:
        return None
    starts = list(accumulate((columns_ND.shape[1] for columns_ND in dense), initial=0))
    unknown_ND = torch.zeros(len(dense[0]), starts[-1], dtype=torch.bool)
    for key, columns_ND in unknown.items():
        start = starts[blocks[key]]
        unknown_ND[:, start : start + columns_ND.shape[1]] = columns_ND
    return unknown_ND


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


def _numbers(values: Sequence[object], field: Box) -> Numbers:
    """Convert recorded values of *field* to ``[N, C]`` float64; a missing one becomes NaN."""
    width = field.shape[0] if field.shape else 1
    if field.shape and any(map(is_missing, values)):
        values = [(None,) * width if is_missing(value) else value for value in values]
    flat = chain.from_iterable(cast("Sequence[Sequence[float]]", values)) if field.shape else values
    return np.fromiter(flat, dtype=np.float64, count=len(values) * width).reshape(
        len(values), width
    )


def _one_hot(values: Sequence[object], field: Discrete) -> Tensor:
    """Return ``[N, labels + 2]`` float32; the last columns mark undeclared and missing labels."""
    position = {label: index for index, label in enumerate(field.values)}
    undeclared, missing = len(field.values), len(field.values) + 1
    rows = [position.get(label, undeclared) for label in labels_of(values)]
    if set(map(type, values)) != {str}:
        pairs = zip(rows, values, strict=True)
        rows = [missing if is_missing(value) else row for row, value in pairs]
    columns_NL = np.zeros((len(rows), missing + 1), dtype=np.float32)
    columns_NL[np.arange(len(rows)), rows] = 1.0
    return torch.from_numpy(columns_NL)
