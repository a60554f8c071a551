from __future__ import annotations

import pytest

from agents.se_darwin.sandbox import ProgramSources, PytestSuite, Sandbox, TestSources
from tests.agents.se_darwin.suites import LIMITS

METHODS = """
from functools import cached_property
class Cart:
    kinds = {}
    def __init__(self, *prices):
        self.prices = list(prices)
    def add(self, price):
        self.prices.append(price)
        return self
    __lshift__ = add
    @property
    def total(self):
        return sum(self.prices)
    @total.setter
    def total(self, value):
        self.prices = [value]
    @staticmethod
    def net(price):
        return price / 2
    @classmethod
    def empty(cls):
        return cls()
    @cached_property
    def largest(self):
        return max(self.prices)
    def __eq__(self, other):
        return self.prices == other.prices
"""

USES = {
    "__init__": "assert Cart(1, 2).prices == [1, 2]",
    "add": "assert (cart := Cart(1)).add(2) is cart; assert (cart << 3).prices == [1, 2, 3]",
    "total": "cart = Cart(1); cart.total = 5; assert cart.total == 5",
    "net": "assert Cart.net(4) == Cart(1).net(4) == 2",
    "empty": "assert type(Cart.empty()) is Cart",
    "__eq__": "assert Cart(1) == Cart(1)",
}


@pytest.mark.parametrize("method", USES)
def test_methods_are_repaired_as_functions_are(sandbox: Sandbox, method: str) -> None:
    def run(source: str) -> list[str | None]:
        tests = f"from mod import Cart\ndef test_a():\n    {USES[method]}\n    Cart(1)"
        function = f"Cart.{method}"
        suite = PytestSuite.prepare(TestSources(tests), ProgramSources(METHODS, "mod"), function)
        suite = sandbox.collect(suite, function=function, limits=LIMITS)
        [execution] = sandbox.run([source], suite, function=function, limits=LIMITS)
        return [output and output.text for output in execution.outputs]

    assert set(run(METHODS)) == {"passed"}
    assert set(run(METHODS + f"\nCart.{method} = lambda *_: 1 / 0")) != {"passed"}


def test_a_method_of_another_kind_is_run_with_its_tests_in_one_process(sandbox: Sandbox) -> None:
    tests = TestSources("from mod import Cart\ndef test_a():\n    assert Cart(1).largest == 1")
    suite = PytestSuite.prepare(tests, ProgramSources(METHODS, "mod"), "Cart.largest")
    suite = sandbox.collect(suite, function="Cart.largest", limits=LIMITS)
    name = "Cart.largest"
    [apart] = sandbox.run([METHODS], suite, function=name, limits=LIMITS)
    [within] = sandbox.screen([METHODS], suite, function=name, limits=LIMITS)
    assert apart.outputs == (None,)
    assert None not in within.outputs
