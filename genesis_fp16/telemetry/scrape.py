"""The daemon's metrics, read as Prometheus reads them, in OpenTelemetry's form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from urllib.request import ProxyHandler, Request, build_opener

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar as ScrapedExemplar
from prometheus_client.samples import Sample

from genesis_fp16.domain.telemetry import span_id

SECONDS = 10.0
_ACCEPT = "application/openmetrics-text; version=1.0.0"
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}
_CUMULATIVE = AggregationTemporality.CUMULATIVE


def read_metrics(url: str) -> str:
    """The text of *url*.

    Raises:
        OSError: It does not answer.
    """
    request = Request(url, headers={"Accept": _ACCEPT})  # noqa: S310  # the daemon's own listener
    with build_opener(ProxyHandler({})).open(request, timeout=SECONDS) as answer:
        return str(answer.read().decode())


def as_metrics(
    text: str, times: tuple[float, float], resource: Resource, scope: InstrumentationScope
) -> MetricsData:
    """The metrics in *text*, OpenMetrics.

    Args:
        text: As `read_metrics` returns it.
        times: Unix seconds at which counters began, and of this reading.
        resource: Where they come from.
        scope: What has made them.
    """
    start, now = (round(at * 1e9) for at in times)
    metrics = [
        Metric(
            name=family.name,
            description=family.documentation,
            unit=_UNITS.get(family.name.rpartition("_")[2], ""),
            data=_data(family, start, now),
        )
        for family in text_string_to_metric_families(text)
        if family.samples
    ]
    within = ScopeMetrics(scope=scope, metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource, [within], schema_url="")])


def _data(family: Family, start: int, now: int) -> Sum | Gauge | Histogram:
    if family.type == "histogram":
        return Histogram(list(_histograms(family, start, now)), _CUMULATIVE)
    points = [
        NumberDataPoint(
            attributes=sample.labels,
            start_time_unix_nano=start if family.type == "counter" else 0,
            time_unix_nano=now,
            value=sample.value,
            exemplars=_exemplars([sample]),
        )
        for sample in family.samples
        if not math.isnan(sample.value)  # "unknown" for Prometheus; here its absence says so
    ]
    if family.type == "counter":
        return Sum(points, _CUMULATIVE, is_monotonic=True)
    return Gauge(points)


def _histograms(family: Family, start: int, now: int) -> Iterator[HistogramDataPoint]:
    series: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        series.setdefault(tuple(sorted(labels.items())), []).append(sample)
    for labels_of, samples in series.items():
        buckets = [sample for sample in samples if sample.name.endswith("_bucket")]
        totals = {sample.name.rpartition("_")[2]: sample.value for sample in samples}
        below = [int(sample.value) for sample in buckets]
        counts = [here - before for before, here in pairwise([0, *below])]
        bounds = [float(sample.labels["le"]) for sample in buckets]
        yield HistogramDataPoint(
            attributes=dict(labels_of),
            start_time_unix_nano=start,
            time_unix_nano=now,
            count=int(totals["count"]),
            sum=totals["sum"],
            bucket_counts=counts,
            explicit_bounds=[bound for bound in bounds if math.isfinite(bound)],
            min=None,  # type: ignore[arg-type]  # not known, and optional in the protocol
            max=None,  # type: ignore[arg-type]
            exemplars=_exemplars(buckets),
        )


def _exemplars(samples: list[Sample]) -> list[Exemplar]:
    found: list[ScrapedExemplar] = [each.exemplar for each in samples if each.exemplar]
    return [
        Exemplar(
            filtered_attributes={"genesis.run.id": run_id},
            value=each.value,
            time_unix_nano=round(float(each.timestamp or 0.0) * 1e9),
            trace_id=int(each.labels.get("trace_id", "0"), 16),
            span_id=span_id(run_id),
        )
        for each in found
        if (run_id := each.labels.get("run_id")) is not None
    ]
