import os
from pathlib import Path

import pytest

PRICES = '''"""Prices."""


def total(amounts, threshold=100):
    amount = sum(amounts)   # before the discount
    if amount > threshold:  # at the threshold too
        amount -= 10
    return amount
'''
TESTS = """
from prices import total

def test_small():
    assert total([]) == 0
    assert total([30, 69]) == 99
    assert total([99.5]) == 99.5

def test_discount():
    assert total([100]) == 90
    assert total([60, 60]) == 110
"""


@pytest.fixture
def prices() -> str:
    """A program whose function `total` has one fault."""
    return PRICES


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with that program and its tests, and an environment without settings."""
    for name in list(os.environ):
        if name.startswith(("GENESIS_", "FP16_", "ENABLE_FP16")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.py").write_text(PRICES)
    (tmp_path / "test_prices.py").write_text(TESTS)
    return tmp_path
