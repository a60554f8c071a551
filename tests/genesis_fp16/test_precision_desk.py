"""All voices at one desk: settings, overrides, hardware."""

from dataclasses import replace

import pytest

from genesis_fp16.plugins import Hardware
from genesis_fp16.precision_desk import PrecisionDesk
from genesis_fp16.precision_policy import Override
from genesis_fp16.settings import AgentSettings, Settings
from genesis_fp16.store import Store

GPU = Hardware(device="cuda:0", fp16=True, bf16=True, torch_version="2")
CPU = replace(GPU, device="cpu", fp16=False, bf16=False)
WORD = Override(agent="a", precision="fp32", reason="odd", actor="me", created_at=0.0)


@pytest.fixture
def desk(store: Store) -> PrecisionDesk:
    return PrecisionDesk(store, GPU, Settings())


def said(desk: PrecisionDesk, agent: str) -> tuple[str, str]:
    state = desk(agent)
    return state.effective, state.reason


def test_an_override_counts_from_the_next_refresh(desk: PrecisionDesk, store: Store) -> None:
    store.overrides.set(WORD)
    assert said(desk, "a") == ("fp16", "default")
    desk.refresh()
    assert said(desk, "a") == ("fp32", "operator")
    assert said(desk, "b") == ("fp16", "default")
    store.overrides.set(replace(WORD, agent=None))
    desk.refresh()
    assert said(desk, "b") == ("fp32", "operator")


def test_settings_count_at_once(desk: PrecisionDesk) -> None:
    desk.settings = Settings(agents={"a_b": AgentSettings(precision="bf16")})
    assert said(desk, "a-b") == ("bf16", "agent")
    desk.settings = Settings(enable_fp16_training=False)
    assert said(desk, "a-b") == ("fp32", "flag")


@pytest.mark.parametrize(
    ("cpu_half", "expected"), [(False, ("fp32", "no_accelerator")), (True, ("fp16", "default"))]
)
def test_a_cpu_objects_unless_forced(store: Store, cpu_half: bool, expected) -> None:
    assert said(PrecisionDesk(store, CPU, Settings(cpu_half=cpu_half)), "a") == expected
