"""Counters, gauges and histograms of agents, cheap enough for 1,000 agents.

A series of `prometheus_client` takes about 3 KB of memory and 12 microseconds of CPU time in every
scrape, since its labels are formatted each time. Here they are formatted once. A family is a
collector of a `CollectorRegistry` as well: what the library renders from it is the reference, and a
test compares the two, byte for byte.
"""

from __future__ import annotations

import math
import threading
import time
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, Generic, TypeVar

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

_Labels = dict[str, str]


def _braced(labels: _Labels) -> str:
    pairs = (f'{key}="{text.translate(_ESCAPES)}"' for key, text in sorted(labels.items()))
    return f"{{{','.join(pairs)}}}"


class _Series:
    """One sample's name and labels, and how both read in every format."""

    __slots__ = ("labels", "name", "prefix")

    def __init__(self, name: str, labels: _Labels) -> None:
        self.name, self.labels = name, labels
        self.prefix = f"{name}{_braced(labels)} "

    def sample(self, value: float, exemplar: Exemplar | None = None) -> Sample:
        return Sample(self.name, self.labels, value, None, exemplar)

    def line(self, value: float, exemplar: Exemplar | None = None) -> str:
        """Text of the sample; an *exemplar* is OpenMetrics."""
        if exemplar is None:
            return f"{self.prefix}{floatToGoString(value)}\n"
        labels, of_exemplar = _braced(exemplar.labels), floatToGoString(exemplar.value)
        shown = f"{labels} {of_exemplar} {exemplar.timestamp}"
        return f"{self.prefix}{floatToGoString(value)} # {shown}\n"


class _Child:
    """The series of one agent and one set of further labels."""

    __slots__ = ()

    @abstractmethod
    def samples(self) -> Iterator[tuple[_Series, float, Exemplar | None]]:
        """Yield each series with its value and its exemplar."""


_ChildType = TypeVar("_ChildType", bound=_Child)


class Family(Collector):
    """A metric with labels, which renders itself."""

    @abstractmethod
    def lines(self, *, openmetrics: bool) -> Iterator[str]:
        """Yield the text of the metric, line by line, as OpenMetrics or in the older format."""


class _Family(Family, Generic[_ChildType]):
    """A metric with labels; its series exist once `labels` has named them.

    Args:
        name: Name of the metric, as queries use it.
        documentation: Help text.
        labels: Names of the labels.
        registry: Registry that collects the family.
    """

    kind: ClassVar[str]

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], *, registry: CollectorRegistry
    ) -> None:
        self.name, self.documentation, self.label_names = name, documentation, tuple(labels)
        self._openmetrics_name = name.removesuffix("_total") if self.kind == "counter" else name
        self._children: dict[tuple[str, ...], _ChildType] = {}
        self._lock = threading.Lock()
        registry.register(self)

    @abstractmethod
    def _make(self, labels: _Labels) -> _ChildType:
        """Make the child with these *labels*."""

    def labels(self, *values: str) -> _ChildType:
        """Return the series with these label values; create them at 0 if they do not exist."""
        child = self._children.get(values)
        if child is None:
            with self._lock:
                labels = dict(zip(self.label_names, map(str, values), strict=True))
                child = self._children.setdefault(values, self._make(labels))
        return child

    def remove(self, *values: str) -> None:
        """Remove the series with these label values, if they exist."""
        self._children.pop(values, None)

    def describe(self) -> Iterable[Metric]:
        """Return the metric without samples, for the registry's check of names."""
        return [Metric(self._openmetrics_name, self.documentation, self.kind)]

    def collect(self) -> Iterable[Metric]:
        """Return the metric with its samples, for what reads the registry itself."""
        metric = Metric(self._openmetrics_name, self.documentation, self.kind)
        metric.samples = [
            series.sample(value, exemplar)
            for child in list(self._children.values())
            for series, value, exemplar in child.samples()
        ]
        return [metric]

    def lines(self, *, openmetrics: bool) -> Iterator[str]:
        """See `Family`."""
        name = self._openmetrics_name if openmetrics else self.name
        yield f"# HELP {name} {self.documentation}\n# TYPE {name} {self.kind}\n"
        for child in list(self._children.values()):
            for series, value, exemplar in child.samples():
                yield series.line(value, exemplar if openmetrics else None)


class _Gauge(_Child):
    __slots__ = ("_series", "_value")

    def __init__(self, series: _Series) -> None:
        self._series, self._value = series, 0.0

    def set(self, value: float) -> None:
        """Set the value."""
        self._value = float(value)

    def add(self, amount: float) -> None:
        """Add *amount*, which may be negative."""
        self._value += amount

    def samples(self) -> Iterator[tuple[_Series, float, Exemplar | None]]:
        """See `_Child`."""
        yield self._series, self._value, None


class GaugeFamily(_Family[_Gauge]):
    """A value that goes up and down."""

    kind = "gauge"

    def _make(self, labels: _Labels) -> _Gauge:
        return _Gauge(_Series(self.name, labels))


class _Counter(_Child):
    __slots__ = ("_series", "_state")

    def __init__(self, series: _Series) -> None:
        self._series = series
        self._state: tuple[float, Exemplar | None] = (0.0, None)

    def inc(self, amount: float = 1.0, exemplar: Mapping[str, str] | None = None) -> None:
        """Add *amount*.

        Raises:
            ValueError: *amount* is negative.
        """
        if amount < 0:
            raise ValueError(f"a counter cannot fall: {amount} was to be added")
        value, last = self._state
        if exemplar is not None:
            last = Exemplar(dict(exemplar), amount, time.time())
        self._state = (value + amount, last)

    def samples(self) -> Iterator[tuple[_Series, float, Exemplar | None]]:
        """See `_Child`."""
        yield self._series, *self._state


class CounterFamily(_Family[_Counter]):
    """A value that only goes up; its name ends in ``_total``."""

    kind = "counter"

    def _make(self, labels: _Labels) -> _Counter:
        return _Counter(_Series(self.name, labels))


class _Histogram(_Child):
    __slots__ = ("_bounds", "_buckets", "_count", "_state", "_sum")

    def __init__(self, bounds: tuple[float, ...], name: str, labels: _Labels) -> None:
        self._bounds = bounds
        self._buckets = [
            _Series(f"{name}_bucket", {**labels, "le": floatToGoString(bound)}) for bound in bounds
        ]
        self._count, self._sum = _Series(f"{name}_count", labels), _Series(f"{name}_sum", labels)
        self._state: tuple[list[int], float, dict[int, Exemplar]] = ([0] * len(bounds), 0.0, {})

    def observe(self, value: float, exemplar: Mapping[str, str], *, times: int = 1) -> None:
        """Count *value* that many *times*, in constant time."""
        if times <= 0:
            return
        at = bisect_left(self._bounds, value)
        counts, total, exemplars = self._state
        # A new state instead of a change of the old one: a scrape sees either, never a mixture.
        self._state = (
            [*counts[:at], counts[at] + times, *counts[at + 1 :]],
            total + value * times,
            {**exemplars, at: Exemplar(dict(exemplar), value, time.time())},
        )

    def add(self, counts: Sequence[int], total: float) -> None:
        """Count values that were counted elsewhere, by bucket, with their sum *total*."""
        before, sum_before, exemplars = self._state
        after = [earlier + count for earlier, count in zip(before, counts, strict=True)]
        self._state = after, sum_before + total, exemplars

    def samples(self) -> Iterator[tuple[_Series, float, Exemplar | None]]:
        """See `_Child`."""
        counts, total, exemplars = self._state
        cumulated = list(accumulate(counts))
        for at, (series, count) in enumerate(zip(self._buckets, cumulated, strict=True)):
            yield series, float(count), exemplars.get(at)
        yield self._count, float(cumulated[-1]), None
        yield self._sum, total, None


class HistogramFamily(_Family[_Histogram]):
    """Counts of values by upper bounds, which *buckets* holds in rising order.

    Other arguments are those of the other families.
    """

    kind = "histogram"

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        *,
        buckets: tuple[float, ...],
        registry: CollectorRegistry,
    ) -> None:
        self._bounds = (*buckets, math.inf)
        super().__init__(name, documentation, labels, registry=registry)

    def _make(self, labels: _Labels) -> _Histogram:
        return _Histogram(self._bounds, self.name, labels)
