from dataclasses import replace

import pytest
import torch

from infrastructure.events import PrecisionState, Role
from infrastructure.events.role_precision import PurePresetError
from infrastructure.training.precision.roles import RoleResolver

JOB = (Role.POLICY, Role.REFERENCE, Role.ROLLOUT)
ALL_FP32 = dict.fromkeys(JOB, "fp32/fp32/fp32")


def resolver(preset=None, *, roles=JOB, cpu_half=True, emit=lambda _notice: None):
    device = torch.device("cpu")
    return RoleResolver(roles, preset=preset, device=device, cpu_half=cpu_half, emit=emit)


def state(effective, requested="fp16", **roles):
    return PrecisionState(requested=requested, effective=effective, reason="default", roles=roles)


def acknowledged(resolver, state):
    return resolver.acknowledge(state, resolver.precisions(state)).roles


def test_the_acknowledgement_names_every_role_of_the_job():
    assert acknowledged(resolver(), state("fp16")) == {
        Role.POLICY: "fp32/fp16/fp32",
        Role.REFERENCE: "fp16/fp16/fp32",
        Role.ROLLOUT: "fp16/fp16/fp32",
    }
    assert acknowledged(resolver(roles=()), state("fp16", rollout="fp16/fp16/fp32")) == {}


@pytest.mark.parametrize("preset", [None, "flowrl_fp16", "bf16_train_fp16_infer"])
def test_a_rollback_is_fp32_for_every_role(preset):
    chosen = state("fp32", rollout="fp16/fp16/fp32")
    assert acknowledged(resolver(preset), chosen) == ALL_FP32


def test_the_preset_of_the_job_holds_unless_a_role_was_chosen():
    notices = []
    roles = resolver("bf16_train_fp16_infer", emit=notices.append)
    assert acknowledged(roles, state("bf16"))[Role.ROLLOUT] == "fp16/fp16/fp32"
    roles.precisions(state("bf16"))
    (notice,) = notices
    assert (notice.event, notice.level) == ("role_precisions_differ", "warning")
    assert notice.fields["reason"].startswith("roles of this run: the policy computes in bf16")
    chosen = state("bf16", rollout="bf16/bf16/fp32")
    assert acknowledged(roles, chosen)[Role.ROLLOUT] == "bf16/bf16/fp32"


def test_a_job_that_wants_fp32_gets_it_unless_the_operator_chose_roles():
    roles = resolver("fp32_baseline")
    resolved = roles.resolve(state("fp16"))
    assert (resolved.requested, resolved.effective, resolved.reason) == ("fp16", "fp32", "agent")
    chosen = state("fp16", policy="fp32/fp16/fp32")
    assert roles.resolve(chosen) is chosen
    rolled_back = state("fp32")
    assert roles.resolve(rolled_back) is rolled_back
    assert resolver().resolve(chosen) is chosen


def test_the_half_type_of_the_jobs_preset_replaces_the_default_alone():
    roles = resolver("bf16_train_fp16_infer")
    resolved = roles.resolve(state("fp16", rollout="fp32/fp32/fp32"))
    assert (resolved.effective, resolved.reason) == ("bf16", "agent")
    assert resolved.roles == {Role.ROLLOUT: "fp32/fp32/fp32"}
    by_guard = state("fp16", reference="fp16/fp16/fp32")
    resolved = roles.resolve(replace(by_guard, parts={"critic": "fp16"}))
    assert resolved.roles == {Role.REFERENCE: "fp32/fp32/fp32"}, "not a half type of its own"
    assert resolved.parts == {"critic": "fp32"}
    by_operator = replace(state("fp16"), reason="operator")
    assert roles.resolve(by_operator) is by_operator
    assert acknowledged(roles, by_operator)[Role.ROLLOUT] == "fp16/fp16/fp32"
    assert acknowledged(roles, by_operator)[Role.POLICY] == "fp32/fp16/fp32"


def test_a_role_whose_half_type_the_device_lacks_is_fp32():
    assert acknowledged(resolver(cpu_half=False), state("fp16")) == ALL_FP32


def test_a_half_type_that_was_measured_on_a_cpu_holds_for_the_roles_too():
    """The trainer computes in it as well: see `AutoPrecision`."""
    measured = replace(state("bf16", requested="auto"), reason="measured")
    types = acknowledged(resolver("bf16_train_fp16_infer", cpu_half=False), measured)
    assert types[Role.POLICY] == "fp32/bf16/fp32"
    assert types[Role.REFERENCE] == "bf16/bf16/fp32"
    assert types[Role.ROLLOUT] == "fp32/fp32/fp32", "FP16 was not measured"


def test_a_job_cannot_choose_a_preset_without_master_weights():
    with pytest.raises(PurePresetError, match="rollback"):
        resolver("bf16_pure")


def test_a_chosen_half_type_of_a_role_that_the_job_lacks_is_reported_once():
    jobs, notices = (Role.POLICY, Role.ROLLOUT), []
    roles = resolver("flowrl_fp16", roles=jobs, emit=notices.append)
    roles.precisions(state("fp16"))
    roles.precisions(state("fp16"))
    resolver(roles=jobs, emit=notices.append).precisions(state("fp16"))  # nobody chose
    resolver("flowrl_fp16", emit=notices.append).precisions(state("fp16"))  # it has all of them
    resolver("precision-rl", roles=jobs, emit=notices.append).precisions(state("fp16"))
    (notice,) = notices
    assert notice.event == "role_precision_without_effect"
    assert "role reference has fp16/fp16/fp32" in notice.fields["reason"]
