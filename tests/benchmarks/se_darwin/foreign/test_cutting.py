import pytest

from benchmarks.se_darwin.foreign.cutting import NotCutError, cut, with_function_of

SOURCE = '''\
"""A module."""

import math
import numpy
from .near import thing

LIMIT = 3  # of area


def unused():
    return numpy.zeros(3) + thing


class Circle:
    # kept as it is
    def area(self, r):
        return min(LIMIT, square(r) * math.pi)


def square(x):
    return x * x
'''


def test_the_function_is_cut_out_with_what_it_needs() -> None:
    assert cut(SOURCE, {"Circle"}) == (
        "import math\nLIMIT = 3  # of area\n\n\nclass Circle:\n    # kept as it is\n"
        "    def area(self, r):\n        return min(LIMIT, square(r) * math.pi)\n\n\n"
        "def square(x):\n    return x * x\n"
    )


@pytest.mark.parametrize("name", ["numpy", "thing", "unused"])
def test_what_needs_a_package_is_not_cut(name: str) -> None:
    with pytest.raises(NotCutError, match="it imports"):
        cut(SOURCE, {name})


def test_a_function_takes_the_text_of_another_version() -> None:
    other = SOURCE.replace("square(r) * math.pi", "square(r)")

    assert with_function_of(SOURCE, other, "Circle.area") == other
