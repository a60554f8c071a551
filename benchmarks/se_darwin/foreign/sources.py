"""The sources of bugs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.se_darwin.foreign.bug import ForeignBug
from benchmarks.se_darwin.foreign.handwritten_bugs import handwritten_bugs
from benchmarks.se_darwin.foreign.written_bugs import written_bugs

SOURCES: Mapping[str, Callable[[], list[ForeignBug]]] = {
    "handwritten": handwritten_bugs,
    "written": written_bugs,
}
"""Loaders; ``handwritten`` is there to tune on, the others only to report on."""
