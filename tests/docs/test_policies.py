"""The section on losses and corrections says what the code does."""

import dataclasses
import re
from pathlib import Path

import pytest

from infrastructure.policy import losses
from infrastructure.policy.corrections import CORRECTIONS

PAGE = Path(__file__).parents[2] / "docs" / "how-to/policies.md"


@pytest.fixture(scope="module")
def section() -> str:
    match = re.search(
        r"^## Losses and corrections$.*?(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert match is not None
    return match[0]


def first_cells(section: str, header: str) -> dict[str, str]:
    """Rows of the table under *header* by each name in their first cell."""
    table = section.split(f"| {header} |", 1)[1].split("\n\n", 1)[0]
    rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
    return {name: row for row in rows for name in re.findall(r"`(\S+?)`", row.split(" | ")[0])}


def test_the_example_runs(section):
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names = {}
    exec(block, names)
    assert names["log_probs_BS"].grad.isfinite().all()
    assert names["log_probs_BS"].grad.abs().sum() > 0


def test_every_correction_has_a_row_with_its_thresholds(section):
    rows = first_cells(section, "`CORRECTIONS[…]`")
    assert list(rows) == list(CORRECTIONS)
    for name, correction in CORRECTIONS.items():
        words = set(re.findall(r"\d[\d.]*(?:e-\d)?", rows[name].split(" | ")[1]))
        for rule in correction.rules:
            values = [getattr(rule, field.name) for field in dataclasses.fields(rule)]
            shown = [v for v in values if isinstance(v, float) and v != 0]
            missing = [v for v in shown if not {f"{v:g}", f"{v:.0e}".replace("e-0", "e-")} & words]
            assert missing == [], name


def test_every_loss_has_a_row(section):
    rows = first_cells(section, "loss")
    assert set(rows) == {name for name in losses.__all__ if name.endswith("_loss")}
