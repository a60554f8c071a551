"""Repairs that repeat values of the checks instead of computing them."""

from __future__ import annotations

import ast
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
_DISPLAYS = (ast.Tuple, ast.List, ast.Set)
_CERTAIN_INPUTS, _CERTAIN_RESULTS = 20, 3  # without a constant of the checks


@dataclass(frozen=True, kw_only=True, slots=True)
class _Values:
    """Values of one failing check, as canonical texts: arguments of its calls, and what it expects.

    Values that are in every program, such as 0 and the empty text, are left out.
    """

    given: frozenset[str]
    expected: frozenset[str]

    def are_in(self, keys: frozenset[str], constants: frozenset[str]) -> bool:
        """Whether a program with *constants*, some of them *keys*, may have a table with this."""
        is_known = not self.given or bool(self.given & keys)
        return bool(self.given | self.expected) and is_known and self.expected <= constants


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What a repair could repeat: the values of the checks that the given program fails.

    Attributes:
        root: The program as given.
        checks: Values of each of these checks.
    """

    root: Evaluation
    checks: frozenset[_Values]

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
        return cls(root=root, checks=frozenset(checks))

    def is_repeated(
        self,
        repair: Evaluation,
        behaviour: Behaviour,
        given: Behaviour,
        inputs: Sequence[ProgramInput],
    ) -> bool:
        """Whether *repair* probably repeats values of the checks.

        It has a table of two of these checks and half of them; or it looks for an argument of
        theirs, or has what they expect, and on inputs that the tests do not contain it only does
        what the given program does, or nearly always the same; or it always does the same there,
        and the given program does not.

        Args:
            repair: A program that passes all tests.
            behaviour: Its results on *inputs*.
            given: Those of the program as given.
            inputs: Inputs, also those of the tests.
        """
        former = _constants(self.root.source)
        new, keys = _constants(repair.source) - former, _keys(repair.source) - former
        tabulated = sum(check.are_in(keys, new) for check in self.checks)
        has_key = any(check.given & keys for check in self.checks)
        if has_key and tabulated >= _TABULATED and 2 * tabulated >= len(self.checks):
            return True
        results = [
            (key(ours), key(theirs))
            for ours, theirs, each in zip(behaviour, given, inputs, strict=True)
            if each.changes
        ]
        if len(results) < LEAST_INPUTS:
            return False
        ours, theirs = (_share([pair[place] for pair in results]) for place in (0, 1))
        is_default = ours >= USUAL_SHARE > theirs
        has_results = len(frozenset[str]().union(*(it.expected for it in self.checks)) & new) > 1
        if has_key and all(after == before for after, before in results):
            return True
        if is_default and (has_key or has_results):
            return True
        from_tests = {
            key(output) for output, each in zip(behaviour, inputs, strict=True) if not each.changes
        }
        is_certain = len(results) >= _CERTAIN_INPUTS and len(from_tests) >= _CERTAIN_RESULTS
        return is_certain and ours == 1.0 and theirs <= 1.0 / 2


def _share(results: Sequence[object]) -> float:
    """Share of the most frequent one of *results*."""
    [(_, count)] = Counter(results).most_common(1)
    return count / len(results)


def _arguments(call: Call) -> Iterator[object]:
    """Values without parts that *call* contains."""
    values = call["values"]
    for references in (values["roots"], *(node[3] for node in values["nodes"])):
        yield from (read(each) for each in references if is_plain(each))


def _constants(source: str) -> frozenset[str]:
    """Canonical texts of the constants in *source*, without those of every program."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # the canonical text of an object
        return frozenset()
    return _texts(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))


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
