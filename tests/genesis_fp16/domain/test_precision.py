"""Every combination of inputs against the rule in words."""

import itertools
from dataclasses import replace

import pytest

from genesis_fp16.domain.precision import (
    Device,
    Override,
    PrecisionInputs,
    applicable_overrides,
    resolve_precision,
)
from infrastructure.events import PrecisionState, Role
from infrastructure.events.role_precision import PRESETS

CPU = Device(accelerator=False, fp16=False, bf16=False)
FORCED_CPU = Device(accelerator=False, fp16=False, bf16=False, cpu_half=True)
OLD_GPU = Device(accelerator=True, fp16=True, bf16=False)
NEW_GPU = Device(accelerator=True, fp16=True, bf16=True)
DEVICES = (CPU, FORCED_CPU, OLD_GPU, NEW_GPU)
NAMES = ("fp32", "fp16", "bf16", "auto")


def override(precision: str, agent: str | None = None) -> Override:
    return Override(agent=agent, precision=precision, reason="r", actor="me", created_at=0.0)


def all_cases():
    wishes, yes_or_no = (None, *NAMES), (True, False)
    for flag, default, agent, mine, everyone, device, demand, twin in itertools.product(
        yes_or_no, NAMES[1:], wishes, wishes, wishes, DEVICES, range(3), range(4)
    ):
        overrides = [override(mine, "a")] if mine else []
        overrides += [override(everyone)] if everyone else []
        inputs = PrecisionInputs(
            flag=flag,
            default=default,
            agent=agent,
            overrides=overrides,
            device=device,
            guard=demand == 1,
            fell_back_at=1.0 if demand == 2 else None,
            canary=twin % 2 == 0,
            baseline=twin > 1,
        )
        yield inputs, mine, everyone


@pytest.mark.process
def test_any_voice_for_fp32_wins_and_the_first_is_named() -> None:
    for inputs, mine, everyone in all_cases():
        state, device = resolve_precision(inputs), inputs.device
        said = (name for name in (mine, everyone, inputs.agent) if name in NAMES[1:])
        chosen = next(said, inputs.default)
        assert state.requested == chosen
        measured = chosen == "auto"  # by the worker, on this very device
        lacks = not measured and not getattr(device, chosen)
        demands = {
            "flag": not inputs.flag,
            "operator": "fp32" in (mine, everyone),
            "guard": inputs.guard,
            "floor_policy": inputs.fell_back_at is not None,
            "agent": inputs.agent == "fp32",
            "no_accelerator": device is CPU and not measured,
            "unsupported": device is OLD_GPU and lacks,
            "baseline": inputs.baseline,
            "canary": not inputs.canary,
        }
        demanding = [reason for reason, demanded in demands.items() if demanded]
        if demanding:
            assert (state.effective, state.reason) == ("fp32", demanding[0])
        else:
            assert state.effective == chosen
            assert state.reason in ("operator", "agent", "default")


@pytest.mark.parametrize(
    ("agent", "overrides", "expected"),
    [
        (None, [], ("fp16", "default")),
        ("bf16", [], ("bf16", "agent")),
        ("bf16", [override("fp16")], ("fp16", "operator")),
        ("bf16", [override("fp16"), override("bf16", "a")], ("bf16", "operator")),
        (None, [override("bf16", "a"), override("fp16")], ("bf16", "operator")),
    ],
)
def test_who_chooses_the_half_type(agent, overrides, expected) -> None:
    state = resolve_precision(
        PrecisionInputs(flag=True, default="fp16", agent=agent, overrides=overrides, device=NEW_GPU)
    )
    assert (state.effective, state.reason) == expected


def test_a_missing_half_type_is_never_replaced_by_the_other() -> None:
    state = resolve_precision(
        PrecisionInputs(flag=True, default="bf16", agent=None, overrides=[], device=OLD_GPU)
    )
    assert state == PrecisionState(requested="bf16", effective="fp32", reason="unsupported")


def test_an_override_for_the_next_run_leaves_runs_under_way_to_the_one_before() -> None:
    earlier = override("fp32")
    later = replace(override("fp16"), created_at=100.0, next_run=True)
    assert applicable_overrides([earlier, later], "a", began_at=99.0) == [earlier]
    assert applicable_overrides([earlier, later], "a", began_at=100.0) == [later]


def test_an_override_applies_to_its_agent_only() -> None:
    mine, everyone = override("fp32", "a"), override("bf16")
    assert applicable_overrides([mine, everyone], "a", 1.0) == [mine, everyone]
    assert applicable_overrides([mine, everyone], "b", 1.0) == [everyone]


@pytest.mark.parametrize(
    ("agent", "precision", "created_at", "expected"),
    [
        ("a", "fp16", 101.0, ("fp16", "operator")),
        ("a", "auto", 101.0, ("auto", "operator")),
        ("a", "fp16", 99.0, ("fp32", "floor_policy")),
        (None, "fp16", 101.0, ("fp32", "floor_policy")),
        ("a", "fp32", 101.0, ("fp32", "operator")),
    ],
)
def test_only_a_newer_half_override_for_the_agent_suspends_a_fallback(
    agent, precision, created_at, expected
) -> None:
    asked = replace(override(precision, agent), created_at=created_at)
    inputs = PrecisionInputs(
        flag=True,
        default="fp16",
        agent=None,
        overrides=[asked],
        device=NEW_GPU,
        fell_back_at=100.0,
    )
    state = resolve_precision(inputs)
    assert (state.effective, state.reason) == expected
    assert resolve_precision(replace(inputs, flag=False)).reason == "flag"


def test_the_guard_is_named_before_the_fallback() -> None:
    inputs = PrecisionInputs(
        flag=True, default="bf16", agent=None, overrides=[], device=NEW_GPU, fell_back_at=1.0
    )
    assert resolve_precision(inputs).reason == "floor_policy"
    assert resolve_precision(replace(inputs, guard=True)).reason == "guard"


def inputs_with(**changes) -> PrecisionInputs:
    nothing = PrecisionInputs(flag=True, default="fp16", agent=None, overrides=[], device=NEW_GPU)
    return replace(nothing, **changes)


def test_a_preset_chooses_the_half_type_and_the_roles() -> None:
    state = resolve_precision(inputs_with(preset=PRESETS["bf16_train_fp16_infer"]))
    assert (state.requested, state.effective, state.reason) == ("bf16", "bf16", "agent")
    assert state.roles[Role.POLICY] == "fp32/bf16/fp32"
    assert state.roles[Role.ROLLOUT] == "fp16/fp16/fp32"
    assert len(state.roles) == len(Role)


def test_an_override_of_the_half_type_takes_the_roles_of_a_preset_with_it() -> None:
    mixed = PRESETS["bf16_train_fp16_infer"]
    state = resolve_precision(inputs_with(preset=mixed, overrides=[override("fp16", "a")]))
    assert (state.effective, state.reason) == ("fp16", "operator")
    assert state.roles[Role.ROLLOUT] == state.roles[Role.REFERENCE] == "fp16/fp16/fp32"
    auto = resolve_precision(inputs_with(preset=mixed, overrides=[override("auto", "a")]))
    assert auto.effective == "auto"
    assert auto.roles == {role: str(precision) for role, precision in mixed.items()}, (
        "before measuring"
    )


@pytest.mark.parametrize(
    "demand",
    [
        {"flag": False},
        {"guard": True},
        {"agent": "fp32"},
        {"device": CPU},
        {"overrides": [override("fp32")]},
        {"preset": PRESETS["fp32_baseline"]},
        {"preset": PRESETS["fp32_baseline"], "agent": "fp16"},
        {"guard_roles": {Role.POLICY: "fp32"}},
    ],
)
def test_a_demand_for_fp32_leaves_no_role_in_half(demand) -> None:
    state = resolve_precision(inputs_with(**{"preset": PRESETS["flowrl_fp16"], **demand}))
    assert (state.effective, state.roles) == ("fp32", {})

    changed = {"guard_modules": ("head",), "guard_parts": {"critic": "bf16"}}
    state = resolve_precision(inputs_with(**{**changed, **demand}))
    assert (state.modules, state.parts) == ((), {})


def test_modules_that_the_guard_raises_are_those_of_the_half_type() -> None:
    state = resolve_precision(inputs_with(guard_modules=("head",)))
    assert (state.effective, state.reason, state.modules) == ("fp16", "default", ("head",))


@pytest.mark.parametrize(
    ("chosen", "name", "of_part"),
    [
        ({}, "bf16", "bf16"),
        ({}, "fp32", "fp32"),
        ({"agent": "fp16"}, "bf16", "fp32"),
        ({"overrides": [override("fp16")]}, "bf16", "fp32"),
        ({"preset": PRESETS["fp16"]}, "bf16", "fp32"),
        ({"device": OLD_GPU}, "bf16", "fp32"),
        ({"agent": "bf16"}, "bf16", None),
        ({"default": "bf16"}, "bf16", None),
    ],
)
def test_a_part_has_the_other_half_type_only_if_nobody_chose_one(chosen, name, of_part) -> None:
    state = resolve_precision(inputs_with(guard_parts={"critic": name}, **chosen))
    assert state.parts == ({"critic": of_part} if of_part else {})
    assert state.effective != "fp32"


@pytest.mark.parametrize(("decided_at", "effective"), [(4.0, "fp32"), (6.0, "fp16")])
def test_a_fallback_holds_unless_the_guard_has_raised_modules_since(decided_at, effective) -> None:
    raised = {"guard_modules": ("head",), "guard_decided_at": decided_at}
    assert resolve_precision(inputs_with(fell_back_at=5.0, **raised)).effective == effective


def test_the_guard_changes_one_role() -> None:
    state = resolve_precision(inputs_with(guard_roles={Role.ROLLOUT: "fp32"}))
    assert (state.effective, state.reason) == ("fp16", "default")
    assert state.roles == {Role.ROLLOUT: "fp32/fp32/fp32"}
    preset = PRESETS["flowrl_bf16"]
    state = resolve_precision(inputs_with(preset=preset, guard_roles={Role.ROLLOUT: "fp32"}))
    assert state.roles[Role.ROLLOUT] == "fp32/fp32/fp32"
    assert state.roles[Role.REFERENCE] == "bf16/bf16/fp32"


OTHER_HALF = {Role.POLICY: "fp16", Role.ROLLOUT: "fp16"}


def test_the_guard_may_choose_the_other_half_type_where_nobody_chose_one() -> None:
    state = resolve_precision(inputs_with(default="bf16", guard_roles=OTHER_HALF))
    assert (state.requested, state.effective, state.reason) == ("bf16", "fp16", "guard")
    assert state.roles == {Role.POLICY: "fp32/fp16/fp32", Role.ROLLOUT: "fp16/fp16/fp32"}
    rollout = {Role.ROLLOUT: "fp16"}
    assert resolve_precision(inputs_with(default="bf16", guard_roles=rollout)).roles == {
        Role.ROLLOUT: "fp16/fp16/fp32"
    }


@pytest.mark.parametrize(
    "chosen",
    [
        {"agent": "fp16"},
        {"overrides": [override("fp16")]},
        {"preset": PRESETS["flowrl_fp16"]},
        {"device": OLD_GPU},
    ],
)
def test_else_fp32_takes_its_place(chosen) -> None:
    state = resolve_precision(inputs_with(**chosen, guard_roles={Role.ROLLOUT: "bf16"}))
    assert state.effective == "fp16"
    assert state.roles[Role.ROLLOUT] == "fp32/fp32/fp32"
    both = {Role.POLICY: "bf16", Role.ROLLOUT: "bf16"}
    state = resolve_precision(inputs_with(**chosen, guard_roles=both))
    assert (state.effective, state.reason, state.roles) == ("fp32", "guard", {})


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"agent": "fp16"}, "agent"),
        ({"overrides": [override("fp16", "a")]}, "operator"),
        ({"preset": PRESETS["flowrl_fp16"]}, "agent"),
        ({"preset": PRESETS["flowrl_bf16"], "overrides": [override("fp16")]}, "operator"),
    ],
)
def test_who_chooses_the_half_type_that_the_guard_demands_gets_it(chosen, reason) -> None:
    state = resolve_precision(inputs_with(default="bf16", guard_roles=OTHER_HALF, **chosen))
    assert (state.requested, state.effective, state.reason) == ("fp16", "fp16", reason)
    assert state.roles[Role.POLICY] == "fp32/fp16/fp32"
    assert state.roles[Role.ROLLOUT] == "fp16/fp16/fp32"


def test_a_preset_may_choose_what_the_guard_demands_for_one_role() -> None:
    mixed, rollout = PRESETS["bf16_train_fp16_infer"], {Role.ROLLOUT: "fp16"}
    state = resolve_precision(inputs_with(preset=mixed, guard_roles=rollout))
    assert (state.effective, state.reason) == ("bf16", "agent")
    assert state.roles[Role.ROLLOUT] == "fp16/fp16/fp32"
    state = resolve_precision(inputs_with(preset=mixed, guard_roles=OTHER_HALF))
    assert (state.effective, state.reason, state.roles) == ("fp32", "guard", {})


def test_the_run_follows_the_half_type_of_its_world_model() -> None:
    other = {Role.WORLD_MODEL: "bf16"}
    state = resolve_precision(
        inputs_with(guard_roles=other, fell_back_at=1.0, guard_decided_at=2.0)
    )
    assert (state.effective, state.reason) == ("bf16", "guard")
    chosen = resolve_precision(inputs_with(agent="fp16", guard_roles=other))
    assert (chosen.effective, chosen.reason) == ("fp32", "guard"), "the agent has chosen FP16"
