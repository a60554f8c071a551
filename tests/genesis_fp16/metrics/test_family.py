"""Families of series against the library's own, in both text formats."""

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from genesis_fp16.metrics.family import CounterFamily, GaugeFamily, HistogramFamily

BUCKETS = (0.01, 0.5, 2500000.0)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
AMOUNTS = st.floats(min_value=0, max_value=1e12)
CALLS = st.lists(st.tuples(st.sampled_from(["c", "g", "h"]), TEXTS, AMOUNTS), max_size=12)


def theirs(registry: CollectorRegistry) -> dict[str, Any]:
    disable_created_metrics()
    return {
        "c": Counter("genesis_c_total", "A counter", ["agent"], registry=registry),
        "g": Gauge("genesis_g", "A gauge", ["agent"], registry=registry),
        "h": Histogram("genesis_h", "Some", ["agent"], buckets=BUCKETS, registry=registry),
    }


def ours(registry: CollectorRegistry) -> dict[str, Any]:
    return {
        "c": CounterFamily("genesis_c_total", "A counter", ["agent"], registry=registry),
        "g": GaugeFamily("genesis_g", "A gauge", ["agent"], registry=registry),
        "h": HistogramFamily("genesis_h", "Some", ["agent"], buckets=BUCKETS, registry=registry),
    }


def update(families: dict[str, Any], calls: list[tuple[str, str, float]]) -> None:
    for kind, agent, amount in calls:
        child = families[kind].labels(agent)
        if kind == "c":
            child.inc(amount, {"run_id": "r-1"})
        elif kind == "g":
            child.set(amount)
        else:
            child.observe(amount, {"run_id": "r-1"})


def text(families: dict[str, Any], *, openmetrics: bool) -> str:
    end = "# EOF\n" if openmetrics else ""
    lines = (line for family in families.values() for line in family.lines(openmetrics=openmetrics))
    return "".join(lines) + end


def without_times(exposition: str) -> str:
    """The text without the moments of the exemplars."""
    return re.sub(r"(# \{[^}]*\} \S+) \S+$", r"\1", exposition, flags=re.MULTILINE)


@given(CALLS)
def test_both_formats_are_what_the_library_makes_of_the_same_values(
    calls: list[tuple[str, str, float]],
) -> None:
    reference, registry = CollectorRegistry(), CollectorRegistry()
    update(theirs(reference), calls)
    families = ours(registry)
    update(families, calls)
    expected = without_times(openmetrics_text(reference).decode())
    assert without_times(text(families, openmetrics=True)) == expected
    assert without_times(openmetrics_text(registry).decode()) == expected
    assert text(families, openmetrics=False) == generate_latest(reference).decode()
    assert generate_latest(registry) == generate_latest(reference)
    for agent in {agent for kind, agent, _ in calls if kind == "c"}:
        value = reference.get_sample_value("genesis_c_total", {"agent": agent})
        assert registry.get_sample_value("genesis_c_total", {"agent": agent}) == value


def test_the_librarys_parsers_read_both_formats() -> None:
    families = ours(CollectorRegistry())
    update(
        families, [("c", 'a"\\\n', 3.0), ("g", "b", math.nan), ("h", "b", 0.01), ("h", "b", 1e9)]
    )
    read = {
        (sample.name, *sample.labels.values()): sample
        for family in parse_openmetrics(text(families, openmetrics=True))
        for sample in family.samples
    }
    assert read["genesis_c_total", 'a"\\\n'].value == 3.0
    assert math.isnan(read["genesis_g", "b"].value)
    assert read["genesis_h_bucket", "b", "0.01"].value == 1
    assert read["genesis_h_bucket", "b", "0.01"].exemplar.labels == {"run_id": "r-1"}
    assert read["genesis_h_bucket", "b", "+Inf"].value == 2
    assert read["genesis_h_bucket", "b", "+Inf"].exemplar.value == 1e9
    plain = [family.type for family in parse_text(text(families, openmetrics=False))]
    assert plain == ["counter", "gauge", "histogram"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.5, 0, 1e6, 123456789.25, True])
def test_a_gauge_reads_as_in_the_library(value: float) -> None:
    reference, registry = CollectorRegistry(), CollectorRegistry()
    theirs(reference)["g"].labels("a").set(value)
    families = ours(registry)
    families["g"].labels("a").set(value)
    assert text(families, openmetrics=False) == generate_latest(reference).decode()


def test_one_value_many_times_is_one_update() -> None:
    once, often = ours(CollectorRegistry()), ours(CollectorRegistry())
    once["h"].labels("a").observe(0.25, {"run_id": "r-1"}, times=1000)
    for _ in range(1000):
        often["h"].labels("a").observe(0.25, {"run_id": "r-1"})
    assert text(once, openmetrics=False) == text(often, openmetrics=False)
    once["h"].labels("a").observe(0.25, {"run_id": "r-1"}, times=0)
    assert text(once, openmetrics=False) == text(often, openmetrics=False)


def test_a_counter_refuses_to_fall() -> None:
    counter = ours(CollectorRegistry())["c"].labels("a")
    with pytest.raises(ValueError, match="-1"):
        counter.inc(-1)


def test_a_removed_series_is_gone() -> None:
    registry = CollectorRegistry()
    families = ours(registry)
    families["g"].labels("a").set(1)
    families["g"].remove("a")
    families["g"].remove("a")
    assert registry.get_sample_value("genesis_g", {"agent": "a"}) is None
    assert "agent" not in text(families, openmetrics=True)
