from __future__ import annotations

import pytest

from agents.se_darwin.features.result_texts import values_in


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0", ("0",)),
        ("-1", ("-1",)),
        ("2.5", ("2.5",)),
        ("if not seq: return None", ("None",)),
        ("or x1 == 12", ("12",)),
        ("''", ("''",)),
        ("[]", ("[]",)),
        ("'a b'", ("'a b'",)),
        ("nothing", ()),
        ("len(x2)", ()),
    ],
)
def test_values_are_literals_as_results_show_them(text: str, values: tuple[str, ...]) -> None:
    assert values_in(text) == values
