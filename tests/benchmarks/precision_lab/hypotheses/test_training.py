from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.precision_lab.hypotheses.training import CONTROL, in_bf16, measure_pairs, quick
from infrastructure.events import Role
from infrastructure.events.role_precision import FP32

pytestmark = pytest.mark.process  # trains for seconds


def test_a_pair_differs_in_one_role() -> None:
    precisions = in_bf16(Role.KL)
    assert str(precisions[Role.KL]) == "bf16/bf16/bf16"
    assert [role for role in Role if precisions[role] != FP32] == [Role.KL]


def test_the_cells_of_a_pair_begin_alike_and_each_is_kept() -> None:
    made: list[str] = []

    def kept(name: str, make: Callable[[], dict[str, float]]) -> dict[str, float]:
        made.append(name)
        return make()

    settings = replace(quick(), updates=2, warm_up_steps=1, reward_model_steps=1)
    figures = measure_pairs(0, [Role.KL], kept, settings)
    assert made == ["training0-fp32", "training0-kl", "training0-other-completions"]
    # The first round is drawn before anything is rounded, and the reward model is in FP32.
    assert abs(figures["kl in bf16: reward lost"]) < 0.1
    assert f"{CONTROL}: log KL ratio" in figures
