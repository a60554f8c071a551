import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from infrastructure.events import PrecisionState, Role
from infrastructure.events.role_precision import (
    FP32,
    PRESETS,
    TRAINED,
    PurePresetError,
    RolePrecision,
    RolePrecisionError,
    RolePrecisions,
    UnknownPresetError,
    find_preset,
    roles_under,
    usable_preset,
)

FP16 = RolePrecision("fp32", "fp16", "fp32")
FROZEN_FP16 = RolePrecision("fp16", "fp16", "fp32")
POLICY_ROLES = [role for role in Role if role is not Role.WORLD_MODEL]

# In their words: policy, reference, rollout, reward, value, KL and advantage.
DOCUMENTED = {
    "flowrl_fp16": "32/16/32 16/16/32 16/16/32 32/32/32 32/32/32 32/32/32",
    "bf16_train_fp16_infer": "32/bf/32 bf/bf/32 16/16/32 32/32/32 32/32/32 32/32/32",
    "fp16": "32/16/32 16/16/32 16/16/32 32/32/32 32/16/32 32/32/32",
    "precision-rl": "32/16/32 32/32/32 16/16/32 32/32/32 32/32/32 32/32/32",
    "fp16_fp32_head": "32/16/32 16/16/32 16/16/32 32/32/32 32/32/32 32/32/32",
    "bf16_pure": "bf bf bf bf bf bf",
    "bf16_fp32_kl": "bf bf bf bf bf 32",
    "bf16_fp32_value": "bf bf bf bf 32 bf",
    "bf16_fp32_reward": "bf bf bf 32 bf bf",
    "bf16_fp32_ref": "bf 32 bf bf bf bf",
    "mixed_recommended": "bf bf bf bf 32 32",
    "fp32_baseline": "32 32 32 32 32 32",
}
COUNTERPARTS = {
    "flowrl_bf16": "flowrl_fp16",
    "bf16_fp32_head": "fp16_fp32_head",
    "fp16_pure": "bf16_pure",
    "fp16_fp32_kl": "bf16_fp32_kl",
    "fp16_fp32_value": "bf16_fp32_value",
    "fp16_fp32_reward": "bf16_fp32_reward",
    "fp16_fp32_ref": "bf16_fp32_ref",
    "mixed_recommended_fp16": "mixed_recommended",
    "bf16": "fp16",
}


def types(text):
    parts = text.split("/") if "/" in text else [text] * 3
    return RolePrecision.parse("/".join({"bf": "bf16"}.get(p, f"fp{p}") for p in parts))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_preset_is_its_row_in_the_documents(name):
    preset = PRESETS[name]
    columns = [types(each) for each in DOCUMENTED[name].split()]
    assert [preset[role] for role in POLICY_ROLES] == [*columns, columns[-1]]
    assert (
        preset.source in {"sail-sg/Precision-RL", "dtype-rlhf", "plain"}
        or "verl_FlowRL" in preset.source
        or preset.fp32_head
    )


@pytest.mark.parametrize(("name", "other"), COUNTERPARTS.items())
def test_every_documented_preset_has_a_counterpart(name, other):
    half = PRESETS[name].half
    assert half is not None
    assert PRESETS[other].half != half
    assert PRESETS[other].in_half(half).roles == PRESETS[name].roles


def test_every_preset_is_documented_or_a_counterpart_and_knows_its_name():
    assert set(PRESETS) == {*DOCUMENTED, *COUNTERPARTS, "fp16_train_bf16_infer"}
    assert all(preset.name == name for name, preset in PRESETS.items())


def test_a_preset_is_pure_exactly_if_a_trained_role_is_stored_in_half():
    for preset in PRESETS.values():
        assert preset.pure == any(preset[role].store != "fp32" for role in TRAINED)


def test_a_loss_scale_belongs_to_trained_roles_in_fp16_alone():
    assert PRESETS["flowrl_fp16"].scaled_roles == {Role.POLICY, Role.WORLD_MODEL}
    assert PRESETS["fp16_pure"].scaled_roles == {Role.POLICY, Role.VALUE}
    for name in ("flowrl_bf16", "bf16_train_fp16_infer", "bf16_pure", "fp32_baseline"):
        assert not PRESETS[name].scaled_roles


def test_a_rollback_takes_every_role_to_fp32():
    for preset in PRESETS.values():
        rolled_back = preset.rolled_back()
        assert set(rolled_back.values()) == {FP32}
        assert rolled_back.name == preset.name
        assert not rolled_back.pure


def test_one_warning_where_trainer_and_rollout_round_differently():
    warned = {name: each.warnings() for name, each in PRESETS.items() if each.warnings()}
    assert set(warned) == {"bf16_train_fp16_infer", "fp16_train_bf16_infer"}
    (warning,) = warned["bf16_train_fp16_infer"]
    assert "bf16 (7 mantissa bits)" in warning
    assert "rounding of bf16" in warning
    fp32_rollout = PRESETS["flowrl_bf16"].with_role(Role.ROLLOUT, FP32)
    assert "rounding of bf16" in fp32_rollout.warnings()[0]


def test_a_head_in_fp32_on_one_side_alone_is_refused():
    assert PRESETS["bf16_fp32_head"].fp32_head >= {Role.POLICY, Role.ROLLOUT}
    for side, other in ((Role.POLICY, "rollout"), (Role.ROLLOUT, "policy")):
        with pytest.raises(RolePrecisionError, match=f"that of {other} is not.*mismatch.*worse"):
            RolePrecisions(name="mine", roles={}, fp32_head=frozenset({side, Role.REFERENCE}))


def test_a_trained_role_stored_in_half_needs_pure():
    pure = {Role.POLICY: RolePrecision("fp16", "fp16", "fp32")}
    with pytest.raises(RolePrecisionError, match=r"mine: role policy .*pure=True"):
        RolePrecisions(name="mine", roles=pure)
    assert RolePrecisions(name="mine", roles=pure, pure=True)[Role.POLICY].store == "fp16"
    with pytest.raises(RolePrecisionError, match="role policy"):
        PRESETS["flowrl_fp16"].with_role(Role.POLICY, FROZEN_FP16)


def test_results_in_half_need_pure():
    with pytest.raises(RolePrecisionError, match="reward returns bf16"):
        RolePrecisions(name="m", roles={Role.REWARD: RolePrecision("bf16", "bf16", "bf16")})


def test_two_half_types_in_one_role_are_refused():
    with pytest.raises(RolePrecisionError, match="fp16 and compute in bf16"):
        RolePrecision("fp16", "bf16", "fp32")


def test_roles_that_are_left_out_are_fp32_and_unknown_ones_are_refused():
    given_one = RolePrecisions(name="m", roles={Role.POLICY: FP16})
    assert {role for role in given_one if given_one[role] != FP32} == {Role.POLICY}
    assert len(given_one) == len(Role)
    with pytest.raises(ValueError, match="critic"):
        RolePrecisions(name="m", roles={"critic": FP16})


@given(*[st.sampled_from(["fp32", "fp16", "bf16"])] * 3)
def test_text_and_value_correspond(store, compute, out):
    text = f"{store}/{compute}/{out}"
    if "fp32" not in (store, compute) and store != compute:
        with pytest.raises(RolePrecisionError):
            RolePrecision.parse(text)
    else:
        assert str(RolePrecision.parse(f" {text.upper()} ")) == text


@given(st.text())
def test_other_text_is_refused_with_the_form_to_write(text):
    assume(text.count("/") != 2)
    with pytest.raises(RolePrecisionError, match="such as fp32/fp16/fp32"):
        RolePrecision.parse(text)
    with pytest.raises(RolePrecisionError, match=r"out must .*'fp8'"):
        RolePrecision.parse("fp32/fp16/fp8")


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(UnknownPresetError, match=r"mean flowrl_fp16\?"):
        find_preset("flowrl-fp16")
    with pytest.raises(UnknownPresetError, match=r"'x': .*flowrl_fp16"):
        find_preset("x")


def test_pure_presets_are_refused_outside_the_lab():
    assert usable_preset("flowrl_fp16") is PRESETS["flowrl_fp16"]
    with pytest.raises(PurePresetError, match=r"'bf16_pure' .*flowrl_fp16"):
        usable_preset("bf16_pure")


def state(effective, **roles):
    return PrecisionState(requested="fp16", effective=effective, reason="default", roles=roles)


def test_the_roles_follow_the_precision_of_the_run():
    assert roles_under(state("fp16")).name == "flowrl_fp16"
    assert roles_under(state("bf16")).name == "flowrl_bf16"
    assert set(roles_under(state("fp32")).values()) == {FP32}
    mixed = PRESETS["bf16_train_fp16_infer"]
    assert roles_under(state("bf16"), mixed) is mixed
    assert roles_under(state("fp16"), mixed).roles == PRESETS["flowrl_fp16"].roles


def test_a_role_that_was_chosen_singly_differs_but_never_under_fp32():
    roles = roles_under(state("bf16", rollout="fp16/fp16/fp32"))
    assert roles[Role.ROLLOUT] == FROZEN_FP16
    assert roles[Role.REFERENCE] == RolePrecision("bf16", "bf16", "fp32")
    assert set(roles_under(state("fp32", rollout="fp16/fp16/fp32")).values()) == {FP32}
