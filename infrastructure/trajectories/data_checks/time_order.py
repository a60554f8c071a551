"""Targets that change with time: a test on groups of all times then flatters a model.

Shapes: N rows, D inputs, K target columns, L rows of the newest groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories.data_checks.columns import (
    Column,
    Numbers,
    input_columns,
    observation_columns,
    target_columns,
)
from infrastructure.trajectories.data_checks.finding import Finding
from infrastructure.trajectories.split import CALIBRATION_SHARE, TRAIN_SHARE

WORSE = 0.1
"""Share of the squared error on the newest groups that knowledge of their time has to take away."""

_OF_VARIANCE = 0.02  # that this share has to be, too: the error of an easy target is tiny
_STANDARD_ERRORS = 3.0
_CLIP = 3.0
_MOST_INPUTS = 128
_MOST_LABELS = 32  # of a field; the most frequent
_RIDGE = 1e-2  # per row
_FEWEST_GROUPS = 10  # among the newest

PERMUTATIONS = 99
"""Random orders of the groups that a drift has to exceed."""

Rows = NDArray[np.int64]


def find_drift(spec: TransitionSpec, transitions: Sequence[Transition]) -> list[Finding]:
    """Find targets that are harder to predict in newer groups than a split by group says.

    A ridge regression on the inputs and their squares is fitted on the groups that appear first,
    and compared, on the fifth that appears last, with one that replaces some of its rows by those
    of half of that fifth. Inputs that count the time are left out: the first one would extrapolate.
    A target is named if its gain, in standard errors, exceeds that of every target in each of
    `PERMUTATIONS` random orders of the groups: a false alarm in a hundred.

    Args:
        transitions: Transitions in the order in which they were recorded.
    """
    names = [transition.group for transition in transitions]
    position = {name: place for place, name in enumerate(dict.fromkeys(names))}
    group_N = np.array([position[name] for name in names])
    newest = round((TRAIN_SHARE + CALIBRATION_SHARE) * len(position))
    late_N = group_N >= newest
    if len(np.unique(group_N[late_N])) < _FEWEST_GROUPS or 2 * late_N.sum() >= len(late_N):
        return []
    inputs_ND = _inputs(spec, transitions, late_N)
    titles, targets_NK = _targets(spec, transitions)
    generator = np.random.default_rng(0)
    gain_K, error_K, certainty_K = _gains(inputs_ND, targets_NK, group_N, newest, generator)
    least_K = np.maximum(WORSE * (gain_K + error_K), _OF_VARIANCE * targets_NK.var(0))
    drifts_K = (certainty_K > _STANDARD_ERRORS) & (gain_K > least_K)
    for _ in range(PERMUTATIONS):
        if not drifts_K.any():
            return []
        shuffled_N = generator.permutation(len(position))[group_N]
        chance_K = _gains(inputs_ND, targets_NK, shuffled_N, newest, generator)[2]
        drifts_K &= certainty_K > chance_K.max()
    worse: dict[str, float] = {}
    for place in np.flatnonzero(drifts_K):
        factor = 1.0 + float(gain_K[place]) / max(float(error_K[place]), 1e-12)
        worse[titles[place]] = max(factor, worse.get(titles[place], 0.0))
    return [
        Finding(
            kind="drift",
            fields=(title,),
            problem=(
                f"{title} changes with the order of recording: on the newest fifth of the groups, "
                f"a regression on older groups has {factor:.2g} times the squared error of one "
                "that has also seen groups of that time, as a split by group lets a model"
            ),
            remedy='if the order is that of time, set split = "time" in the spec: the newest '
            "groups are then the test",
            figures={"squared_error_ratio": factor},
        )
        for title, factor in worse.items()
    ]


def _gains(
    inputs_ND: Numbers,
    targets_NK: Numbers,
    group_N: Rows,
    newest: int,
    generator: np.random.Generator,
) -> tuple[Numbers, Numbers, Numbers]:
    """What is gained by groups of the time, its error, and the gain in standard errors, ``[K]``.

    Args:
        group_N: Place of each row's group in the order.
        newest: Place from which groups are the newest.
    """
    early, late = np.flatnonzero(group_N < newest), np.flatnonzero(group_N >= newest)
    half_L = generator.permutation(int(group_N.max()) + 1)[group_N[late]] % 2
    before_LK = _squared_errors(inputs_ND, targets_NK, early, late)
    beside_LK = np.empty_like(before_LK)
    for half in (0, 1):
        others = late[half_L != half]
        kept = generator.permutation(early)[: max(0, len(early) - len(others))]
        learned, tested = np.concatenate([kept, others]), half_L == half
        beside_LK[tested] = _squared_errors(inputs_ND, targets_NK, learned, late[tested])
    gain_LK = before_LK - beside_LK
    errors_K = [_standard_error(gain_L, group_N[late]) for gain_L in gain_LK.T]
    gain_K = gain_LK.mean(0)
    return gain_K, beside_LK.mean(0), gain_K / np.maximum(errors_K, 1e-12)


def _squared_errors(
    inputs_ND: Numbers, targets_NK: Numbers, learned: Rows, tested: Rows
) -> Numbers:
    """Squared errors on the rows *tested* of a ridge regression, ``[T, K]``."""
    mean_K = targets_NK[learned].mean(0)
    mean_D = inputs_ND[learned].mean(0)
    x_LD = inputs_ND[learned] - mean_D
    gram_DD = x_LD.T @ x_LD + _RIDGE * len(learned) * np.eye(x_LD.shape[1])
    weights_DK = np.linalg.solve(gram_DD, x_LD.T @ (targets_NK[learned] - mean_K))
    predicted_TK = (inputs_ND[tested] - mean_D) @ weights_DK + mean_K
    return np.asarray((targets_NK[tested] - predicted_TK) ** 2)


def _inputs(
    spec: TransitionSpec, transitions: Sequence[Transition], late_N: NDArray[np.bool_]
) -> Numbers:
    """Standardised numbers, their squares, and one-hot labels, ``[N, D]``; texts are left out."""
    columns: list[Numbers] = []
    for column in input_columns(spec, transitions):
        if len(columns) >= _MOST_INPUTS:
            break
        if not column.is_number:
            columns += _indicators(column)
        elif not _counts_time(column.values, late_N):
            standard_N = _standardised(column.values)
            columns += [standard_N, standard_N**2]
    return np.stack(columns or [np.zeros(len(transitions))], axis=1)


def _counts_time(values: Numbers, late_N: NDArray[np.bool_]) -> bool:
    """Whether most of the newest rows lie outside the range of the older ones."""
    early, late = values[~late_N], values[late_N]
    early = early[~np.isnan(early)]
    if not early.size:
        return False
    return bool(((late < early.min()) | (late > early.max())).mean() > 0.5)


def _targets(spec: TransitionSpec, transitions: Sequence[Transition]) -> tuple[list[str], Numbers]:
    """Titles of the target columns, and their standardised values ``[N, K]``.

    Of a number that the observation has as well, the change counts; a label has a column each.
    """
    before = {
        column.title.partition(".")[2]: column.values
        for column in observation_columns(spec, transitions, spec.targets.keys() & spec.observation)
        if column.is_number
    }
    titles, columns = [], []
    for column in target_columns(spec, transitions):
        if column.is_number:
            start = before.get(column.title, 0.0)
            found = [_standardised(column.values - start)]
        else:
            found = [*_indicators(column)]
        titles += [column.title] * len(found)
        columns += found
    return titles, np.stack(columns, axis=1)


def _standardised(values: Numbers) -> Numbers:
    """*values* with mean 0 and deviation 1, clipped; missing becomes 0."""
    known = values[~np.isnan(values)]
    if not known.size or not known.std():
        return np.zeros(len(values))
    standard = np.clip((values - known.mean()) / known.std(), -_CLIP, _CLIP)
    return np.asarray(np.nan_to_num(standard, nan=0.0))


def _indicators(column: Column) -> Iterator[Numbers]:
    """Whether each row has a label, for the most frequent ones that recur."""
    labels, counts = np.unique(column.values, return_counts=True)
    for place in np.argsort(-counts)[:_MOST_LABELS]:
        if counts[place] > 1:
            yield (column.values == labels[place]).astype(np.float64)


def _standard_error(values_L: Numbers, groups_L: Rows) -> float:
    """Standard error of the mean, with dependent rows within each group."""
    _, place_L = np.unique(groups_L, return_inverse=True)
    sums = np.bincount(place_L, weights=values_L - values_L.mean())
    return float(np.sqrt((sums**2).sum() * len(sums) / (len(sums) - 1)) / len(values_L))
