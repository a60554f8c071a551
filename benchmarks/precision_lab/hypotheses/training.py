"""What a role in BF16 costs a training: PPO pairs that differ in the types of one role.

Everything is FP32 but the role named, whose inputs, operations and results are BF16. Both cells of
a pair begin with the same weights, and draw the same problems. After the first rounding that
changes a drawn token they see other completions, so a pair also differs by chance: ``other
completions`` is a pair of FP32 cells that draw other problems, which shows by how much.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.precision_lab.hypotheses.verdicts import Claim
from infrastructure.events import Role
from infrastructure.events.role_precision import RolePrecision, RolePrecisions
from infrastructure.precision_lab.ppo import CellModels, CellSettings, PPOCell, prepare

SETTINGS = CellSettings(updates=100, kl_coefficient=0.05)  # the penalty matters
ROLES = (Role.KL, Role.REWARD, Role.VALUE, Role.REFERENCE)
CONTROL = "other completions"
_EXACT = "exact_kl_penalty_mean"  # of the first update of each round
MARGIN = 0.01  # of the reward model's reward, which is between 0 and 1 and gains about 0.4

CLAIMS = (
    Claim(
        hypothesis="H1",
        text=(
            f"with the KL in BF16, a training converges to a reward at least {MARGIN} lower than "
            "with it in FP32"
        ),
        figure="kl in bf16: reward lost",
        confirmed_above=MARGIN,
        refuted_below=MARGIN,
        would_decide="more seeds or longer trainings: completions drawn by chance hide less",
    ),
    Claim(
        hypothesis="H2",
        text=f"with the reward in BF16, a training loses at least {MARGIN} of reward",
        figure="reward in bf16: reward lost",
        confirmed_above=MARGIN,
        refuted_below=MARGIN,
        would_decide="more seeds or longer trainings",
        necessary=False,
    ),
    Claim(
        hypothesis="H3",
        text=(
            "with the value head in BF16, a training whose values are at most 1 loses at least "
            f"{MARGIN} of reward"
        ),
        figure="value in bf16: reward lost",
        confirmed_above=MARGIN,
        refuted_below=MARGIN,
        would_decide="more seeds or longer trainings",
        necessary=False,
    ),
    Claim(
        hypothesis="H4",
        text=f"with the reference in BF16, a training loses at least {MARGIN} of reward",
        figure="reference in bf16: reward lost",
        confirmed_above=MARGIN,
        refuted_below=MARGIN,
        would_decide="more seeds or longer trainings",
        necessary=False,
    ),
)

Kept = Callable[[str, Callable[[], dict[str, float]]], dict[str, float]]
"""Returns the figures kept by a name, or makes and keeps them."""


def in_bf16(role: Role) -> RolePrecisions:
    """FP32 for every role but *role*."""
    bf16 = RolePrecision("bf16", "bf16", "bf16")
    return RolePrecisions(name=f"fp32 with {role} in bf16", roles={role: bf16}, pure=True)


def measure_pairs(
    seed: int, roles: Sequence[Role], kept: Kept, settings: CellSettings = SETTINGS
) -> dict[str, float]:
    """Figures of one seed, by name, for each of *roles* and the control.

    ``reward lost`` is the mean reward over the last quarter of the training in FP32, minus that of
    the other cell. ``log KL ratio`` is the natural logarithm of its exact
    penalty per token, divided by that in FP32.
    """
    prepared: list[CellModels] = []

    def cell(name: str, precisions: RolePrecisions, drawn: int) -> dict[str, float]:
        def train() -> dict[str, float]:
            if not prepared:
                prepared.append(prepare(settings, seed))
            return _train(copy.deepcopy(prepared[0]), precisions, drawn, settings)

        return kept(f"training{seed}-{name.replace(' ', '-')}", train)

    everything_fp32 = RolePrecisions(name="fp32", roles={})
    exact = cell("fp32", everything_fp32, seed)
    figures = {f"fp32 training: {name}": value for name, value in exact.items()}
    others = {f"{role} in bf16": cell(role, in_bf16(role), seed) for role in roles}
    others[CONTROL] = cell(CONTROL, everything_fp32, seed + 1000)
    for name, found in others.items():
        figures[f"{name}: reward lost"] = exact["reward"] - found["reward"]
        figures[f"{name}: log KL ratio"] = math.log(found["kl"] / exact["kl"])
    return figures


def _train(
    models: CellModels, precisions: RolePrecisions, seed: int, settings: CellSettings
) -> dict[str, float]:
    steps = list(PPOCell(settings, precisions, models, seed).steps())
    last = steps[-max(len(steps) // 4, settings.epochs * settings.minibatches) :]
    return {
        "first reward": float(steps[0]["reward_mean"]),
        "reward": _mean(last, "reward_mean"),
        "share of right characters": _mean(last, "task_reward_mean"),
        "kl": _mean([each for each in last if each[_EXACT] is not None], _EXACT),
        "largest value": float(steps[-1]["value_max"]),
    }


def _mean(steps: Sequence[Mapping[str, Any]], name: str) -> float:
    return fmean(float(step[name]) for step in steps)


def quick() -> CellSettings:
    """Settings that check the command in seconds."""
    return replace(
        SETTINGS, updates=4, completions=6, warm_up_steps=4, reward_model_steps=4, width=16
    )
