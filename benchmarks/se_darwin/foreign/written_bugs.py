"""The bugs of the folders ``written``, ``workplace`` and ``practice``: written and broken by hand.

``practice`` is there to develop on: its author knows the agent, but wrote the bugs before looking
at which edits they need. The author of ``workplace`` knew neither the agent nor its edits, and
broke 36 programs of everyday business as people do, 28 in one place and 8 in two. The author of
``written`` did not know the agent, what it can edit, nor how it fares on them: 48 have one fault,
12 have two that belong together; each of 24 classes of faults occurs three times. Every file holds
one bug: three fields (function, fault classes, fault) and four texts under ``===`` headings. The
expected values of the hidden tests of ``written`` and ``practice`` were computed by the right
program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.se_darwin.foreign.bug import ForeignBug

_FOLDER = Path(__file__).parent
_TEXTS = ("right program", "wrong program", "tests", "hidden tests")
_FILE = re.compile(
    r"function: ([^\n]+)\nfault class: ([^\n]+)\nfault: ([^\n]+)\n"
    + "".join(rf"\n=== {heading} ===\n(.*\n)" for heading in _TEXTS),
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenBug:
    """Attributes:
    bug: Programs and tests.
    fault: What is wrong, in a sentence.
    fault_classes: Class of each fault; two faults that belong together have one each.
    """

    bug: ForeignBug
    fault: str
    fault_classes: tuple[str, ...]


def written_bugs(source: str = "written") -> list[ForeignBug]:
    """Return the bugs in the order of their names."""
    return [written.bug for written in read_written(source)]


def read_written(source: str = "written") -> list[WrittenBug]:
    """Return the bugs with what is wrong in them, in the order of their names.

    Args:
        source: ``written``, ``workplace`` or ``practice``, the name of the folder.
    """
    return [_read(file, source) for file in sorted((_FOLDER / source).glob("*.txt"))]


def _read(file: Path, source: str) -> WrittenBug:
    match = _FILE.fullmatch(file.read_text())
    if match is None:
        raise ValueError(f"{file} lacks a field or one of the headings {', '.join(_TEXTS)}")
    function, classes, fault, right, wrong, tests, hidden_tests = match.groups()
    bug = ForeignBug(
        source=source,
        name=file.stem,
        code=wrong,
        function=function,
        test_code=tests,
        hidden_test_code=hidden_tests,
        right_code=right,
    )
    return WrittenBug(bug=bug, fault=fault, fault_classes=tuple(classes.split("; ")))
