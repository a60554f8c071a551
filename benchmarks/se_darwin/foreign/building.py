"""The bugs of the sources that only have a manifest here: built from clones, and read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.se_darwin.foreign import algorithms, packages, students
from benchmarks.se_darwin.foreign.bug import ForeignBug
from benchmarks.se_darwin.foreign.clones import Clones
from benchmarks.se_darwin.foreign.manifest import Digests, Entry, Manifest

BUILT = Path("benchmark_results/.cache/foreign")
_BUILDERS: Mapping[str, Callable[[Entry, Clones], ForeignBug]] = {
    "students": students.bug_of,
    "algorithms": algorithms.bug_of,
    "packages": packages.bug_of,
}
MANIFESTS = tuple(_BUILDERS)
"""Sources that have a manifest."""


def build(source: str, clones: Clones, folder: Path = BUILT) -> list[ForeignBug]:
    """Build the bugs of *source* and write them to *folder*.

    Raises:
        ValueError: A text has another hash than in the manifest, or a clone is missing and cannot
            be fetched.
    """
    entries = Manifest.read(source).bugs
    bugs = [_BUILDERS[source](entry, clones) for entry in entries]
    _check(source, bugs, entries)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(bug) for bug in bugs], indent=1)
    (folder / f"{source}.json").write_text(text)
    return bugs


def read_built(source: str, folder: Path = BUILT) -> list[ForeignBug]:
    """Return the bugs of *source* that `build` wrote.

    Raises:
        ValueError: They are not built, or not by the manifest.
    """
    file = folder / f"{source}.json"
    if not file.is_file():
        raise ValueError(
            f"{file} does not exist: run python -m benchmarks.se_darwin.foreign build --clones "
            "FOLDER"
        )
    bugs = [ForeignBug(**fields) for fields in json.loads(file.read_text())]
    _check(source, bugs, Manifest.read(source).bugs)
    return bugs


def _check(source: str, bugs: list[ForeignBug], entries: list[Entry]) -> None:
    if [bug.name for bug in bugs] != [entry.name for entry in entries]:
        raise ValueError(f"{source} has other bugs than its manifest: build it again")
    for bug, entry in zip(bugs, entries, strict=True):
        if Digests.of(bug) != entry.sha256:
            raise ValueError(
                f"{source}/{bug.name} has other texts than in its manifest: got "
                f"{Digests.of(bug)}, not {entry.sha256}. Build it with Python 3.11 and the "
                "version of this repository that has the manifest"
            )
