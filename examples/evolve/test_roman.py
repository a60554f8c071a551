"""What `roman` should do."""

import pytest
from roman import roman


@pytest.mark.parametrize(
    ("number", "wanted"),
    [(1, "I"), (4, "IV"), (9, "IX"), (14, "XIV"), (1990, "MCMXC"), (2024, "MMXXIV")],
)
def test_known(number, wanted):
    assert roman(number) == wanted


@pytest.mark.parametrize("number", [0, -1, 4000])
def test_out_of_range(number):
    with pytest.raises(ValueError, match=str(number)):
        roman(number)
