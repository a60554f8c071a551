"""What to say where one outcome is so rare that the data cannot decide about a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories import Part
from infrastructure.trajectories.schema import label_of
from infrastructure.trajectories.split import CALIBRATION_SHARE, TRAIN_SHARE

FEW_SUCCESSES = 30
"""Successes of the test groups below which the gain of a model is not certain."""

FEWEST_OTHERS = 5
"""Rows of another label than the commonest below which nothing tells skill from chance."""

_TEST_SHARE = 1.0 - TRAIN_SHARE - CALIBRATION_SHARE


def deciding_rows(successes: float, rows: int, test_share: float = _TEST_SHARE) -> float:
    """Transitions whose test groups have `FEW_SUCCESSES`, at the rate *successes* ÷ *rows*."""
    return FEW_SUCCESSES * rows / successes / test_share


def count_others(label_N: Tensor) -> int:
    """Rows that have another label than the commonest."""
    return len(label_N) - int(label_N.unique(return_counts=True)[1].max())


def rounded_up(number: float) -> int:
    """*number* to two digits: an estimate that rests on few successes."""
    unit = 10.0 ** max(0, math.floor(math.log10(number)) - 1)
    return int(math.ceil(number / unit) * unit)


def describe_constant_targets(
    spec: TransitionSpec, split: Mapping[Part, Sequence[Transition]]
) -> str:
    """Why nothing can be learned where no target varies in the training groups."""
    rows, trained = sum(map(len, split.values())), len(split["train"])
    nothing = f"no target varies in the {trained} transitions that train"
    if spec.success is None:
        return f"{nothing} ({', '.join(spec.targets)}): record others too, or predict another field"
    name, label = spec.success
    found = sum(_succeeded(row, name, label) for part in split.values() for row in part)
    rare, one, many = found, "success", "successes"
    if rows - found < found:
        rare, one, many = rows - found, "failure", "failures"
    told = f"{rare or 'no'} {one if rare == 1 else many}"
    # none among n: the rate lies below 3 / n with 95 % confidence
    needed = rounded_up(deciding_rows(rare or 3, rows))
    rate = "at this rate about" if rare else "probably more than"
    return (
        f"{nothing}: {told} ({name} {'is' if one == 'success' else 'is not'} {label!r}) in {rows} "
        f"transitions; {rate} {needed:,} would decide, with {FEW_SUCCESSES} in the test groups: "
        f"record more, or name an outcome that is less rare"
    )


def _succeeded(row: Transition, name: str, label: str) -> bool:
    value = row.terminated if name == "terminated" else row.next_observation.get(name)
    return value is not None and label_of(value) == label
