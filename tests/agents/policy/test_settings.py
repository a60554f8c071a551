from __future__ import annotations

import pytest
from pydantic import ValidationError

from agents.policy.settings import PolicySettings
from infrastructure.policy.sampling import LOWEST_TEMPERATURE


def test_a_temperature_that_the_rollout_refuses_is_refused() -> None:
    PolicySettings(temperature=LOWEST_TEMPERATURE)
    with pytest.raises(ValidationError, match="temperature"):
        PolicySettings(temperature=LOWEST_TEMPERATURE / 2)


def test_an_unknown_correction_or_task_is_named() -> None:
    with pytest.raises(ValidationError, match="unknown correction 'tis': choose one of none"):
        PolicySettings(correction="tis")
    with pytest.raises(ValidationError, match="'arithmetic', 'sorting' or 'brackets'"):
        PolicySettings(task="poetry")


@pytest.mark.parametrize("value", ["inf", "nan", "-1"])
def test_a_coefficient_is_finite_and_not_negative(value: str) -> None:
    with pytest.raises(ValidationError, match="kl_coefficient"):
        PolicySettings(kl_coefficient=value)
