"""Every combination of voices against the rule in words."""

import itertools

import pytest

from genesis_fp16.precision_policy import Device, Override, decide
from infrastructure.events import PrecisionState

CPU = Device(accelerator=False, fp16=False, bf16=False)
FORCED_CPU = Device(accelerator=False, fp16=False, bf16=False, cpu_half=True)
OLD_GPU = Device(accelerator=True, fp16=True, bf16=False)
NEW_GPU = Device(accelerator=True, fp16=True, bf16=True)
DEVICES = (CPU, FORCED_CPU, OLD_GPU, NEW_GPU)
NAMES = ("fp32", "fp16", "bf16", "auto")


def override(precision: str, agent: str | None = None) -> Override:
    return Override(agent=agent, precision=precision, reason="r", actor="me", created_at=0.0)


def all_cases():
    for flag, default, agent, mine, everyone, device in itertools.product(
        (True, False), NAMES[1:], (None, *NAMES), (None, *NAMES), (None, *NAMES), DEVICES
    ):
        overrides = [override(mine, "a")] if mine else []
        overrides += [override(everyone)] if everyone else []
        yield flag, default, agent, mine, everyone, device, overrides


def test_any_voice_for_fp32_wins_and_the_first_is_named() -> None:
    for flag, default, agent, mine, everyone, device, overrides in all_cases():
        state = decide(flag=flag, default=default, agent=agent, overrides=overrides, device=device)
        said = (name for name in (mine, everyone, agent) if name in NAMES[1:])
        chosen = next(said, default)
        assert state.requested == chosen
        measured = chosen == "auto"  # by the worker, on this very device
        lacks = not measured and not getattr(device, chosen)
        demands = {
            "flag": not flag,
            "operator": "fp32" in (mine, everyone),
            "agent": agent == "fp32",
            "no_accelerator": device is CPU and not measured,
            "unsupported": device is OLD_GPU and lacks,
        }
        voices = [reason for reason, demanded in demands.items() if demanded]
        if voices:
            assert (state.effective, state.reason) == ("fp32", voices[0])
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
    state = decide(flag=True, default="fp16", agent=agent, overrides=overrides, device=NEW_GPU)
    assert (state.effective, state.reason) == expected


def test_a_missing_half_type_is_never_replaced_by_the_other() -> None:
    state = decide(flag=True, default="bf16", agent=None, overrides=[], device=OLD_GPU)
    assert state == PrecisionState(requested="bf16", effective="fp32", reason="unsupported")
