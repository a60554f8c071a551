"""Named fields as columns of one tensor, and how a model's encoder reads these columns.

Shapes: X columns, N rows, C dimensions of a `Box`, L labels of a `Discrete`, D encoded features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Box, Discrete, FieldType, FieldValue
from infrastructure.trajectories.encoding import FeatureEncoder
from infrastructure.trajectories.encoding.standardiser import CLIP
from infrastructure.trajectories.schema import Values, label_of


class Layout:
    """Columns of fields: the numbers of a `Box`; of a `Discrete` one per label and *unknown*.

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
            size = len(field.values) + 1 if isinstance(field, Discrete) else _dimensions(field)
            self.columns[name] = slice(self.width, self.width + size)
            self.width += size

    def read(self, rows: Sequence[Values]) -> Tensor:
        """Convert recorded values, ``[N, X]`` float64.

        Raises:
            ValueError: A field is missing, of another type or shape, or not finite.
        """
        raw_NX = torch.zeros(len(rows), self.width, dtype=torch.float64)
        for name, field in self.fields.items():
            missing = next((row for row in rows if name not in row), None)
            if missing is not None:
                raise ValueError(f"{self.part} {name!r} is missing; given are {sorted(missing)}")
            values = [row[name] for row in rows]
            if isinstance(field, Discrete):
                position = {label: index for index, label in enumerate(field.values)}
                labels = [label_of(value) for value in values]
                if unknown := [label for label in labels if label not in position]:
                    raise ValueError(
                        f"{self.part} {name!r} must be a declared label, got {unknown[0]!r:.60}"
                    )
                columns = [position[label] for label in labels]
                block = torch.nn.functional.one_hot(torch.tensor(columns), len(position) + 1)
            else:
                block = torch.stack([self._numbers(name, field, value) for value in values])
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
            tensor = torch.as_tensor(tensors[name])
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
                blocks.append(torch.nn.functional.one_hot(tensor.long(), labels + 1).double())
                continue
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"{self.part} {name!r} must be finite")
            blocks.append(tensor.to(torch.float64).reshape(*rows, -1))
        return torch.cat(blocks, dim=-1)

    def split(self, raw_X: Tensor) -> dict[str, Tensor]:
        """Name the fields in ``[..., X]``; the converse of `join`."""
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
                values[name] = field.values[int(block[:-1].argmax())]
            else:
                numbers = block.tolist()
                shaped = isinstance(field, Box) and field.shape
                values[name] = tuple(numbers) if shaped else numbers[0]
        return values

    def _numbers(self, name: str, field: FieldType, value: object) -> Tensor:
        """Numbers of a `Box`, ``[C]`` float64."""
        shape = field.shape if isinstance(field, Box) else ()
        try:
            numbers = torch.as_tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            numbers = None
        if numbers is None or numbers.shape != shape:
            raise ValueError(
                f"{self.part} {name!r} must be numbers of shape {shape}, got {value!r:.60}"
            )
        if not bool(numbers.isfinite().all()):
            raise ValueError(f"{self.part} {name!r} must be finite, got {value!r:.60}")
        return numbers.reshape(-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnEncoding:
    """What a model's encoder does to the columns of a `Layout`.

    Attributes:
        mean, inverse_scale: Statistics of each column, ``[X]`` float64.
        kept: Columns that are inputs, ``[D]`` int64; None for all.
        symlog: Whether the column is squeezed first, ``[X]`` bool; None for none.
        low, high: Range of the training data in the units of *mean*, ``[X]`` float64; infinite
            where it is not checked.
    """

    mean: Tensor
    inverse_scale: Tensor
    kept: Tensor | None
    symlog: Tensor | None
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, encoder: FeatureEncoder, layout: Layout) -> ColumnEncoding:
        """Read the statistics of *encoder*."""
        means, scales = [0.0] * layout.width, [1.0] * layout.width
        kept, symlog = [True] * layout.width, [False] * layout.width
        low, high = [-torch.inf] * layout.width, [torch.inf] * layout.width
        for name in layout.fields:
            key, columns = f"{layout.part}.{name}", layout.columns[name]
            standardiser = encoder.standardiser(key)
            if standardiser is None:
                kept[columns] = [key not in encoder.constant] * len(kept[columns])
                continue
            means[columns], scales[columns] = standardiser.mean, standardiser.scale
            kept[columns], symlog[columns] = standardiser.kept, standardiser.symlog
            low[columns], high[columns] = standardiser.low, standardiser.high
        return cls(
            mean=torch.tensor(means, dtype=torch.float64),
            inverse_scale=torch.tensor(scales, dtype=torch.float64).reciprocal(),
            kept=None if all(kept) else torch.tensor(kept).nonzero()[:, 0],
            symlog=torch.tensor(symlog) if any(symlog) else None,
            low=torch.tensor(low, dtype=torch.float64),
            high=torch.tensor(high, dtype=torch.float64),
        )

    def encode(self, raw_X: Tensor) -> Tensor:
        """Encode ``[..., X]`` float64 as ``[..., D]`` float32, as the encoder does."""
        standard_X = (self._squeezed(raw_X) - self.mean).mul_(self.inverse_scale).float()
        standard_X = standard_X.clamp_(-CLIP, CLIP)
        return standard_X if self.kept is None else standard_X.index_select(-1, self.kept)

    def is_in_range(self, raw_X: Tensor) -> Tensor:
        """Whether no input column is far outside the training data, ``[...]`` bool.

        Far means, as for a prediction, that the distance from the range exceeds its width.
        """
        squeezed_X = self._squeezed(raw_X)
        distance_X = torch.maximum(self.low - squeezed_X, squeezed_X - self.high)
        near_X = distance_X <= self.high - self.low
        near_D = near_X if self.kept is None else near_X.index_select(-1, self.kept)
        return near_D.all(dim=-1)

    def _squeezed(self, raw_X: Tensor) -> Tensor:
        if self.symlog is None:
            return raw_X
        return torch.where(self.symlog, raw_X.sign() * raw_X.abs().log1p(), raw_X)


def is_text(field: FieldType) -> bool:
    """Whether *field* has no columns, because texts are hashed."""
    return not isinstance(field, Box | Discrete)


def _dimensions(field: FieldType) -> int:
    return field.shape[0] if isinstance(field, Box) and field.shape else 1
