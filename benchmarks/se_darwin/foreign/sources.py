"""The sources of bugs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.se_darwin.foreign.asynchronous_bugs import asynchronous_bugs
from benchmarks.se_darwin.foreign.bug import ForeignBug
from benchmarks.se_darwin.foreign.building import MANIFESTS, read_built
from benchmarks.se_darwin.foreign.handwritten_bugs import handwritten_bugs
from benchmarks.se_darwin.foreign.written_bugs import written_bugs

SOURCES: Mapping[str, Callable[[], list[ForeignBug]]] = {
    "handwritten": handwritten_bugs,
    "practice": partial(written_bugs, "practice"),
    "workplace": partial(written_bugs, "workplace"),
    "written": written_bugs,
    "asynchronous": asynchronous_bugs,
    **{source: partial(read_built, source) for source in MANIFESTS},
}
"""Loaders; ``handwritten`` and ``practice`` are there to tune on, the others to report on."""

FOREIGN = ("students", "packages", "algorithms", "written")
"""Sources to report on: sixty bugs each, chosen before the search first saw them."""
