"""Bugs that were fixed in small packages of pure Python, with the tests of these packages."""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath
from random import Random

from benchmarks.se_darwin.foreign.bug import ForeignBug
from benchmarks.se_darwin.foreign.clones import Clones
from benchmarks.se_darwin.foreign.cutting import bound_names, is_cuttable, parsed
from benchmarks.se_darwin.foreign.hidden_tests import comparison_tests, names_in
from benchmarks.se_darwin.foreign.histories import Fix, read_fix
from benchmarks.se_darwin.foreign.manifest import Entry
from benchmarks.se_darwin.foreign.suite_tests import CutSuite, cut_suite
from benchmarks.se_darwin.foreign.variation import varied

FOLDERS = {
    "https://github.com/more-itertools/more-itertools": "*more_itertools/",
    "https://github.com/mahmoud/boltons": "*boltons/",
    "https://github.com/pytoolz/toolz": "*toolz/",
    "https://github.com/python-humanize/humanize": "*humanize/",
    "https://github.com/jaraco/inflect": "*inflect",
    "https://github.com/un33k/python-slugify": "*slugify/",
    "https://github.com/dgilland/pydash": "*pydash/",
    "https://github.com/pallets/werkzeug": "*werkzeug/",
    "https://github.com/python-validators/validators": "*validators/",
    "https://github.com/jsvine/markovify": "*markovify/",
    "https://github.com/pypa/packaging": "*packaging/",
    "https://github.com/daveoncode/python-string-utils": "*string_utils/",
    "https://github.com/tkem/cachetools": "*cachetools/",
    "https://github.com/grantjenks/python-sortedcontainers": "*sortedcontainers/",
    "https://github.com/astanin/python-tabulate": "*tabulate",
    "https://github.com/psf/requests": "*requests/",
    "https://github.com/jpvanhal/inflection": "*inflection",
    "https://github.com/ppannuto/python-titlecase": "*titlecase",
    "https://github.com/r1chardj0n3s/parse": "parse",
    "https://github.com/scrapy/w3lib": "*w3lib/",
    "https://github.com/cdown/srt": "srt",
    "https://github.com/python-semver/python-semver": "*semver",
    "https://github.com/ubernostrum/webcolors": "*webcolors",
    "https://github.com/keleshev/schema": "schema",
    "https://github.com/docopt/docopt": "docopt",
    "https://github.com/chaimleib/intervaltree": "*intervaltree/",
    "https://github.com/xolox/python-humanfriendly": "humanfriendly/",
    "https://github.com/jquast/wcwidth": "*wcwidth/",
    "https://github.com/python-babel/babel": "babel/",
    "https://github.com/pallets/click": "*click/",
    "https://github.com/tornadoweb/tornado": "tornado/",
    "https://github.com/simplejson/simplejson": "simplejson/",
    "https://github.com/gruns/furl": "furl/",
}
"""Start of the modules' paths, as git's pathspec has it, by repository."""

_VARIED = 40


def bug_of(entry: Entry, clones: Clones) -> ForeignBug:
    """Build the bug of *entry*: the program before the fix, and the package's tests after it."""
    fix = read_fix(clones, entry.repository, entry.commit, entry.path, entry.function)
    suite = read_suite(fix, clones.text(fix.repository, fix.commit, entry.tests_path))
    if suite is None:
        raise ValueError(f"{entry.name}: {entry.tests_path} has no tests of {entry.function}")
    return build(fix, entry.name, suite, entry.visible, compared=entry.compared)


def read_suite(fix: Fix, tests: str) -> CutSuite | None:
    """Cut the tests of the fixed function out of the test module *tests*."""
    parts = PurePosixPath(fix.path.removeprefix("src/")).with_suffix("").parts
    named = set(re.findall(r"\w+", tests))
    defined = {
        name for name in bound_names(parsed(fix.right)) & named if is_cuttable(fix.right, name)
    }
    return cut_suite(tests, parts[0], parts[-1], defined, fix.function)


def build(
    fix: Fix,
    name: str,
    suite: CutSuite,
    visible: list[int],
    *,
    separate: bool = False,
    compared: bool = True,
) -> ForeignBug:
    """Build a bug whose visible tests are the checks at the positions *visible* of *suite*.

    Args:
        fix: The fix.
        name: Name of the bug.
        suite: Tests of the fixed function.
        visible: Positions.
        separate: Whether each visible check is a test of its own.
        compared: Whether further calls are compared with those of the right program.

    Raises:
        NotCutError: The program needs a module outside the standard library.
    """
    wrong, right = fix.programs(set(suite.used))
    rest = [index for index in range(len(suite.checks)) if index not in visible]
    hidden = suite.module(rest) if rest else ""
    calls = suite.expressions(fix.function.rpartition(".")[2])
    further = varied(calls, _VARIED, Random(f"15/{name}")) if calls else []
    if further and compared:
        names = sorted(names_in(further) & bound_names(ast.parse(right)))
        comparison = comparison_tests(names, right, further, suite.imports(), sorted(suite.aliases))
        hidden = f"{comparison}\n\n{hidden}" if hidden else comparison
    return ForeignBug(
        source="packages",
        name=name,
        code=wrong,
        function=fix.function,
        test_code=suite.module(visible, separate=separate),
        hidden_test_code=hidden,
        right_code=right,
    )
