"""Inputs that occur in several groups more evenly than chance explains: copies of records.

A small world repeats its inputs as well: a game has few states, a survey few answers. If each group
draws an input with a chance of its own, the number f(k) of inputs that are in exactly k of G groups
is a mixture of binomials, and f(k) ÷ (G over k) is log-convex in k: many inputs in two groups go
with some in three. Copies break this: each input is in two groups, and hardly one in three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories.data_checks.columns import Numbers, input_columns
from infrastructure.trajectories.data_checks.finding import Finding
from infrastructure.trajectories.split import Part

MOST_ROWS = 200_000
"""Of more rows those of some inputs are compared, with all of their copies."""

_STEPS = 100.0  # per standard deviation: numbers that differ by less count as equal
_UNSEEN = 3.0  # so many are expected, at most, where none was seen: a bound of 95 %
_SIGMAS = 3.0  # of the excess: many numbers of groups are looked at
_SMALLEST_SHARE = 0.02  # of the compared rows
_EXAMPLES = 2

Keys = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Duplicates:
    """What was found.

    Attributes:
        finding: The finding; None if inputs recur as chance explains.
        repeated: Numbers of the held-out rows whose inputs a training row has.
    """

    finding: Finding | None
    repeated: NDArray[np.int64]


def find_duplicates(
    spec: TransitionSpec, transitions: Sequence[Transition], rows: Mapping[Part, Sequence[int]]
) -> Duplicates:
    """Find held-out rows whose inputs are, nearly, those of a training row of another group.

    Args:
        rows: Numbers of the rows of each part.
    """
    numbers, keys = _compared(spec, transitions)
    part = np.full(len(transitions), -1, dtype=np.int8)
    part[np.asarray(rows["train"], dtype=np.int64)] = 0
    for name in ("calibration", "test"):
        part[np.asarray(rows[name], dtype=np.int64)] = 1
    names = [transitions[row].group for row in numbers]
    position = {name: place for place, name in enumerate(dict.fromkeys(names))}
    groups = np.array([position[name] for name in names], dtype=np.int64)

    learned_M, held_M = part[numbers] == 0, part[numbers] == 1
    repeated_M = held_M & np.isin(keys, keys[learned_M])
    repeated = numbers[repeated_M]
    if not repeated_M.any() or _copied_share(keys, groups, len(position)) < _SMALLEST_SHARE:
        return Duplicates(finding=None, repeated=repeated)
    backwards = keys[learned_M][::-1].tolist(), numbers[learned_M][::-1].tolist()
    first = dict(zip(*backwards, strict=True))
    pairs = dict.fromkeys(
        (transitions[row].group, transitions[first[key]].group)
        for row, key in zip(repeated.tolist(), keys[repeated_M].tolist(), strict=True)
    )
    examples = " and ".join(
        f"{held!r} as in {learned!r}" for held, learned in list(pairs)[:_EXAMPLES]
    )
    count, of = int(repeated_M.sum()), int(held_M.sum())
    sample = "" if len(numbers) == len(transitions) else f" (of a sample of {len(numbers)} rows)"
    finding = Finding(
        kind="duplicates",
        problem=(
            f"{count} of {of} held-out transitions ({count / of:.0%}){sample} repeat the inputs of "
            f"a training transition of another group ({examples}), so their score is too good"
        ),
        remedy="give transitions that belong together one group, and record each once",
        figures={"repeated": count, "held_out": of, "pairs_of_groups": len(pairs)},
    )
    return Duplicates(finding=finding, repeated=repeated)


def _compared(
    spec: TransitionSpec, transitions: Sequence[Transition]
) -> tuple[NDArray[np.int64], Keys]:
    """Numbers and keys of the rows to compare: all, or those of a share of the keys."""
    share = -(-len(transitions) // MOST_ROWS)
    statistics: list[tuple[float, float]] = []
    numbers, keys = [], []
    for start in range(0, len(transitions), MOST_ROWS):
        chunk = transitions[start : start + MOST_ROWS]
        keys_N = _keys(spec, chunk, statistics)
        kept = np.flatnonzero(keys_N % np.uint64(share) == 0)
        numbers.append(kept + start)
        keys.append(keys_N[kept])
    return np.concatenate(numbers), np.concatenate(keys)


def _keys(
    spec: TransitionSpec, transitions: Sequence[Transition], statistics: list[tuple[float, float]]
) -> Keys:
    """A hash of each row's rounded inputs, ``[N]``; the first call fills *statistics*."""
    keys = np.zeros(len(transitions), dtype=np.uint64)
    fill = not statistics
    place = 0
    for column in input_columns(spec, transitions):
        codes = column.values
        if column.is_number:
            if fill:
                statistics.append(_mean_and_scale(codes))
            mean, scale = statistics[place]
            place += 1
            steps = np.floor((codes - mean) / scale * _STEPS + 0.5)
            codes = np.nan_to_num(steps, nan=2.0**62).astype(np.int64)
        keys = _mixed(keys ^ codes.astype(np.uint64))
    return keys


def _mean_and_scale(values: Numbers) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    if not known.size:
        return 0.0, 1.0
    return float(known.mean()), float(known.std()) or 1.0


def _mixed(keys: Keys) -> Keys:
    """The finaliser of splitmix64: each bit depends on all."""
    keys = keys + np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def _copied_share(keys: Keys, groups: NDArray[np.int64], count: int) -> float:
    """Share of the rows that recur in other groups beyond what chance explains.

    Inputs that recur within a group are left out: a world that returns to its states is small.
    """
    order = np.lexsort((groups, keys))
    keys, groups = keys[order], groups[order]
    new_key = np.append(True, keys[1:] != keys[:-1])
    starts = np.flatnonzero(new_key)
    rows_K = np.diff(np.append(starts, len(keys)))
    new_pair = new_key | np.append(True, groups[1:] != groups[:-1])
    groups_K = np.add.reduceat(new_pair.astype(np.int64), starts)
    groups_K = groups_K[groups_K == rows_K]
    if not groups_K.size:
        return 0.0
    found = np.bincount(groups_K, minlength=count + 2).astype(np.float64)
    k = np.flatnonzero(found)
    k = k[(k >= 2) & (k < count)]
    ratio = (k + 1) * (count - k + 1) / (k * (count - k))
    fewer, more = found[k - 1] + _UNSEEN, found[k + 1] + _UNSEEN
    chance = np.sqrt(ratio * fewer * more)
    variance = found[k] + chance**2 / 4 * (1 / fewer + 1 / more)  # of counts, Poisson
    excess = np.maximum(0.0, found[k] - chance - _SIGMAS * np.sqrt(variance))
    return float((k * excess).sum() / len(keys))
