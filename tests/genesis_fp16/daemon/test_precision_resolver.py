"""Everything that decides the precision: settings, overrides, hardware, guard, fallbacks."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from genesis_fp16.daemon.precision_resolver import PrecisionResolver
from genesis_fp16.domain.guard import Decision, Detection, GuardState, Trigger
from genesis_fp16.domain.precision import Override
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.guard import Guard
from genesis_fp16.plugins.probe import Hardware
from genesis_fp16.settings import AgentSettings, Settings
from genesis_fp16.store import Store
from infrastructure.events import Role

GPU = Hardware(device="cuda:0", fp16=True, bf16=True, torch_version="2")
CPU = replace(GPU, device="cpu", fp16=False, bf16=False)
OVERRIDE = Override(agent="a", precision="fp32", reason="odd", actor="me", created_at=0.0)


def make_resolver(store: Store, hardware: Hardware, settings: Settings) -> PrecisionResolver:
    return PrecisionResolver(store, hardware, settings, Guard(store, settings))


@pytest.fixture
def resolver(store: Store) -> PrecisionResolver:
    return make_resolver(store, GPU, Settings())


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


def resolved(resolver: PrecisionResolver, agent: str, **run: float) -> tuple[str, str]:
    state = resolver(run_of(agent, **run))
    return state.effective, state.reason


def test_an_override_counts_from_the_next_refresh(
    resolver: PrecisionResolver, store: Store
) -> None:
    store.overrides.set(OVERRIDE)
    assert resolved(resolver, "a") == ("fp16", "default")
    resolver.refresh()
    assert resolved(resolver, "a") == ("fp32", "operator")
    assert resolved(resolver, "b") == ("fp16", "default")
    store.overrides.set(replace(OVERRIDE, agent=None))
    resolver.refresh()
    assert resolved(resolver, "b") == ("fp32", "operator")


def test_an_override_that_cannot_be_read_keeps_fp32(
    resolver: PrecisionResolver, store: Store, home_settings: Settings
) -> None:
    store.overrides.set(OVERRIDE)
    with closing(sqlite3.connect(home_settings.home / "genesis.db")) as database, database:
        database.execute("UPDATE overrides SET precision = 'FP32 '")
    resolver.refresh()
    assert resolved(resolver, "a", started_at=1.0) == ("fp32", "operator")
    assert resolved(resolver, "b") == ("fp16", "default")


def test_settings_count_at_once(resolver: PrecisionResolver) -> None:
    resolver.settings = Settings(agents={"a_b": AgentSettings(precision="bf16")})
    assert resolved(resolver, "a-b") == ("bf16", "agent")
    resolver.settings = Settings(enable_fp16_training=False)
    assert resolved(resolver, "a-b") == ("fp32", "flag")


@pytest.mark.parametrize(
    ("cpu_half", "expected"), [(False, ("fp32", "no_accelerator")), (True, ("fp16", "default"))]
)
def test_a_cpu_demands_fp32_unless_forced(store: Store, cpu_half: bool, expected) -> None:
    assert resolved(make_resolver(store, CPU, Settings(cpu_half=cpu_half)), "a") == expected


def test_an_override_for_the_next_run_spares_the_run_under_way(
    resolver: PrecisionResolver, store: Store
) -> None:
    store.overrides.set(replace(OVERRIDE, created_at=100.0, next_run=True))
    resolver.refresh()
    assert resolved(resolver, "a", started_at=99.0) == ("fp16", "default")
    assert resolved(resolver, "a", started_at=101.0) == ("fp32", "operator")
    assert resolved(resolver, "a") == ("fp32", "operator"), "it has not begun"


def test_canaries_are_chosen_by_the_number_of_the_run(resolver: PrecisionResolver) -> None:
    resolver.settings = Settings(canary_share=0.5)
    assert resolved(resolver, "a", number=1) == ("fp16", "default")
    assert resolved(resolver, "a", number=2) == ("fp32", "canary")
    resolver.settings = Settings(canary_agents="c, b")
    assert resolved(resolver, "a", number=1) == ("fp32", "canary")
    assert resolved(resolver, "b", number=2) == ("fp16", "default")


def test_the_guard_decides_for_its_agent(store: Store, home_settings: Settings) -> None:
    guard = Guard(store, home_settings)
    resolver = PrecisionResolver(store, GPU, home_settings, guard)
    guard.trip("a", Detection(trigger=Trigger.UNDERFLOW, summary="lost", numbers={}))
    assert resolved(resolver, "a") == ("fp32", "guard")
    assert resolved(resolver, "b") == ("fp16", "default")
    guard.settings = home_settings.model_copy(update={"guard_enabled": False})
    assert resolved(resolver, "a") == ("fp16", "default")


def test_a_preset_and_the_guard_decide_for_single_roles(
    store: Store, home_settings: Settings
) -> None:
    agents = {"a": AgentSettings(role_precision="bf16_train_fp16_infer")}
    settings = home_settings.model_copy(update={"agents": agents})
    guard = Guard(store, settings)
    resolver = PrecisionResolver(store, GPU, settings, guard)
    assert resolved(resolver, "a") == ("bf16", "agent")
    assert resolver(run_of("a")).roles[Role.ROLLOUT] == "fp16/fp16/fp32"
    roles = {Role.ROLLOUT: "fp32"}
    mismatch = Detection(trigger=Trigger.MISMATCH, summary="differ", numbers={}, roles=roles)
    for agent in ("a", "b"):
        guard.trip(agent, mismatch)
        assert resolver(run_of(agent)).roles[Role.ROLLOUT] == "fp32/fp32/fp32"
    assert resolved(resolver, "a") == ("bf16", "agent")
    resolver.settings = settings.model_copy(update={"enable_fp16_training": False})
    assert resolver(run_of("a")).roles == {}


def test_a_run_that_fell_back_stays_in_fp32(store: Store, home_settings: Settings) -> None:
    guard_off = home_settings.model_copy(update={"guard_enabled": False})
    resolver = PrecisionResolver(store, GPU, guard_off, Guard(store, guard_off))
    fell_back = replace(run_of("a"), fell_back_at=100.0)
    store.overrides.set(replace(OVERRIDE, agent="b"))
    resolver.settings = guard_off.model_copy(update={"precision": "bf16"})
    resolver.refresh()
    decided = resolver(fell_back)
    assert (decided.effective, decided.reason) == ("fp32", "floor_policy")
    assert resolved(resolver, "a", number=2) == ("bf16", "default"), "a new run starts fresh"
    assert resolver.for_agent("a").reason == "default"


def test_without_the_guard_its_rung_ends_no_fallback(store: Store, home_settings: Settings) -> None:
    decided = Decision(agent="a", state=GuardState.TRIPPED, at=200.0, modules=("head",))
    store.guard.add(decided)
    fell_back = replace(run_of("a"), fell_back_at=100.0)
    reasons = {True: "default", False: "floor_policy"}
    for enabled, reason in reasons.items():
        settings = home_settings.model_copy(update={"guard_enabled": enabled})
        resolver = PrecisionResolver(store, GPU, settings, Guard(store, settings))
        assert resolver(fell_back).reason == reason


def test_a_job_elsewhere_has_the_device_it_asks_for(store: Store) -> None:
    """The daemon's machine may have a GPU that the job has not, and the other way round."""
    agents = {"a": AgentSettings(job_gpus=1)}
    settings = Settings(executor="slurm", agents=agents)
    for hardware in (GPU, CPU):
        resolver = make_resolver(store, hardware, settings)
        states = [resolver(run_of(agent)) for agent in "ab"]
        assert [(state.effective, state.reason) for state in states] == [
            ("fp16", "default"),
            ("fp32", "no_accelerator"),
        ]
    on_cpu = settings.model_copy(update={"device": "cpu"})
    assert make_resolver(store, GPU, on_cpu)(run_of("a")).reason == "no_accelerator"
    here = make_resolver(store, GPU, settings.model_copy(update={"executor": "local"}))
    assert here(run_of("b")).effective == "fp16"
