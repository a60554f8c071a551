"""Wrong submissions of students to five questions of an introductory course.

They come with the data of Refactory (Hu et al., "Re-factoring based program repair applied to
programming assignments", ASE 2019): five questions with the teachers' tests and reference programs.
"""

from __future__ import annotations

import ast
import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

from agents.se_darwin.corpus.draws import Arguments, ascending, integers
from benchmarks.se_darwin.foreign.bug import CallResult, ForeignBug, call_text, pytest_module
from benchmarks.se_darwin.foreign.clones import Clones
from benchmarks.se_darwin.foreign.hidden_tests import comparison_tests
from benchmarks.se_darwin.foreign.manifest import Entry

REPOSITORY = "https://github.com/githubhuyang/refactory"
COMMIT = "f05583a56c2e3c50aa8cc0327645283f27df3a68"
ARCHIVE = "data.zip"
_GENERATED = 60
_MONTHS = ("January", "May", "June", "July", "August")


def _search(rng: Random) -> Arguments:
    return rng.randint(-2, 14), rng.choice((list, tuple))(ascending(rng))


def _birthdays(rng: Random, key: str) -> Arguments:
    days = [(rng.choice(_MONTHS), str(rng.randint(1, 6))) for _ in range(rng.randint(0, 8))]
    return key, tuple(dict.fromkeys(days))


def _people(rng: Random) -> Arguments:
    ages = rng.sample(range(1, 90), rng.randint(0, 8))
    return ([(rng.choice("MF"), age) for age in ages],)


def _numbers_and_count(rng: Random) -> Arguments:
    numbers = integers(rng, -9, 20, 0, 9)
    return numbers, rng.randint(0, len(numbers))


_GENERATORS: dict[str, Callable[[Random], Arguments]] = {
    "search": _search,
    "unique_day": lambda rng: _birthdays(rng, str(rng.randint(1, 6))),
    "unique_month": lambda rng: _birthdays(rng, rng.choice(_MONTHS)),
    "contains_unique_day": lambda rng: _birthdays(rng, rng.choice(_MONTHS)),
    "remove_extras": lambda rng: (integers(rng, 0, 5, 0, 9),),
    "sort_age": _people,
    "top_k": _numbers_and_count,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Attributes:
    folder: Its folder in the archive.
    preamble: Code that every submission may use.
    reference: The teachers' program.
    tests: Calls with their results, without repeats.
    wrong: Names of the wrong submissions.
    """

    folder: str
    preamble: str
    reference: str
    tests: tuple[CallResult, ...]
    wrong: tuple[str, ...]

    def tests_of(self, function: str) -> list[CallResult]:
        """Tests that call *function*."""
        return [test for test in self.tests if test.call.startswith(f"{function}(")]


def bug_of(entry: Entry, clones: Clones) -> ForeignBug:
    """Build the bug of *entry*: the submission, some of the teachers' tests, the others hidden."""
    archive = _archive(clones.blob(REPOSITORY, entry.commit, ARCHIVE))
    folder, _, _ = entry.path.partition("/code/")
    question = read_question(archive, folder)
    return build(entry.name, question, _text(archive, entry.path), entry.function, entry.visible)


def build(
    name: str, question: Question, submission: str, function: str, visible: list[int]
) -> ForeignBug:
    """Build a bug whose visible tests are those at the positions *visible* of the teachers'."""
    tests = question.tests_of(function)
    right = question.preamble + question.reference
    imports = [each for each in _globals(question.preamble) if any(each in t.call for t in tests)]
    names = ", ".join([function, *imports])
    shown = pytest_module(function, [tests[index] for index in visible])
    shown = shown.replace(f"import {function}\n", f"import {names}\n", 1)
    rng = Random(f"15/{function}")
    drawn = [call_text(function, _GENERATORS[function](rng)) for _ in range(_GENERATED)]
    rest = [test.call for index, test in enumerate(tests) if index not in visible]
    calls = list(dict.fromkeys([*rest, *drawn]))
    hidden = comparison_tests([function, *imports], right, calls)
    return ForeignBug(
        source="students",
        name=name,
        code=question.preamble + submission,
        function=function,
        test_code=shown,
        hidden_test_code=hidden,
        right_code=right,
    )


def questions(clones: Clones) -> Iterator[tuple[Question, dict[str, str]]]:
    """Yield each question with its wrong submissions by path."""
    archive = _archive(clones.blob(REPOSITORY, COMMIT, ARCHIVE))
    for number in range(1, 6):
        question = read_question(archive, f"data/question_{number}")
        yield question, {path: _text(archive, path) for path in question.wrong}


def read_question(archive: zipfile.ZipFile, folder: str) -> Question:
    """Read the question in *folder* of the archive."""
    names = sorted(archive.namelist())
    inputs = [each for each in names if each.startswith(f"{folder}/ans/input_")]
    tests = {
        _text(archive, each).strip(): _text(archive, each.replace("input_", "output_")).strip()
        for each in inputs
    }
    [reference] = [each for each in names if each.startswith(f"{folder}/code/reference/ref")]
    preamble = f"{folder}/code/global.py"
    return Question(
        folder=folder,
        preamble=_text(archive, preamble).strip() + "\n\n" if preamble in names else "",
        reference=_text(archive, reference),
        tests=tuple(CallResult(call=call, expected=result) for call, result in tests.items()),
        wrong=tuple(
            each
            for each in names
            if each.startswith(f"{folder}/code/wrong/") and each[-3:] == ".py"
        ),
    )


@cache
def _archive(data: bytes) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(data))


def _text(archive: zipfile.ZipFile, name: str) -> str:
    text = archive.read(name).decode("utf-8", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").rstrip() + "\n"


def _globals(preamble: str) -> list[str]:
    return [
        target.id
        for node in ast.parse(preamble).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
