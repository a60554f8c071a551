"""Evaluate changed statements and conditions in recorded states, without running the tests.

First the given program runs its tests once, and the variables are copied each time that it reaches
a statement. Then the old and the new version of a statement run on such copies; a version changes
something if it returns, raises or leaves behind something else.
"""

from __future__ import annotations

import hashlib
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType, FunctionType
from typing import Any, Literal, TypedDict

from .confinement import limit_cpu
from .given_modules import import_program
from .in_process_candidate import CANDIDATE_FILE, EndlessError
from .suite_runner import SuiteRequest, SuiteRunner
from .value_text import error_text, sharing, value_text
from .visits import Visit, Visits

MAX_ITEMS = 200
MAX_CHECKS = 64  # failing ones, and passing ones
_MOST_OF_PASSING = 6  # visits of a place in a passing check; a repair may change what these do
_PROBE_SECONDS, _AGAIN_SECONDS = 0.03, 0.01
_MOST_SECONDS = 0.5  # of one trace that cannot be interrupted; it ends the process
_NEXT, _BREAK, _CONTINUE = object(), object(), object()
_ENDS = {id(_NEXT): "next", id(_BREAK): "break", id(_CONTINUE): "continue"}
_IMMUTABLE = (*(int, float, complex, str, bytes, bool, type(None)), tuple, frozenset, range)

SnippetKind = Literal["test", "items", "statements"]


class Snippet(TypedDict):
    """A part of the program.

    *kind* is ``test`` (its value counts as true or false), ``items`` (what a loop runs over) or
    ``statements``. *stores* are the names that it sets.
    """

    kind: SnippetKind
    text: str
    stores: list[str]


class Trace(TypedDict):
    """What an edit changes at a place.

    *nested*: the place is in an inner function, which sees names that are not its variables.
    """

    place: int
    nested: bool
    old: Snippet
    new: Snippet


class TraceRequest(TypedDict):
    """Traces, whether the given program passes each check, and the seconds for all of it."""

    traces: list[Trace]
    passed: list[bool]
    owner: str
    seconds: float


_State = tuple[str, str, tuple[tuple[str, str], ...], tuple[str, ...]]


def evaluate(
    request: TraceRequest, visits: Visits, numbers: Sequence[Sequence[int]]
) -> Iterator[list[object]]:
    """Yield ``["checks", failing, passing]`` and a line for each trace, as time allows.

    Args:
        request: The traces.
        visits: Recorded visits.
        numbers: Numbers of the visits of each check.

    Yields:
        First the numbers of failing and of passing checks that reach any place. Then for each
        trace, in order, ``["effect", failing checks that reach its place, failing checks that it
        changes, passing ones, failing ones in which it raises, passing ones, digest of all results
        or nothing]``, or ``["unknown"]``.
    """
    ends = time.monotonic() + request["seconds"]
    by_place, incomplete, reached = _by_place(request["passed"], visits, numbers)
    yield ["checks", *reached]
    evaluator = _Evaluator(visits, request["owner"])
    for trace in request["traces"]:
        if time.monotonic() > ends:
            return
        limit_cpu(_MOST_SECONDS)
        place = trace["place"]
        yield evaluator.compare(trace, by_place[place], incomplete[place])


def record_suite(suite: SuiteRequest, source: str) -> tuple[Visits, list[list[int]]]:
    """Run *suite* with the instrumented *source*; return visits, and their numbers by check."""
    visits = Visits()
    with visits.kept():
        import_program(suite["module"], source, CANDIDATE_FILE, suite["own_modules"])
        lines: Any = list(SuiteRunner(suite, visits).run())
    numbers = {line[0]: line[-1] for line in lines if isinstance(line[0], int)}
    return visits, [numbers.get(number, []) for number in range(max(numbers, default=-1) + 1)]


def record_calls(
    source: str,
    function: str,
    module: str | None,
    calls: Sequence[tuple[tuple[object, ...], dict[str, object]]],
) -> tuple[Visits, list[list[int]]]:
    """Do the same for plain *calls* of *function*, which sees the names of *module*."""
    visits, numbers = Visits(), []
    namespace: dict[str, Any] = dict(vars(sys.modules[module])) if module else {"__name__": ""}
    with visits.kept(), visits.watched():
        exec(compile(source, CANDIDATE_FILE, "exec", dont_inherit=True), namespace)  # noqa: S102 - in the sandbox
        for arguments, keywords in calls:
            visits.grant_time()
            with suppress(BaseException):  # also one that ends Python
                namespace[function](*arguments, **keywords)
            numbers.append(sorted(visits.take_covered_lines()))
    return visits, numbers


@dataclass(frozen=True, slots=True)
class _Reached:
    """A visit, and the failing and passing checks that make it."""

    visit: Visit
    failing: set[int]
    passing: set[int]


def _by_place(
    passed: Sequence[bool], visits: Visits, numbers: Sequence[Sequence[int]]
) -> tuple[defaultdict[int, list[_Reached]], defaultdict[int, set[int]], tuple[int, int]]:
    """Return what is known of each place, and how many failing and passing checks reach any.

    Of a place: its visits, and the failing checks with visits that were not kept.
    """
    reached: dict[int, _Reached] = {}
    incomplete: defaultdict[int, set[int]] = defaultdict(set)
    counts = [0, 0]
    for check, (passes, visit_numbers) in enumerate(zip(passed, numbers, strict=False)):
        if not visit_numbers or counts[passes] >= MAX_CHECKS:
            continue
        counts[passes] += 1
        taken: Counter[int] = Counter()
        for number in visit_numbers:
            if number > 0:
                visit = visits.all[number - 1]
                taken[visit.place] += 1
                if passes and taken[visit.place] > _MOST_OF_PASSING:
                    continue
                entry = reached.setdefault(number, _Reached(visit, set(), set()))
                (entry.passing if passes else entry.failing).add(check)
            elif not passes:
                incomplete[-1 - number].add(check)
    by_place: defaultdict[int, list[_Reached]] = defaultdict(list)
    for entry in reached.values():
        by_place[entry.visit.place].append(entry)
    return by_place, incomplete, (counts[0], counts[1])


class _Evaluator:
    """Runs snippets on copies of the variables.

    Args:
        visits: Recorded visits.
        owner: Name of the class of the function; empty without one.
    """

    def __init__(self, visits: Visits, owner: str) -> None:
        self._owner = owner
        self._yielded: list[str] = []
        self._base = dict(visits.namespace)
        self._base |= {"__next__": _NEXT, "__break__": _BREAK, "__continue__": _CONTINUE}
        self._base["__truth__"] = bool
        self._base["__items__"] = lambda values: list(islice(values, MAX_ITEMS))
        self._base["__yield__"] = lambda *values: self._yielded.append(value_text(values))
        self._codes: dict[tuple[str, str], CodeType] = {}
        self._before: dict[tuple[object, ...], _State | None] = {}
        self._is_running = False
        signal.signal(signal.SIGVTALRM, self._interrupt)

    def compare(
        self, trace: Trace, reached: Sequence[_Reached], incomplete: Set[int]
    ) -> list[object]:
        """Compare both versions; see `evaluate`.

        Args:
            trace: The versions.
            reached: Visits of the place.
            incomplete: Failing checks with visits that were not kept.
        """
        signal.setitimer(signal.ITIMER_VIRTUAL, _PROBE_SECONDS, _AGAIN_SECONDS)
        try:
            return self._compare(trace, reached, incomplete)
        except (Exception, EndlessError):  # not Python, too slow, or a value without text
            return ["unknown"]
        finally:
            self._is_running = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def _compare(
        self, trace: Trace, reached: Sequence[_Reached], incomplete: Set[int]
    ) -> list[object]:
        old, new = trace["old"], trace["new"]
        both = frozenset([*old["stores"], *new["stores"]])
        names = both if new["kind"] == "statements" else None
        old_code, new_code = self._compiled(old), _compile(new, self._owner)
        used = _names_in(old_code) | _names_in(new_code)
        digest = hashlib.blake2b(digest_size=6)
        changed, raised = (set[int](), set[int]()), (set[int](), set[int]())
        unknown_checks, is_unknown = set(incomplete), bool(incomplete)
        for number, entry in enumerate(reached):
            before = after = None
            if not used & entry.visit.missing:
                key = trace["place"], number, old["text"], old["kind"], both
                if key not in self._before:
                    self._before[key] = self._state(old_code, entry.visit, names)
                before, after = self._before[key], self._state(new_code, entry.visit, names)
            unknown = before is None or after is None
            if trace["nested"] and after is not None and after[:2] == ("raise", "NameError"):
                unknown = True
            if unknown or before is None or after is None:
                unknown_checks |= entry.failing
                is_unknown = True
                digest.update(b"?")
            elif before == after:
                digest.update(b"-")
            else:
                digest.update(repr(after).encode())
                for index, checks in enumerate((entry.failing, entry.passing)):
                    changed[index].update(checks)
                    if after[0] == "raise" != before[0]:
                        raised[index].update(checks)
        if unknown_checks and not changed[0]:
            return ["unknown"]
        changed[0].update(unknown_checks)
        failing = unknown_checks.union(*(entry.failing for entry in reached))
        counts = [len(checks) for checks in (failing, *changed, *raised)]
        return ["effect", *counts, "" if is_unknown else digest.hexdigest()]

    def _compiled(self, snippet: Snippet) -> CodeType:
        key = snippet["text"], snippet["kind"]
        if key not in self._codes:
            self._codes[key] = _compile(snippet, self._owner)
        return self._codes[key]

    def _state(self, code: CodeType, visit: Visit, names: frozenset[str] | None) -> _State | None:
        """Return what `_run` does; None if a variable cannot be copied or has no text."""
        try:
            return self._run(code, visit, names)
        except Exception:  # an object of the program may raise anything
            return None
        finally:
            self._is_running = False

    def _run(self, code: CodeType, visit: Visit, names: frozenset[str] | None) -> _State:
        """Return how *code* ends on a copy, and texts of the variables unless *names* is None."""
        given = visit.variables()
        variables = self._base | given
        same = {id(given[name]): name for name in sorted(given, reverse=True)}
        self._yielded.clear()
        self._is_running = True
        try:
            value = FunctionType(code, variables)()
        except EndlessError:
            raise
        except BaseException as error:  # the exception is what it does
            end, result = "raise", error_text(error)
        else:
            end, result = _ENDS.get(id(value), ""), ""
            if not end:
                end, result = "return", _named(value, same, "") + value_text(value) + sharing(value)
        texts = []
        for name in sorted((names | visit.names) if names is not None else ()):
            value = variables.get(name, _NEXT)
            if value is not self._base.get(name, _NEXT):
                text = value_text(value) + sharing(value)
                texts.append((name, _named(value, same, name) + text))
        return end, result, tuple(texts), tuple(self._yielded)

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        del frame
        if self._is_running:
            self._is_running = False
            raise EndlessError


def _compile(snippet: Snippet, owner: str) -> CodeType:
    """Compile a function without parameters, whose variables are globals.

    Raises:
        SyntaxError: It does not compile.
    """
    lines = ["def __probe__():"]
    if snippet["stores"]:
        lines.append(f"    global {', '.join(snippet['stores'])}")
    if snippet["kind"] == "test":
        lines.append(f"    return __truth__({snippet['text']})")
    elif snippet["kind"] == "items":
        lines.append(f"    return __items__({snippet['text']})")
    else:
        lines.append("    for __once__ in (0,):")
        lines += [f"        {line}" for line in snippet["text"].split("\n")]
        lines += ["        return __next__", "    else:", "        return __continue__"]
        lines.append("    return __break__")
    if owner:  # so that names with two underscores are those of the class
        lines = [f"class {owner}:", *(f"    {line}" for line in lines)]
    made: dict[str, Any] = {}
    code = compile("\n".join(lines), CANDIDATE_FILE, "exec", dont_inherit=True)
    exec(code, made)  # noqa: S102 - defines a function, in the sandbox
    function: FunctionType = vars(made[owner])["__probe__"] if owner else made["__probe__"]
    return function.__code__


def _names_in(code: CodeType) -> set[str]:
    """Names that *code* and the functions in it use."""
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names |= _names_in(const)
    return names


def _named(value: object, same: dict[int, str], name: str) -> str:
    """Return the name of the first variable that is the same object; empty if that says nothing.

    *same* has the objects by ``id``; *value* is added as *name*, if it is new.
    """
    return "" if isinstance(value, _IMMUTABLE) else f"{same.setdefault(id(value), f'new {name}')}="
