"""Asks Prometheus what a dashboard would ask it."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line of an answer.

    Attributes:
        name: As the panel's legend has it.
        mark: Whether the panel draws it as points.
        times: Unix time in seconds, a step apart; a gap is a moment without a sample.
        values: At these times.
    """

    name: str
    mark: bool
    times: list[float]
    values: list[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The stretch of time that a dashboard shows.

    Attributes:
        begin, end: Unix time in seconds.
        step: Seconds between two samples.
        rate_interval: What ``$__rate_interval`` stands for, in seconds.
    """

    begin: float
    end: float
    step: float
    rate_interval: float


class Prometheus:
    """A Prometheus that answers at *url*."""

    def __init__(self, url: str, variables: Mapping[str, str]) -> None:
        self._url, self._variables = url.rstrip("/"), variables

    def answer(self, panel: Mapping[str, Any], window: Window) -> list[Series]:
        """The series of *panel*, as its queries return them.

        Raises:
            OSError: Prometheus does not answer, or refuses a query.
        """
        marked = {
            override["matcher"]["options"] for override in panel["fieldConfig"].get("overrides", [])
        }
        return [
            Series(
                name=_named(target["legendFormat"], result["metric"]),
                mark=target["refId"] in marked,
                times=[moment for moment, _ in result["values"]],
                values=[float(value) for _, value in result["values"]],
            )
            for target in panel["targets"]
            for result in self._range(target["expr"], window)
        ]

    def _range(self, expr: str, window: Window) -> list[dict[str, Any]]:
        expr = expr.replace("$__rate_interval", f"{window.rate_interval:.0f}s")
        for name, value in self._variables.items():
            expr = expr.replace(f"${name}", value)
        asked = {"query": expr, "start": window.begin, "end": window.end, "step": window.step}
        url = f"{self._url}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - the caller's own
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result


def _named(legend: str, labels: Mapping[str, str]) -> str:
    return LABEL.sub(lambda placeholder: labels.get(placeholder[1], ""), legend)
