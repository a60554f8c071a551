"""Repairs that repeat values of the checks instead of computing them."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agents.se_darwin.certainty.behaviour import Behaviour, key
from agents.se_darwin.certainty.changes import is_plain, read
from agents.se_darwin.certainty.inputs import ProgramInput
from agents.se_darwin.fork_server.canonical import canonical
from agents.se_darwin.fork_server.wire import Call
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation, expected_text

LEAST_INPUTS = 5
"""Fewest inputs that the tests do not contain, for a program's results on them to tell anything."""
USUAL_SHARE = 0.9
"""Share of these inputs on which a table has its default, or fails."""
_SMALL = 2  # numbers up to this are in every program
_TABULATED = 2
_EQUALITIES = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_BRANCHES = (ast.If, ast.IfExp, ast.BoolOp, ast.ExceptHandler, ast.match_case)
_DISPLAYS = (ast.Tuple, ast.List, ast.Set)
_CERTAIN_INPUTS, _CERTAIN_RESULTS = 20, 3  # without a constant of the checks


@dataclass(frozen=True, kw_only=True, slots=True)
class _Values:
    """Values of one failing check, as canonical texts: arguments of its calls, and what it expects.

    Values that are in every program, such as 0 and the empty text, are left out.
    """

    given: frozenset[str]
    expected: frozenset[str]

    @property
    def has_values(self) -> bool:
        """Whether there are any."""
        return bool(self.given | self.expected)

    def are_in(self, keys: frozenset[str], constants: frozenset[str]) -> bool:
        """Whether a program with *constants*, some of them *keys*, may have a table with this."""
        is_known = not self.given or bool(self.given & keys)
        return self.has_values and is_known and self.expected <= constants


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What a repair could repeat: the values of the checks that the given program fails.

    Attributes:
        root: The program as given.
        checks: Values of each of these checks.
        calls: Number of their different calls, without those of empty values only.
        has_calls: Whether calls of the tests are known; else the values that they expect must do.
    """

    root: Evaluation
    checks: frozenset[_Values]
    calls: int
    has_calls: bool

    @classmethod
    def of(cls, task: RepairTask, root: Evaluation, calls: Sequence[tuple[int, Call]]) -> Memory:
        """Return it for *task*, of whose tests *calls* were recorded."""
        given: dict[int, set[str]] = {}
        for number, call in calls:
            given.setdefault(number, set()).update(_texts(_arguments(call)))
        checks = []
        for number, (test, output) in enumerate(
            zip(task.tests, root.execution.outputs, strict=True)
        ):
            if not root.passed[number]:
                expected = expected_text(test, output) if output is not None else ""
                checks.append(
                    _Values(
                        given=frozenset(given.get(number, ())),
                        expected=_constants(expected),
                    )
                )
        failing = {
            json.dumps(call)
            for number, call in calls
            if not root.passed[number] and any(_arguments(call))
        }
        return cls(root=root, checks=frozenset(checks), calls=len(failing), has_calls=bool(calls))

    def is_repeated(
        self,
        repair: Evaluation,
        behaviour: Behaviour,
        given: Behaviour,
        inputs: Sequence[ProgramInput],
    ) -> bool:
        """Whether *repair* probably repeats values of the checks.

        It has a table of two of these checks and half of them, and computes none of the others; or
        it looks for an argument of theirs, or has what they expect, and on inputs that the tests do
        not contain it only does what the given program does, or nearly always the same; or it
        always does the same there, and the given program does not. Also if its new branches change
        nothing there; or if what they return there are constants, and those of most checks are not
        among them, or each belongs to one check and they are rare.

        Args:
            repair: A program that passes all tests.
            behaviour: Its results on *inputs*.
            given: Those of the program as given.
            inputs: Inputs, also those of the tests.
        """
        former = _constants(self.root.source)
        new, keys = _constants(repair.source) - former, _keys(repair.source) - former
        has_signs = any(_is_signed(each.call) for each in inputs if not each.changes)
        pairs = [
            (key(ours), key(theirs))
            for ours, theirs, each in zip(behaviour, given, inputs, strict=True)
            if each.changes and (has_signs or not _is_signed(each.call))
        ]
        changed = [after for after, before in pairs if after != before]
        literals = {canonical(value) for value in _literals(repair.source)}
        is_computing = any(text not in literals for _, text, _ in changed)

        tabulated = sum(check.are_in(keys, new) for check in self.checks)
        has_key = not self.has_calls or any(check.given & keys for check in self.checks)
        if has_key and tabulated >= _TABULATED and 2 * tabulated >= len(self.checks):
            has_others = any(each.has_values and not each.are_in(keys, new) for each in self.checks)
            return not (has_others and is_computing)
        if len(pairs) < LEAST_INPUTS:
            return False
        expected = frozenset[str]().union(*(check.expected for check in self.checks))
        ours, theirs = (_share([pair[place] for pair in pairs]) for place in (0, 1))
        is_default = ours >= USUAL_SHARE > theirs
        if is_default and (has_key or len(expected & new) > 1):
            return True
        branches = _branches(repair.source) - _branches(self.root.source)
        if not changed and (has_key or (branches > 0 and self.calls >= _TABULATED)):
            return True
        from_tests = {
            key(output) for output, each in zip(behaviour, inputs, strict=True) if not each.changes
        }
        if changed and not is_computing and branches > 1:
            elsewhere = frozenset(text for (_, text, _), _ in pairs)
            if self._is_listed(new, elsewhere, is_rare=len(changed) <= len(pairs) / 2):
                return True
        is_certain = len(pairs) >= _CERTAIN_INPUTS and len(from_tests) >= _CERTAIN_RESULTS
        return is_certain and ours == 1.0 and theirs <= 1.0 / 2

    def _is_listed(
        self, constants: frozenset[str], elsewhere: frozenset[str], *, is_rare: bool
    ) -> bool:
        """Whether a program that only returns constants probably lists those of the checks.

        Args:
            constants: Its new constants.
            elsewhere: Its results on inputs that the tests do not contain.
            is_rare: Whether few of these changed.
        """
        expected = [check.expected for check in self.checks if check.expected]
        listed = [each for each in expected if each <= constants]
        absent = sum(not each <= elsewhere for each in listed)
        if absent >= _TABULATED and 2 * absent >= len(expected):
            return True
        is_each_once = len(set(expected)) == len(expected)
        return is_rare and is_each_once and len(listed) >= _CERTAIN_RESULTS


def _share(results: Sequence[object]) -> float:
    """Share of the most frequent one of *results*."""
    [(_, count)] = Counter(results).most_common(1)
    return count / len(results)


def _branches(source: str) -> int:
    """Number of places where *source* decides between values or statements."""
    return sum(isinstance(node, _BRANCHES) for node in ast.walk(ast.parse(source)))


def _is_signed(call: Call) -> bool:
    """Whether *call* contains a negative number."""
    return any(isinstance(each, int | float) and each < 0 for each in _arguments(call))


def _arguments(call: Call) -> Iterator[object]:
    """Values without parts that *call* contains."""
    values = call["values"]
    for references in (values["roots"], *(node[3] for node in values["nodes"])):
        yield from (read(each) for each in references if is_plain(each))


def _constants(source: str) -> frozenset[str]:
    """Canonical texts of the constants in *source*, without those of every program."""
    return _texts(_literals(source))


def _literals(source: str) -> list[object]:
    """Constants in *source*, without ``...``; none if it is the canonical text of an object."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [value for value in values if value is not ...]


def _keys(source: str) -> frozenset[str]:
    """Those of the constants with which *source* tells whether a value is one of them."""
    places: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(op, _EQUALITIES) for op in node.ops):
            places += [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            places += [key for key in node.keys if key is not None]
        elif isinstance(node, ast.MatchValue):
            places.append(node.value)
    places += [item for place in places if isinstance(place, _DISPLAYS) for item in place.elts]
    places = [place.operand if isinstance(place, ast.UnaryOp) else place for place in places]
    return _texts(place.value for place in places if isinstance(place, ast.Constant))


def _texts(values: Iterable[object]) -> frozenset[str]:
    """Canonical texts of *values* that are not in every program; numbers without their sign."""
    texts = set()
    for value in values:
        if isinstance(value, bool):
            continue
        if isinstance(value, str | bytes):
            texts |= {canonical(value)} if len(value) > 1 else set()
        elif isinstance(value, int | float | complex) and abs(value) > _SMALL:
            texts.add(canonical(-value if not isinstance(value, complex) and value < 0 else value))
    return frozenset(texts)
