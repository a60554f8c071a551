"""The bugs of `benchmarks.se_darwin.handwritten` with tests as text: the source to tune on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import cast

from benchmarks.se_darwin.foreign.bug import CallResult, ForeignBug, call_text, pytest_module
from benchmarks.se_darwin.handwritten import HANDWRITTEN, HandwrittenBug

_VISIBLE, _HIDDEN, _SEED = 8, 60, 15


def handwritten_bugs() -> list[ForeignBug]:
    """Return the bugs; visible and hidden tests share no call."""
    return [_bug(written) for written in HANDWRITTEN]


def _bug(written: HandwrittenBug) -> ForeignBug:
    rng = Random(f"{_SEED}/{written.function}")
    right, wrong = _load(written.right, written.function), _load(written.wrong, written.function)
    drawn = {call_text(written.function, args): args for args in _draws(written, rng)}
    results = {call: repr(right(*args)) for call, args in drawn.items()}
    failing = next(call for call in drawn if _result(wrong, drawn[call]) != results[call])
    calls = [failing, *(call for call in drawn if call != failing)]
    visible, hidden = sorted(calls[:_VISIBLE], key=len), calls[_VISIBLE:]
    return ForeignBug(
        source="handwritten",
        name=written.function,
        code=written.wrong.lstrip(),
        function=written.function,
        test_code=_tests(written.function, visible, results),
        hidden_test_code=_tests(written.function, hidden, results),
        right_code=written.right.lstrip(),
    )


def _draws(written: HandwrittenBug, rng: Random) -> list[tuple[object, ...]]:
    return [written.generate(rng) for _ in range(_VISIBLE + _HIDDEN)]


def _tests(function: str, calls: list[str], results: dict[str, str]) -> str:
    return pytest_module(
        function, [CallResult(call=call, expected=results[call]) for call in calls]
    )


def _load(source: str, function: str) -> Callable[..., object]:
    """Define *function*; it is written in this repository."""
    namespace: dict[str, object] = {}
    exec(source, namespace)  # noqa: S102
    return cast("Callable[..., object]", namespace[function])


def _result(function: Callable[..., object], arguments: tuple[object, ...]) -> str:
    try:
        return repr(function(*arguments))
    except Exception as error:  # the wrong function may raise anything
        return type(error).__name__
