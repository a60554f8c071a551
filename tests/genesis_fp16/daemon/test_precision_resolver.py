"""All voices at one desk: settings, overrides, hardware."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from genesis_fp16.daemon.precision_resolver import PrecisionDesk
from genesis_fp16.domain.guard import Detection, Trigger
from genesis_fp16.domain.precision import Override
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.guard import Fallbacks, Guard
from genesis_fp16.plugins.probe import Hardware
from genesis_fp16.settings import AgentSettings, Settings
from genesis_fp16.store import Store
from infrastructure.events import PrecisionState
from infrastructure.events.event import PrecisionChanged

GPU = Hardware(device="cuda:0", fp16=True, bf16=True, torch_version="2")
CPU = replace(GPU, device="cpu", fp16=False, bf16=False)
WORD = Override(agent="a", precision="fp32", reason="odd", actor="me", created_at=0.0)


def make_desk(store: Store, hardware: Hardware, settings: Settings) -> PrecisionDesk:
    fallbacks = Fallbacks(store, settings.home)
    return PrecisionDesk(store, hardware, settings, Guard(store, settings), fallbacks)


@pytest.fixture
def desk(store: Store) -> PrecisionDesk:
    return make_desk(store, GPU, Settings())


def run_of(agent: str, number: int = 1, started_at: float | None = None) -> Run:
    return Run(
        id=f"{agent}-{number}",
        agent=agent,
        number=number,
        trigger="manual",
        state=RunState.QUEUED,
        seed=0,
        due_at=0.0,
        created_at=0.0,
        available_at=0.0,
        started_at=started_at,
    )


def said(desk: PrecisionDesk, agent: str, **run: float) -> tuple[str, str]:
    state = desk(run_of(agent, **run))
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


def test_an_override_that_cannot_be_read_keeps_fp32(
    desk: PrecisionDesk, store: Store, home_settings: Settings
) -> None:
    store.overrides.set(WORD)
    with closing(sqlite3.connect(home_settings.home / "genesis.db")) as other, other:
        other.execute("UPDATE overrides SET precision = 'FP32 '")
    desk.refresh()
    assert said(desk, "a", started_at=1.0) == ("fp32", "operator")
    assert said(desk, "b") == ("fp16", "default")


def test_settings_count_at_once(desk: PrecisionDesk) -> None:
    desk.settings = Settings(agents={"a_b": AgentSettings(precision="bf16")})
    assert said(desk, "a-b") == ("bf16", "agent")
    desk.settings = Settings(enable_fp16_training=False)
    assert said(desk, "a-b") == ("fp32", "flag")


@pytest.mark.parametrize(
    ("cpu_half", "expected"), [(False, ("fp32", "no_accelerator")), (True, ("fp16", "default"))]
)
def test_a_cpu_objects_unless_forced(store: Store, cpu_half: bool, expected) -> None:
    assert said(make_desk(store, CPU, Settings(cpu_half=cpu_half)), "a") == expected


def test_a_word_for_the_next_run_spares_the_run_under_way(
    desk: PrecisionDesk, store: Store
) -> None:
    store.overrides.set(replace(WORD, created_at=100.0, next_run=True))
    desk.refresh()
    assert said(desk, "a", started_at=99.0) == ("fp16", "default")
    assert said(desk, "a", started_at=101.0) == ("fp32", "operator")
    assert said(desk, "a") == ("fp32", "operator"), "it has not begun"


def test_canaries_are_chosen_by_the_number_of_the_run(desk: PrecisionDesk) -> None:
    desk.settings = Settings(canary_share=0.5)
    assert said(desk, "a", number=1) == ("fp16", "default")
    assert said(desk, "a", number=2) == ("fp32", "canary")
    desk.settings = Settings(canary_agents="c, b")
    assert said(desk, "a", number=1) == ("fp32", "canary")
    assert said(desk, "b", number=2) == ("fp16", "default")


def test_the_guard_speaks_for_its_agent(store: Store, home_settings: Settings) -> None:
    guard = Guard(store, home_settings)
    desk = PrecisionDesk(store, GPU, home_settings, guard, Fallbacks(store, home_settings.home))
    guard.trip("a", Detection(trigger=Trigger.UNDERFLOW, summary="lost", numbers={}))
    assert said(desk, "a") == ("fp32", "guard")
    assert said(desk, "b") == ("fp16", "default")
    desk.settings = home_settings.model_copy(update={"guard_enabled": False})
    assert said(desk, "a") == ("fp16", "default")


def test_a_run_that_fell_back_stays_in_fp32(store: Store, home_settings: Settings) -> None:
    fallbacks = Fallbacks(store, home_settings.home)
    guard_off = home_settings.model_copy(update={"guard_enabled": False})
    desk = PrecisionDesk(store, GPU, guard_off, Guard(store, guard_off), fallbacks)
    state = PrecisionState(requested="fp16", effective="fp32", reason="floor_policy")
    event = PrecisionChanged(step=9, state=state, loss_scale=1.0, time=100.0)
    fallbacks.on_event("a", "a-1", event)
    store.overrides.set(replace(WORD, agent="b"))
    desk.settings = guard_off.model_copy(update={"precision": "bf16"})
    desk.refresh()
    assert said(desk, "a") == ("fp32", "floor_policy")
    assert said(desk, "a", number=2) == ("bf16", "default"), "a new run starts fresh"
    assert desk.for_agent("a").reason == "default"
