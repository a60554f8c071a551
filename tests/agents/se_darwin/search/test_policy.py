from __future__ import annotations

import pytest

from agents.se_darwin.search.policy import Policy


def test_an_impossible_policy_is_refused() -> None:
    for wrong in ({"epsilon": -0.1}, {"epsilon": 1.1}, {"batch": 0}):
        with pytest.raises(ValueError, match="epsilon"):
            Policy(**wrong)  # type: ignore[arg-type]
