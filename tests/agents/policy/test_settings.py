from __future__ import annotations

import pytest
from pydantic import ValidationError

from agents.policy.settings import PolicySettings


def test_an_unknown_correction_or_task_is_named() -> None:
    with pytest.raises(ValidationError, match="unknown correction 'tis': choose one of none"):
        PolicySettings(correction="tis")
    with pytest.raises(ValidationError, match="'arithmetic', 'sorting' or 'brackets'"):
        PolicySettings(task="poetry")
