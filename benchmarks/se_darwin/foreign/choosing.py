"""``python -m benchmarks.se_darwin.foreign.choosing``: choose the bugs of a source.

Chosen by rule and seed; no search runs. The manifest that this wrote is committed, and `build`
needs only that.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from itertools import repeat, zip_longest
from pathlib import Path
from random import Random

from agents.se_darwin.sandbox import Sandbox
from benchmarks.se_darwin.foreign import algorithms, packages, students
from benchmarks.se_darwin.foreign.bug import ForeignBug
from benchmarks.se_darwin.foreign.clones import Clones
from benchmarks.se_darwin.foreign.histories import Fix, fixes
from benchmarks.se_darwin.foreign.manifest import Digests, Entry, Manifest
from benchmarks.se_darwin.foreign.plain_pytest import all_pass_in_pytest, passed_in_pytest
from benchmarks.se_darwin.foreign.trial import passed_checks, passes, problem_of

_SEED = 15
_BUGS, _OF_QUESTION, _OF_PACKAGE = 60, 12, 13
_PROCESSES = 6
_BOTH = (True, False)
_USABLE = 65  # changes of algorithms, at which the choice ends
_FEWEST, _MOST = 3, 12
_TEST_MODULES = 3


def choose_students(clones: Clones) -> Manifest:
    """Choose twelve submissions of each question.

    Dropped: what does not parse or lacks the function, what passes all of the teachers' tests, and
    what equals another submission in normal form. The function to repair is the first, in the order
    of the reference, that fails a test of its own. Half of the teachers' tests, at least three, are
    visible; one that fails is among them.
    """
    entries: list[Entry] = []
    with Sandbox(modules=["collections", "heapq"]) as sandbox:
        for question, submissions in students.questions(clones):
            rng, seen, chosen = Random(f"{_SEED}/{question.folder}"), set[str](), 0
            paths = sorted(submissions)
            rng.shuffle(paths)
            for path in paths:
                if chosen == _OF_QUESTION:
                    break
                normal = _normal_form(submissions[path])
                if not normal or normal in seen:
                    continue
                seen.add(normal)
                entry = _submission(question, path, submissions[path], rng, sandbox)
                if entry is not None:
                    entries.append(entry)
                    chosen += 1
                    print(entry.name, entry.function, entry.visible, file=sys.stderr, flush=True)
    made = " ".join((choose_students.__doc__ or "").split())
    return Manifest(source="students", made=made, bugs=entries)


def _submission(
    question: students.Question, path: str, text: str, rng: Random, sandbox: Sandbox
) -> Entry | None:
    name = Path(path).stem
    for function in _functions(question.reference):
        tests = question.tests_of(function)
        if function not in _functions(text) or not tests:
            continue
        every = list(range(len(tests)))
        whole = students.build(name, question, text, function, every)
        if not passes(whole.right_code, function, whole.test_code, sandbox=sandbox):
            raise ValueError(f"{question.folder}: the reference fails the teachers' tests")
        try:
            passed = passed_checks(whole.code, function, whole.test_code, sandbox=sandbox)
        except ValueError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return None
        failing = [index for index in every if not passed[index]]
        if failing:
            first = rng.choice(failing)
            rest = rng.sample([index for index in every if index != first], len(every) - 1)
            visible = sorted([first, *rest[: max(3, len(every) // 2) - 1]])
            bug = students.build(name, question, text, function, visible)
            if not _is_valid(bug, path, sandbox):
                return None
            return Entry(
                name=name,
                repository=students.REPOSITORY,
                commit=students.COMMIT,
                path=path,
                function=function,
                visible=visible,
                sha256=Digests.of(bug),
            )
    return None


def choose_algorithms(clones: Clones) -> Manifest:
    """Choose sixty changes of functions whose docstrings have at least three checks.

    Changes of at most eight lines, by commits in random order; at most one of a function. Before
    the change at least one check of a value fails, after it all pass; if there are too few of these
    among the first 65, changes after which only further arguments are refused complete the number.
    The wrong program is the module after the fix with the function before it, cut to what it needs.
    Half of the checks, at least three and at most twelve, are visible; one that fails is among
    them. The other checks and further calls, compared with the right program, are hidden. Which
    checks pass is found by pytest, not by the sandbox. Dropped: programs that need a package,
    changes that no check notices, and examples that the right program fails.
    """
    found = fixes(
        clones,
        algorithms.REPOSITORY,
        "",
        says_fix=False,
        contains=">>>",
        rng=Random(_SEED),
    )
    faults: dict[str, Entry] = {}
    refusals: dict[str, Entry] = {}
    for fix in found:
        if len(faults) == _BUGS or len(faults) + len(refusals) == _USABLE:
            break
        name = f"{fix.path.removesuffix('.py').replace('/', '.')}.{fix.function}"
        if name in faults or name in refusals:
            continue
        entry, is_fault = _fixed_algorithm(fix, name)
        if entry is not None:
            (faults if is_fault else refusals)[name] = entry
            _tell(f"{len(faults)}+{len(refusals)} {name} {fix.commit[:8]} {fix.changed_lines}")
    entries = [*faults.values(), *refusals.values()][:_BUGS]
    made = " ".join((choose_algorithms.__doc__ or "").split())
    return Manifest(source="algorithms", made=made, bugs=entries)


def _fixed_algorithm(fix: Fix, name: str) -> tuple[Entry | None, bool]:
    """The entry, if the change is usable, and whether a check of a value fails before it."""
    examples = algorithms.examples_of(fix)
    checks = [index for index, example in enumerate(examples) if example.is_check]
    if len(checks) < _FEWEST:
        return None, False
    try:
        whole = algorithms.build(fix, name, examples, checks, separate=True)
    except (ValueError, SyntaxError) as error:
        _tell(f"{name} {fix.commit[:8]}: {error}")
        return None, False
    wrong = passed_in_pytest(whole.code, whole.test_code)
    if len(wrong) == len(checks):
        return None, False
    right = passed_in_pytest(whole.right_code, whole.test_code)
    checks = [index for index in checks if index in right]
    failing = [index for index in checks if index not in wrong]
    if not failing or len(checks) < _FEWEST:
        return None, False
    visible = _visible(checks, failing, Random(f"{_SEED}/{name}"))
    compared = [algorithms.build(fix, name, examples, visible, compared=each) for each in _BOTH]
    bug, problem = _usable(compared)
    if problem:
        _tell(f"{name} {fix.commit[:8]}: {problem}")
        return None, False
    return _fix_entry(bug, fix, visible, compared=bug == compared[0]), any(
        examples[index].expected for index in failing
    )


def _usable(bugs: Sequence[ForeignBug]) -> tuple[ForeignBug, str]:
    """The first bug without a problem, else the last, and its problem."""
    problem = ""
    for bug in bugs:
        problem = _problem_in_pytest(bug)
        if not problem:
            break
    return bug, problem


def _fix_entry(
    bug: ForeignBug, fix: Fix, visible: list[int], tests_path: str = "", *, compared: bool
) -> Entry:
    return Entry(
        name=bug.name,
        repository=fix.repository,
        commit=fix.commit,
        path=fix.path,
        function=fix.function,
        tests_path=tests_path,
        changed_lines=fix.changed_lines,
        visible=visible,
        compared=compared,
        sha256=Digests.of(bug),
    )


def _visible(checks: list[int], failing: list[int], rng: Random) -> list[int]:
    """Half of *checks*, at least three and at most twelve; one of *failing* is among them."""
    first = rng.choice(failing)
    count = min(_MOST, max(_FEWEST, (len(checks) + 1) // 2))
    rest = [check for check in checks if check != first]
    return sorted([first, *rng.sample(rest, count - 1)])


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _is_valid(bug: ForeignBug, what: str, sandbox: Sandbox | None) -> bool:
    problem = problem_of(bug, sandbox=sandbox)
    if problem:
        _tell(f"{what}: {problem}")
    return not problem


def _normal_form(text: str) -> str:
    try:
        return ast.unparse(ast.parse(text))
    except (SyntaxError, ValueError):
        return ""


def _functions(text: str) -> list[str]:
    return [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]


def choose_packages(clones: Clones) -> Manifest:
    """Choose sixty fixes of functions for which the package has at least three checks.

    Fixes of at most eight lines, by commits whose message tells of a fix, in random order; at most
    one of a function and thirteen of a package, which take turns. The wrong program is the module
    after the fix with the function before it, cut to what it needs. The tests are those of the
    package at the fix that use the function. Half of their checks, at least three and at most
    twelve, are visible; one that fails is among them. The other checks and further calls, compared
    with the right program, are hidden. Which checks pass is found by pytest, not by the sandbox.
    Dropped: programs that need a package, fixes that no check notices, and checks that the right
    program fails.
    """
    with ProcessPoolExecutor(_PROCESSES) as pool:
        found = list(pool.map(_fixes_in_package, packages.FOLDERS, repeat(clones.folder)))
    turns = [entry for turn in zip_longest(*found) for entry in turn if entry is not None]
    made = " ".join((choose_packages.__doc__ or "").split())
    return Manifest(source="packages", made=made, bugs=turns[:_BUGS])


def _fixes_in_package(repository: str, folder: Path) -> list[Entry]:
    """Up to `_OF_PACKAGE` fixes."""
    package = repository.rpartition("/")[2]
    entries: dict[str, Entry] = {}
    with closing(Clones(folder)) as clones:
        for fix in fixes(
            clones,
            repository,
            packages.FOLDERS[repository],
            says_fix=True,
            rng=Random(f"{_SEED}/{repository}"),
        ):
            name = f"{package}.{Path(fix.path).stem}.{fix.function}"
            entry = None if name in entries else _fixed_in_package(clones, fix, name)
            if entry is not None:
                entries[name] = entry
                _tell(f"{len(entries)} {name} {fix.commit[:8]} lines {fix.changed_lines}")
            if len(entries) == _OF_PACKAGE:
                break
    _tell(f"{package}: {len(entries)} fixes chosen")
    return list(entries.values())


def _fixed_in_package(clones: Clones, fix: Fix, name: str) -> Entry | None:
    try:
        fix.programs(set())
    except (ValueError, SyntaxError):
        return None
    for tests_path in _test_paths(clones, fix):
        try:
            entry = _fix_with_tests(clones, fix, name, tests_path)
        except (ValueError, SyntaxError) as error:
            _tell(f"{name} {fix.commit[:8]} {tests_path}: {error}")
            continue
        if entry is not None:
            return entry
    return None


def _test_paths(clones: Clones, fix: Fix) -> list[str]:
    """Test modules at the fix; those named as the module first."""
    listed = clones.git(fix.repository, "ls-tree", "-r", "--name-only", fix.commit).decode()
    paths = [path for path in listed.split("\n") if path.endswith(".py") and "test" in path]
    stem = Path(fix.path).stem
    if stem == "__init__":
        stem = Path(fix.path).parent.name
    return sorted(paths, key=lambda path: (stem not in Path(path).stem, path))[:_TEST_MODULES]


def _problem_in_pytest(bug: ForeignBug) -> str:
    """What keeps *bug* from being one, found without the sandbox; empty if nothing does."""
    if not bug.hidden_test_code:
        return "no hidden tests"
    if not all_pass_in_pytest(bug.right_code, bug.test_code, bug.hidden_test_code):
        return "the right program fails"
    return "the wrong program passes" if all_pass_in_pytest(bug.code, bug.test_code) else ""


def _fix_with_tests(clones: Clones, fix: Fix, name: str, tests_path: str) -> Entry | None:
    text = clones.text(fix.repository, fix.commit, tests_path)
    if fix.function.rpartition(".")[2].strip("_") not in text:
        return None
    suite = packages.read_suite(fix, text)
    if suite is None or len(suite.checks) < _FEWEST:
        return None
    whole = packages.build(fix, name, suite, list(range(len(suite.checks))), separate=True)
    wrong = passed_in_pytest(whole.code, whole.test_code)
    if len(wrong) == len(suite.checks):
        return None
    right = passed_in_pytest(whole.right_code, whole.test_code)
    checks = [index for index in range(len(suite.checks)) if index in right]
    failing = [index for index in checks if index not in wrong]
    if not failing or len(checks) < _FEWEST:
        return None
    visible = _visible(checks, failing, Random(f"{_SEED}/{name}"))
    compared = [packages.build(fix, name, suite, visible, compared=each) for each in _BOTH]
    bug, problem = _usable(compared)
    if problem:
        _tell(f"{name} {fix.commit[:8]}: {problem}")
        return None
    return _fix_entry(bug, fix, visible, tests_path, compared=bug == compared[0])


_CHOICES = {
    "students": choose_students,
    "algorithms": choose_algorithms,
    "packages": choose_packages,
}


def main() -> None:
    """Choose and write the manifest of a source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=sorted(_CHOICES), required=True)
    parser.add_argument("--clones", type=Path, required=True)
    options = parser.parse_args()
    with closing(Clones(options.clones)) as clones:
        manifest = _CHOICES[options.source](clones)
    manifest.write()
    print(f"{len(manifest.bugs)} bugs")


if __name__ == "__main__":
    main()
