"""Named fields as columns of one tensor, and how a model's encoder reads these columns.

Shapes: X columns, N rows, C dimensions of a `Box`, L labels of a `Discrete`, D encoded features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Box, Discrete, FieldType, FieldValue
from infrastructure.trajectories.encoding import FeatureEncoder
from infrastructure.trajectories.encoding.quantile_bins import QuantileBins
from infrastructure.trajectories.encoding.standardiser import CLIP
from infrastructure.trajectories.schema import Values, is_missing, is_undeclared, label_of

MORE_LABELS = 2
"""Columns of a `Discrete` field besides its labels: *missing*, then *undeclared*."""


class Layout:
    """Columns of fields: the numbers of a `Box`; of a `Discrete` its labels and `MORE_LABELS`.

    A missing number is NaN.

    Args:
        part: ``observation`` or ``action``, for messages.
        fields: Fields by name. `Text` has no columns.
    """

    def __init__(self, part: str, fields: Mapping[str, FieldType]) -> None:
        self.part = part
        self.fields = {name: field for name, field in fields.items() if not is_text(field)}
        self.columns: dict[str, slice] = {}
        self.width = 0
        for name, field in self.fields.items():
            size = _labels(field) if isinstance(field, Discrete) else _dimensions(field)
            self.columns[name] = slice(self.width, self.width + size)
            self.width += size

    def read(self, rows: Sequence[Values], *, gaps: bool = False) -> Tensor:
        """Convert recorded values, ``[N, X]`` float64.

        Args:
            gaps: Whether values may be missing: absent, None or NaN.

        Raises:
            ValueError: A row is not a mapping; or a field is of another type or shape, infinite,
                or missing without *gaps*.
        """
        for row in rows:
            if not isinstance(row, Mapping):
                raise ValueError(
                    f"an {self.part} must be a mapping of its fields, such as "
                    f"{{{next(iter(self.fields), 'name')!r}: ...}}, got {row!r:.60}"
                )
        raw_NX = torch.zeros(len(rows), self.width, dtype=torch.float64)
        for name, field in self.fields.items():
            values = [row.get(name) for row in rows]
            if not gaps and (lacking := [row for row in rows if is_missing(row.get(name))]):
                raise ValueError(f"{self.part} {name!r} is missing; given are {sorted(lacking[0])}")
            if isinstance(field, Discrete):
                position = {label: index for index, label in enumerate(field.values)}
                columns = [
                    position[label_of(value)]
                    if not is_missing(value) and label_of(value) in position
                    else self._other_position(name, field, value)
                    for value in values
                ]
                block = torch.nn.functional.one_hot(torch.tensor(columns), _labels(field))
            else:
                numbers = [self._numbers(name, field, value, gaps=gaps) for value in values]
                block = torch.stack(numbers)
            raw_NX[:, self.columns[name]] = block.double()
        return raw_NX

    def join(self, tensors: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
        """Put tensors of single fields side by side, ``[*rows, X]`` float64.

        Args:
            tensors: Each field's values: ``[*rows, n]`` of a `Box` of shape ``(n,)``, ``[*rows]``
                of a scalar one, and positions of labels, ``[*rows]`` int64, of a `Discrete`.
            rows: Leading sizes.

        Raises:
            ValueError: A field is missing, of another shape, or not finite.
        """
        blocks = [torch.empty(*rows, 0, dtype=torch.float64)]
        for name, field in self.fields.items():
            if name not in tensors:
                raise ValueError(f"{self.part} {name!r} is missing; given are {sorted(tensors)}")
            tensor = as_tensor(f"{self.part} {name!r}", tensors[name])
            wanted = (*rows, *(field.shape if isinstance(field, Box) else ()))
            if tuple(tensor.shape) != wanted:
                raise ValueError(
                    f"{self.part} {name!r} must have shape {wanted}, got {tuple(tensor.shape)}"
                )
            if isinstance(field, Discrete):
                labels = len(field.values)
                if tensor.is_floating_point() or bool(((tensor < 0) | (tensor >= labels)).any()):
                    raise ValueError(
                        f"{self.part} {name!r} must be positions of its {labels} labels, int64"
                    )
                blocks.append(
                    torch.nn.functional.one_hot(tensor.long(), labels + MORE_LABELS).double()
                )
                continue
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"{self.part} {name!r} must be finite")
            blocks.append(tensor.to(torch.float64).reshape(*rows, -1))
        return torch.cat(blocks, dim=-1)

    def split(self, raw_X: Tensor) -> dict[str, Tensor]:
        """Name the fields in ``[..., X]``; the converse of `join`.

        The position of a missing label is the number of labels, that of an undeclared one follows.
        """
        named = {}
        for name, field in self.fields.items():
            block = raw_X[..., self.columns[name]]
            if isinstance(field, Discrete):
                named[name] = block.argmax(dim=-1)
            else:
                named[name] = block if isinstance(field, Box) and field.shape else block[..., 0]
        return named

    def values(self, raw_X: Tensor) -> dict[str, FieldValue]:
        """Values of one row ``[X]`` as an author records them."""
        values: dict[str, FieldValue] = {}
        for name, field in self.fields.items():
            block = raw_X[self.columns[name]]
            if isinstance(field, Discrete):
                values[name] = field.values[int(block[:-MORE_LABELS].argmax())]
            else:
                numbers = block.tolist()
                shaped = isinstance(field, Box) and field.shape
                values[name] = tuple(numbers) if shaped else numbers[0]
        return values

    def _other_position(self, name: str, field: Discrete, value: object) -> int:
        """Column of a *value* that is not a declared label."""
        if is_missing(value):
            return len(field.values)
        if is_undeclared(field, value):
            return len(field.values) + 1
        raise ValueError(f"{self.part} {name!r} must be a label, got {value!r:.60}")

    def _numbers(self, name: str, field: FieldType, value: object, *, gaps: bool) -> Tensor:
        """Numbers of a `Box`, ``[C]`` float64."""
        shape = field.shape if isinstance(field, Box) else ()
        if gaps and is_missing(value):
            return torch.full((_dimensions(field),), torch.nan, dtype=torch.float64)
        if gaps and isinstance(value, list | tuple):
            value = [math.nan if number is None else number for number in value]
        try:
            numbers = torch.as_tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            numbers = None
        if numbers is None or numbers.shape != shape:
            raise ValueError(
                f"{self.part} {name!r} must be numbers of shape {shape}, got {value!r:.60}"
            )
        if not bool((numbers.isfinite() | (numbers.isnan() & gaps)).all()):
            raise ValueError(f"{self.part} {name!r} must be finite, got {value!r:.60}")
        return numbers.reshape(-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnEncoding:
    """What a model's encoder does to the columns of a `Layout`.

    Attributes:
        mean, inverse_scale: Statistics of each column, ``[X]`` float64.
        symlog: Whether the column is squeezed first, ``[X]`` bool; None for none.
        inputs: Map to the inputs, float32: ``[X, D]``, or ``[2X + B, D]`` if a mark of each
            missing number and the features of bins follow the columns; None if the columns are the
            inputs.
        bins: Bins of numbers, `QuantileBins`, each with the columns of its number; B features.
        low, high: Range of the training data in the units of *mean*, ``[X]`` float64; infinite
            where it is not checked.
        may_miss: Whether a missing number counts as near the training data, ``[X]`` bool.
        labels: Columns of each `Discrete` field.
    """

    mean: Tensor
    inverse_scale: Tensor
    symlog: Tensor | None
    inputs: Tensor | None
    bins: Sequence[tuple[slice, QuantileBins]]
    low: Tensor
    high: Tensor
    may_miss: Tensor
    labels: Sequence[slice]

    @classmethod
    def of(cls, encoder: FeatureEncoder, layout: Layout) -> ColumnEncoding:
        """Read the statistics of *encoder*."""
        width = layout.width
        means, scales, symlog = [0.0] * width, [1.0] * width, [False] * width
        low, high, may_miss = [-torch.inf] * width, [torch.inf] * width, [False] * width
        labels = list[slice]()
        keys = [(name, f"{layout.part}.{name}") for name in layout.fields]
        bins = [(layout.columns[name], each) for name, key in keys if (each := encoder.bins(key))]
        size = 2 * width + sum(each.width for _, each in bins)
        eye, inputs = torch.eye(size), [torch.empty(size, 0)]
        extended, next_bin = bool(bins), 2 * width
        for name, key in keys:
            columns, standardiser = layout.columns[name], encoder.standardiser(key)
            if standardiser is None:
                labels.append(columns)
                labels_CD, odd = encoder.label_inputs(key)
                inputs.append(eye[:, columns] @ labels_CD)
                low[columns] = [0.0 if each else -torch.inf for each in odd]
                high[columns] = [0.0 if each else torch.inf for each in odd]
                continue
            means[columns], scales[columns] = standardiser.mean, standardiser.scale
            symlog[columns] = standardiser.symlog
            kept, gaps = torch.tensor(standardiser.kept), torch.tensor(encoder.gaps(key))
            binned = encoder.bins(key)
            last_bin = next_bin + (binned.width if binned else 0)
            inputs += [eye[:, columns][:, kept], eye[:, next_bin:last_bin]]
            inputs.append(eye[:, width:][:, columns][:, gaps])
            extended, next_bin = extended or bool(gaps.any()), last_bin
            dropped = (~kept).tolist()
            bounds = zip(dropped, standardiser.low, standardiser.high, strict=True)
            pairs = [(-torch.inf, torch.inf) if out else pair for out, *pair in bounds]
            low[columns], high[columns] = zip(*pairs, strict=True)
            may_miss[columns] = (gaps | ~kept).tolist()
        map_XD = torch.cat(inputs, dim=1)
        map_XD = map_XD if extended else map_XD[:width]
        return cls(
            mean=torch.tensor(means, dtype=torch.float64),
            inverse_scale=torch.tensor(scales, dtype=torch.float64).reciprocal(),
            symlog=torch.tensor(symlog) if any(symlog) else None,
            inputs=None if torch.equal(map_XD, torch.eye(width)) else map_XD,
            bins=bins,
            low=torch.tensor(low, dtype=torch.float64),
            high=torch.tensor(high, dtype=torch.float64),
            may_miss=torch.tensor(may_miss, dtype=torch.bool),
            labels=labels,
        )

    @property
    def width(self) -> int:
        """Number of inputs, D."""
        return self.mean.numel() if self.inputs is None else self.inputs.shape[1]

    def encode(self, raw_X: Tensor) -> Tensor:
        """Encode ``[..., X]`` float64 as ``[..., D]`` float32, as the encoder does."""
        standard_X = (self._squeezed(raw_X) - self.mean).mul_(self.inverse_scale).float()
        standard_X = standard_X.clamp_(-CLIP, CLIP).nan_to_num_()
        if self.inputs is None:
            return standard_X
        if len(self.inputs) > self.mean.numel():
            parts = [standard_X, raw_X.isnan().float()]
            parts += [each.apply_to(standard_X[..., columns]) for columns, each in self.bins]
            standard_X = torch.cat(parts, dim=-1)
        return standard_X @ self.inputs

    def is_in_range(self, raw_X: Tensor) -> Tensor:
        """Whether no input is far outside the training data, ``[...]`` bool.

        Far means, as for a prediction, that the distance from the range exceeds its width. Labels
        and gaps that the training data does not explain are far, too.
        """
        squeezed_X = self._squeezed(raw_X)
        distance_X = torch.maximum(self.low - squeezed_X, squeezed_X - self.high)
        near_X = distance_X <= self.high - self.low  # NaN compares false
        return (near_X | (raw_X.isnan() & self.may_miss)).all(dim=-1)

    def is_unknown(self, raw_X: Tensor) -> Tensor:
        """Which columns have a gap or a label that the training data does not explain.

        Of a label, all columns of the field.
        """
        unknown_X = raw_X.isnan() & ~self.may_miss
        for columns in self.labels:
            odd_L = raw_X[..., columns] > self.high[columns]
            unknown_X[..., columns] = odd_L.any(dim=-1, keepdim=True)
        return unknown_X

    def features_of(self, columns_X: Tensor) -> Tensor:
        """Which features encode the labels in *columns_X*, ``[..., X]`` bool: ``[..., D]`` bool."""
        if self.inputs is None:
            return columns_X
        return columns_X.float() @ (self.inputs[: self.mean.numel()] != 0).float() > 0

    def _squeezed(self, raw_X: Tensor) -> Tensor:
        if self.symlog is None:
            return raw_X
        return torch.where(self.symlog, raw_X.sign() * raw_X.abs().log1p(), raw_X)


def is_text(field: FieldType) -> bool:
    """Whether *field* has no columns, because texts are hashed."""
    return not isinstance(field, Box | Discrete)


def as_tensor(name: str, value: object, dtype: torch.dtype | None = None) -> Tensor:
    """Convert *value* to a tensor.

    Raises:
        ValueError: It is not made of numbers; the message begins with *name*.
    """
    try:
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{name} must be numbers, got {value!r:.60}") from None


def _labels(field: Discrete) -> int:
    return len(field.values) + MORE_LABELS


def _dimensions(field: FieldType) -> int:
    return field.shape[0] if isinstance(field, Box) and field.shape else 1
