"""One place decides on a training's precision: nothing after it decides otherwise."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from infrastructure.events import PrecisionState, Role
from infrastructure.events.event import Notice
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.distributed import Ranks
from infrastructure.training.loop import LoopOptions, TrainingEnv
from infrastructure.training.loop.precision_decision import PrecisionDecision
from infrastructure.training.precision import resolve
from tests.infrastructure.training.bandit import Bandit
from tests.infrastructure.training.parts.actor_critic import make_job as make_job_of_parts

CPU = torch.device("cpu")
WISHES = ("fp32", "fp16", "bf16")
ROLES = {Role.POLICY: "fp32/fp16/fp32", Role.ROLLOUT: "bf16/bf16/fp32"}


def decision(
    job, folder: Path, config: FP16TrainingConfig, emit=lambda _event: None
) -> PrecisionDecision:
    env = TrainingEnv(
        device=CPU,
        precision=PrecisionState(requested="fp32", effective="fp32", reason="default"),
        config=config,
        options=LoopOptions(seed=0),
        folder=folder,
        emit=emit,
        commands=tuple,
    )
    return PrecisionDecision(job, env, Ranks())


@pytest.mark.parametrize(
    ("wish", "cpu_half", "kind", "roles"),
    list(product(WISHES, (True, False), ("recorded", "on-policy"), ({}, ROLES))),
)
def test_the_trainer_takes_what_was_decided(
    make_job, tmp_path: Path, wish: str, cpu_half: bool, kind: str, roles: dict[Role, str]
):
    job = make_job() if kind == "recorded" else Bandit().job
    config = FP16TrainingConfig(cpu_half=cpu_half)
    wished = PrecisionState(requested=wish, effective=wish, reason="operator", roles=roles)
    decided = decision(job, tmp_path, config).decide(wished)
    assert decided.state.effective == (wish if cpu_half else "fp32")
    assert resolve(decided.state, CPU, cpu_half=cpu_half) == decided.state
    trainer = FP16Trainer(job.model, job.optimizer(job.model.parameters()), config)
    assert trainer.set_precision(decided.state) == decided.state
    assert trainer.precision_state == decided.state
    shown = {role: str(types) for role, types in decided.roles.items()}
    assert {role: shown[role] for role in decided.state.roles} == dict(decided.state.roles)


@pytest.mark.parametrize(
    ("changed", "names", "why"),
    [
        (
            {"modules": ("of_last_week",)},
            "of_last_week",
            "the guard raised 'of_last_week', but the model has no such",
        ),
        ({"modules": ("*",)}, "*", "* are all of the model"),
        (
            {"parts": {"critic": "bf16"}},
            "critic",
            "the guard changed part 'critic', and the job has no such part",
        ),
    ],
)
def test_modules_that_cannot_be_raised_one_by_one_lead_to_fp32(
    make_job, tmp_path: Path, changed: dict[str, Any], names: str, why: str
):
    told: list[Notice] = []
    config = FP16TrainingConfig(cpu_half=True)
    decide = decision(make_job(), tmp_path, config, told.append).decide
    wished = PrecisionState(requested="fp16", effective="fp16", reason="default", **changed)
    state = decide(wished).state
    assert (state.effective, state.reason) == ("fp32", "guard")
    assert (state.modules, state.parts) == ((), {})
    (notice,) = told
    assert notice.event == "modules_not_raised"
    assert notice.fields["modules"] == names
    assert why in str(notice.fields)
    assert "the whole job computes in FP32" in str(notice.fields)


def test_the_guards_half_type_of_a_world_model_is_in_force(make_job, tmp_path: Path):
    config = FP16TrainingConfig(cpu_half=True)
    wished = PrecisionState(
        requested="fp16",
        effective="bf16",
        reason="guard",
        roles={Role.WORLD_MODEL: "fp32/bf16/fp32"},
    )
    decided = decision(make_job(), tmp_path, config).decide(wished)
    assert (decided.state.effective, decided.state.reason) == ("bf16", "guard")
    assert decided.state.roles == {}, "a job on recorded data has no roles"


@pytest.mark.parametrize(
    ("kept", "parts", "decided"),
    [
        ([], {"critic": "bf16"}, {"critic": "bf16"}),
        (["part:critic"], {"critic": "bf16", "actor": "bf16"}, {"actor": "bf16"}),
        (["part:critic"], {"actor": "fp32", "temperature": "fp32"}, None),
    ],
)
def test_parts_that_the_job_keeps_in_fp32_stay_so(
    tmp_path: Path, kept: list[str], parts: dict[str, Any], decided: dict[str, str] | None
):
    job = make_job_of_parts(keep_fp32=kept)
    wished = PrecisionState(requested="fp16", effective="fp16", reason="default", parts=parts)
    state = decision(job, tmp_path, FP16TrainingConfig(cpu_half=True)).decide(wished).state
    if decided is None:
        assert (state.effective, state.reason, state.parts) == ("fp32", "guard", {})
    else:
        assert (state.effective, state.parts) == ("fp16", decided)
