from __future__ import annotations

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.effects import Effect, weigh
from agents.se_darwin.effects.effect import SAME_AGAIN


def test_what_leaves_every_failing_check_alone_is_unlikely() -> None:
    useless = Effect(failing=0.0, passing=0.0)
    harmful = Effect(failing=1.0, passing=1.0)
    partial = Effect(failing=0.5, passing=0.0)
    likely = Effect(failing=1.0, passing=0.0)
    factors = [each.factor for each in (useless, harmful, partial, likely)]
    assert factors == sorted(factors)
    assert useless.factor < 0.1
    assert likely.factor > 10.0


def test_new_exceptions_count_against_an_edit() -> None:
    plain = Effect(failing=1.0, passing=0.5)
    in_failing = Effect(failing=1.0, passing=0.5, raising_failing=1.0)
    in_passing = Effect(failing=1.0, passing=0.5, raising_failing=1.0, raising_passing=0.5)
    assert plain.factor > in_failing.factor > in_passing.factor > 0.0


def test_of_edits_that_do_the_same_the_best_comes_first() -> None:
    first, second, third, other = EditSpace("def f(a):\n    return a + 1\n", "f").edits[:4]
    same = Effect(failing=1.0, passing=0.0, same_as=(3, "a + 1", "digest"))
    effects = {first: same, second: same, third: Effect(failing=1.0, passing=0.0)}
    weights = weigh([0.01, 0.04, 0.01, 0.01], [first, second, third, other], effects)
    assert weights[1] == pytest.approx(2 * weights[2])  # the square root of four
    assert weights[0] == pytest.approx(SAME_AGAIN * weights[2])
    assert weights[3] == pytest.approx(weights[2] / same.factor)  # its effect is not known
