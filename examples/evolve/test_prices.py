"""What `total` should do."""

import pytest
from prices import Line, total


def test_small():
    assert total([]) == 0
    assert total([Line(10.0, 3)]) == 30.0


def test_discount():
    assert total([Line(60.0, 2)]) == 108.0
    assert total([Line(50.0, 2)]) == 90.0
    assert total([Line(50.0, 2)], rate=0.5) == 50.0


@pytest.mark.parametrize(("price", "wanted"), [(99.99, 99.99), (200, 180.0)])
def test_one_line(price, wanted):
    assert total([Line(price, 1)]) == pytest.approx(wanted)
