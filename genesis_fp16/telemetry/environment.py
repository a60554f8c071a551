"""The OTEL_* variables that the SDK leaves to an application; it reads the others itself."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal

from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_METRIC_EXPORT_INTERVAL,
    OTEL_SDK_DISABLED,
)

Signal = Literal["traces", "metrics", "logs"]
_EXPORTERS: dict[Signal, str] = {
    "traces": "OTEL_TRACES_EXPORTER",
    "metrics": "OTEL_METRICS_EXPORTER",
    "logs": "OTEL_LOGS_EXPORTER",
}
_COUNTS = tuple(
    f"OTEL_{name}_LIMIT"
    for name in (
        "ATTRIBUTE_COUNT",
        "ATTRIBUTE_VALUE_LENGTH",
        "EVENT_ATTRIBUTE_COUNT",
        "LINK_ATTRIBUTE_COUNT",
        "LOGRECORD_ATTRIBUTE_COUNT",
        "LOGRECORD_ATTRIBUTE_VALUE_LENGTH",
        "SPAN_ATTRIBUTE_COUNT",
        "SPAN_ATTRIBUTE_VALUE_LENGTH",
        "SPAN_EVENT_COUNT",
        "SPAN_LINK_COUNT",
    )
)
_TIMEOUTS = (
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    *(f"OTEL_EXPORTER_OTLP_{each.upper()}_TIMEOUT" for each in _EXPORTERS),
)
_PROTOCOL = "http/protobuf"
_INTERVAL_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What the environment asks for.

    Attributes:
        signals: What is exported.
        metric_seconds: Time between two exports of metrics.
        refused: Variables with a value that is not supported, as NAME=VALUE.
    """

    signals: frozenset[Signal]
    metric_seconds: float
    refused: tuple[str, ...]


def read_environment() -> Wanted:
    """Read the variables; one that is not supported counts as unset and is named in `refused`.

    A malformed number that the SDK reads itself is removed from the environment.
    """
    refused = []

    def chosen(name: str, known: tuple[str, ...]) -> str:
        text = os.environ.get(name, "").strip().lower()
        if text and text not in known:
            refused.append(f"{name}={text}")
            return ""
        return text

    signals = {
        each for each, name in _EXPORTERS.items() if chosen(name, ("otlp", "none")) != "none"
    }
    if chosen(OTEL_SDK_DISABLED, ("true", "false")) == "true":
        signals.clear()
    chosen(OTEL_EXPORTER_OTLP_PROTOCOL, (_PROTOCOL,))
    text = os.environ.get(OTEL_METRIC_EXPORT_INTERVAL, "").strip()
    seconds = int(text) / 1000 if text.isdecimal() and int(text) > 0 else _INTERVAL_SECONDS
    if text and not text.isdecimal():
        refused.append(f"{OTEL_METRIC_EXPORT_INTERVAL}={text}")
    for names, is_sound in ((_COUNTS, _is_count), (_TIMEOUTS, _is_timeout)):
        for name in names:
            text = os.environ.get(name, "").strip()
            if text and not is_sound(text):
                refused.append(f"{name}={text}")
                del os.environ[name]
    return Wanted(signals=frozenset(signals), metric_seconds=seconds, refused=tuple(refused))


def endpoint_variable(signal: str) -> str:
    """The variable that names the receiver of *signal*."""
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT"
    return own if os.environ.get(own) else "OTEL_EXPORTER_OTLP_ENDPOINT"


def _is_count(text: str) -> bool:
    return text.lower() == "none" or (text.isascii() and text.isdecimal() and len(text) < 19)


def _is_timeout(text: str) -> bool:
    try:
        return 0.0 < float(text) < math.inf
    except ValueError:
        return False
