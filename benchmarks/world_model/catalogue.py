"""All data sets, and the names by which the command line chooses among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.world_model.dynamics import ENVIRONMENTS
from benchmarks.world_model.recording import DataSet
from benchmarks.world_model.tables import TABLES

DATA_SETS: Mapping[str, DataSet] = {each.name: each for each in (*TABLES, *ENVIRONMENTS)}
HELD_BACK = tuple(name for name, each in DATA_SETS.items() if not each.tuning)
"""Sets of the report. Nobody makes a choice on them."""

TUNING = tuple(name for name, each in DATA_SETS.items() if each.tuning)
"""Sets on which choices are made; they are not counted in the report."""

GROUPS: Mapping[str, Sequence[str]] = {
    "all": tuple(DATA_SETS),
    "report": HELD_BACK,
    "tuning": TUNING,
}


def choose(names: Sequence[str]) -> list[DataSet]:
    """Data sets of *names*, which may be those of `GROUPS`.

    Raises:
        ValueError: A name is unknown.
    """
    chosen = dict[str, DataSet]()
    for name in names:
        for member in GROUPS.get(name, (name,)):
            if member not in DATA_SETS:
                raise ValueError(f"{member!r} is not a data set; there are {', '.join(DATA_SETS)}")
            chosen[member] = DATA_SETS[member]
    return list(chosen.values())
