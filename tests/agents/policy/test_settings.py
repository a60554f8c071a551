from __future__ import annotations

import pytest
from pydantic import ValidationError

from agents.policy.settings import MOST_COMPLETIONS, PolicySettings
from infrastructure.policy.sampling import LOWEST_TEMPERATURE


def test_a_temperature_that_the_rollout_refuses_is_refused() -> None:
    PolicySettings(temperature=LOWEST_TEMPERATURE)
    with pytest.raises(ValidationError, match="temperature"):
        PolicySettings(temperature=LOWEST_TEMPERATURE / 2)


def test_an_unknown_correction_or_task_is_named() -> None:
    with pytest.raises(ValidationError, match=r"'tis'.* none"):
        PolicySettings(correction="tis")
    with pytest.raises(ValidationError, match="'arithmetic', 'sorting' or 'brackets'"):
        PolicySettings(task="poetry")


@pytest.mark.parametrize("value", ["inf", "nan", "-1", "1e39"])
def test_a_coefficient_is_not_negative_and_stays_finite_in_float32(value: str) -> None:
    with pytest.raises(ValidationError, match="kl_coefficient"):
        PolicySettings(kl_coefficient=value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompts_per_round": 4096, "completions_per_prompt": 1024}, "4194304"),
        ({"prompts_per_round": 1, "steps_per_round": 9}, "STEPS_PER_ROUND=9 .* 1 x 8"),
        ({"rounds_per_epoch": 10**9}, "rounds_per_epoch"),
        ({"sync_every_rounds": 10**9}, "sync_every_rounds"),
    ],
)
def test_a_round_has_limits(values: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PolicySettings(**values)


def test_a_round_may_be_as_large_or_small_as_its_limits() -> None:
    PolicySettings(prompts_per_round=MOST_COMPLETIONS // 8)
    PolicySettings(prompts_per_round=1, steps_per_round=8)


def test_an_adapter_needs_a_policy_to_freeze() -> None:
    PolicySettings(lora_rank=8)
    with pytest.raises(ValidationError, match="LORA_RANK=8 freezes the policy in use, but START="):
        PolicySettings(lora_rank=8, start="random")
    with pytest.raises(ValidationError, match="lora_rank"):
        PolicySettings(lora_rank=-1)
