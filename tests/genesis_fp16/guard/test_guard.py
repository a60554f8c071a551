"""The guard with a real store and real files: decisions, their records, and restarts."""

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from genesis_fp16.domain import guard as rules
from genesis_fp16.domain.guard import Decision, GuardState
from genesis_fp16.domain.run import Ending, Run, RunState, RunSummary, RunTransition
from genesis_fp16.guard.evidence import write_evidence
from genesis_fp16.guard.guard import Guard
from genesis_fp16.settings import Settings
from genesis_fp16.settings.settings import AgentSettings
from genesis_fp16.store import Store
from infrastructure.events import EventWriter, PrecisionState
from infrastructure.events.event import Notice, PrecisionChanged, RungSearched, StepStats
from tests.genesis_fp16.postgres import on_each_database

DONE = RunTransition(state=RunState.SUCCEEDED)
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")


class World:
    """A guard, the store beneath it, and a clock."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store, self.settings, self.now = store, settings, 1_000_000.0
        self.told: list[Decision] = []
        self.restart()

    def restart(self) -> None:
        """A new daemon that knows only the store."""
        self.guard = Guard(self.store, self.settings, self.told.append, clock=lambda: self.now)

    def configure(self, **update: object) -> None:
        self.settings = self.guard.settings = self.settings.model_copy(update=update)

    def begin(self, twin_of: Run | None = None) -> Run:
        queue = self.store.enqueue_baseline
        run = queue(twin_of) if twin_of else self.store.enqueue("a", first_seed=0)
        assert self.store.begin_attempt(run.id, run.id) is not None
        self.guard.on_run_state("a", run.id, "starting")
        return run

    def succeed(
        self, run: Run, metric: float = 1.0, half_steps: int = 0, also: Sequence[str] = ()
    ) -> None:
        summary = RunSummary(
            primary_metric="mse",
            primary_value=metric,
            higher_is_better=False,
            steps=100,
            half_steps=half_steps,
        )
        [attempt] = self.store.attempts(run.id)
        self.store.move(run.id, RunState.RUNNING)
        self.store.update_summary(run.id, summary)
        self.store.end_attempt(attempt, Ending(exit_code=0), DONE, finished_at=self.store.now())
        for agent in ("a", *also):
            self.guard.on_run_state(agent, run.id, "succeeded")
        self.guard.refresh()

    @property
    def state(self) -> GuardState:
        return self.guard.decision("a").state


@pytest.fixture
def world(store: Store, home_settings: Settings) -> World:
    return World(store, home_settings)


@pytest.fixture
def storm(world: World, stats: Callable[..., StepStats]) -> Callable[[Run], None]:
    """Send one window of overflows."""
    return lambda run: world.guard.on_event("a", run.id, stats(overflow=60))


@on_each_database
def test_a_trip_is_in_force_at_once_and_then_recorded(world, storm) -> None:
    run = world.begin()
    assert not world.guard.in_force("a").demands_fp32
    storm(run)
    assert world.guard.in_force("a").demands_fp32
    assert not world.guard.in_force("b").demands_fp32
    assert world.store.guard.history("a") == [], "no store is needed for it"
    storm(run)
    world.guard.refresh()
    [decision] = world.store.guard.history("a")
    assert (decision.trigger, decision.run_id, decision.step) == ("overflow_storm", run.id, 100)
    bundle = json.loads((world.settings.home / decision.evidence).read_text())
    assert bundle["attempt"] == 1
    assert bundle["numbers"]["overflows"] == 60
    assert bundle["statistics"][0]["overflow"] == 60
    assert bundle["settings"]["guard_storm_ratio"] == 0.3
    assert bundle["settings"]["fp16_backoff_factor"] == 0.5
    assert bundle["settings"]["agent_precision"] is None
    assert [decision.state for decision in world.told] == ["tripped"]


@on_each_database
def test_a_decision_survives_a_restart(world, storm) -> None:
    storm(world.begin())
    world.guard.refresh()
    world.restart()
    assert world.guard.in_force("a").demands_fp32
    assert world.guard.decision("a").trigger == "overflow_storm"
    world.guard.refresh()
    assert len(world.told) == 1, "old news"


@on_each_database
def test_a_restart_loses_no_window(world, compared) -> None:
    """Events that an earlier daemon read count once, together with those that follow."""
    run = world.begin()
    [attempt] = world.store.attempts(run.id)
    path = world.settings.home / "runs" / run.id / "attempts" / "1" / "events.ndjson"
    path.parent.mkdir(parents=True)
    off = compared(loss=0.6)
    with EventWriter(path, lambda: world.now) as write:
        write(off)
        write(off)
        offset = path.stat().st_size
        write(off)
    world.store.update_attempt(attempt.incarnation, events_offset=offset)
    world.restart()
    assert world.state == "watching"
    world.guard.on_event("a", run.id, off)
    assert world.guard.decision("a").trigger == "loss_drift"
    assert "in 3 comparisons" in world.guard.decision("a").reason, "none counts twice"


def test_a_restart_passes_over_a_file_that_is_not_one(world) -> None:
    run = world.begin()
    path = world.settings.home / "runs" / run.id / "attempts" / "1" / "events.ndjson"
    path.mkdir(parents=True)
    world.restart()
    assert world.state == "watching"


def test_a_restart_reads_nothing_that_the_dispatcher_has_not_passed_on(world) -> None:
    run = world.begin()
    path = world.settings.home / "runs" / run.id / "attempts" / "1" / "events.ndjson"
    path.parent.mkdir(parents=True)
    path.touch()
    os.truncate(path, 1 << 40)  # takes no space: reading it would take hours
    world.restart()
    assert world.state == "watching"


@on_each_database
def test_a_restart_ignores_events_before_a_decision(world, storm, stats, compared) -> None:
    run = world.begin()
    [attempt] = world.store.attempts(run.id)
    path = world.settings.home / "runs" / run.id / "attempts" / "1" / "events.ndjson"
    path.parent.mkdir(parents=True)
    with EventWriter(path, lambda: world.now - 1.0) as write:
        for _ in range(2):
            write(compared(loss=0.6))
    storm(run)
    world.guard.refresh()
    [tripped] = world.store.guard.history("a")
    world.store.guard.add(rules.clear_trip(tripped, now=world.now, actor="ann", reason="mended"))
    with EventWriter(path, lambda: world.now + 1.0) as write:
        write(stats(steps=90))
    world.store.update_attempt(attempt.incarnation, events_offset=path.stat().st_size)
    world.restart()
    world.guard.on_event("a", run.id, compared(loss=0.6))
    assert world.state == "probation"
    world.guard.on_event("a", run.id, stats(steps=10))
    world.succeed(run)
    assert world.state == "watching", "100 clean half-precision steps, 90 before the restart"


def test_a_run_that_a_restart_resumes_is_not_a_new_trial(world, storm) -> None:
    world.configure(guard_reenable="auto")
    first = world.begin()
    storm(first)
    world.succeed(first)
    run = world.begin()
    world.restart()
    world.now += 3600.0
    world.guard.on_run_state("a", run.id, "starting")
    assert world.state == "tripped", "it began in the cool-down"


@on_each_database
def test_an_operators_decision_applies_while_the_daemon_runs(world, storm) -> None:
    storm(world.begin())
    world.guard.refresh()
    [last] = world.store.guard.latest().values()
    cleared = rules.clear_trip(last, now=world.now, actor="ann", reason="mended")
    world.store.guard.add(cleared)
    world.guard.refresh()
    assert world.state == "probation"
    assert not world.guard.in_force("a").demands_fp32
    assert [decision.actor for decision in world.told] == ["guard", "ann"]
    world.guard.refresh()
    assert len(world.told) == 2


@on_each_database
def test_trip_probation_and_return_without_an_operator(world, storm, stats) -> None:
    world.configure(guard_reenable="auto")
    run = world.begin()
    storm(run)
    world.succeed(run)
    world.succeed(world.begin())
    assert world.state == "tripped"
    world.now += 3600.0
    run = world.begin()
    assert world.state == "probation"
    assert not world.guard.in_force("a").demands_fp32
    world.guard.on_event("a", run.id, stats(overflow=15))
    assert world.guard.decision("a").trigger == "overflow_sustained", "less is enough on probation"
    assert (world.state, world.guard.decision("a").level) == ("tripped", 2)
    world.succeed(run)
    world.now += 3600.0
    world.succeed(world.begin())
    assert world.state == "tripped", "the cool-down is doubled"
    world.now += 3600.0
    run = world.begin()
    world.guard.on_event("a", run.id, stats(overflow=1))
    world.succeed(run)
    assert world.state == "watching"
    assert len(list((world.settings.home / "guard" / "a").iterdir())) == 5


def test_a_retry_of_the_same_run_is_not_a_new_run(world, storm) -> None:
    world.configure(guard_reenable="auto")
    first = world.begin()
    storm(first)
    world.succeed(first)
    second = world.begin()
    world.now += 3600.0
    world.guard.on_run_state("a", second.id, "starting")
    assert world.state == "tripped"


def test_fp32_runs_prove_nothing(world, storm, stats) -> None:
    world.configure(guard_reenable="auto")
    run = world.begin()
    storm(run)
    world.succeed(run)
    world.now += 3600.0
    run = world.begin()
    world.guard.on_event("a", run.id, stats(precision="fp32"))
    world.succeed(run)
    assert world.state == "probation"


def test_the_guard_uses_the_floor_of_the_settings(world, stats) -> None:
    world.configure(min_loss_scale=4.0)
    run = world.begin()
    begins = PrecisionChanged(step=0, state=FP16, loss_scale=8.0)
    world.guard.on_event("a", run.id, begins)
    world.guard.on_event("a", run.id, stats(steps=1, overflow=1, loss_scale=4.0))
    assert world.guard.decision("a").trigger == "scale_floor"


def test_evidence_names_the_attempt_that_was_under_way(world, storm) -> None:
    run = world.begin()
    [first] = world.store.attempts(run.id)
    again = RunTransition(state=RunState.QUEUED)
    world.store.end_attempt(first, Ending(), again, finished_at=world.store.now())
    assert world.store.begin_attempt(run.id, "second") is not None
    storm(run)
    world.guard.refresh()
    [decision] = world.store.guard.history("a")
    bundle = json.loads((world.settings.home / decision.evidence).read_text())
    assert bundle["attempt"] == 2


@pytest.mark.parametrize("hidden", ["runs", "attempts"])
def test_evidence_needs_no_store(world, storm, hidden: str) -> None:
    """It is on the disk although the store cannot be read or written."""
    run = world.begin()
    storm(run)
    world.guard.on_run_state("a", run.id, "succeeded")
    with closing(sqlite3.connect(world.settings.home / "genesis.db")) as database:
        database.execute(f"ALTER TABLE {hidden} RENAME TO hidden")
        with suppress(OperationalError):
            world.guard.refresh()
        [path] = (world.settings.home / "guard" / "a").iterdir()
        database.execute(f"ALTER TABLE hidden RENAME TO {hidden}")
    world.guard.refresh()
    [decision] = world.store.guard.history("a")
    assert world.settings.home / decision.evidence == path


def test_a_guard_that_is_switched_off_demands_nothing(world, storm) -> None:
    run = world.begin()
    storm(run)
    world.configure(guard_enabled=False)
    assert not world.guard.in_force("a").demands_fp32
    world.configure(guard_enabled=True)
    assert world.guard.in_force("a").demands_fp32


@on_each_database
def test_three_worse_pairs_are_a_drift(world) -> None:
    for _ in range(3):
        run = world.begin()
        world.succeed(run, metric=1.1, half_steps=100)
        assert world.state == "watching"
        world.succeed(world.begin(twin_of=run), metric=1.0, also=["b"])
    assert world.guard.decision("a").trigger == "metric_drift"
    [decision] = world.store.guard.history("a")
    bundle = json.loads((world.settings.home / decision.evidence).read_text())
    assert [pair["half"] for pair in bundle["numbers"]["pairs"]] == [1.1] * 3


def test_pairs_before_a_decision_do_not_count_again(world) -> None:
    def pair() -> None:
        run = world.begin()
        world.succeed(run, metric=1.1, half_steps=100)
        world.now = world.store.now()
        world.succeed(world.begin(twin_of=run), metric=1.0)

    for _ in range(3):
        pair()
    assert world.state == "tripped"
    cleared = rules.clear_trip(
        world.guard.decision("a"), now=world.store.now(), actor="ann", reason="mended"
    )
    world.store.guard.add(cleared)
    world.guard.refresh()
    pair()
    pair()
    assert world.state == "probation"
    pair()
    assert world.state == "tripped"


@pytest.fixture
def disagree(world: World, mismatched) -> Callable[..., None]:
    """Send three samples of a mismatch in one pair of precisions."""

    def send(run: Run, *pair: str) -> None:
        for _ in range(3):
            world.guard.on_event("a", run.id, mismatched(*pair))

    return send


def found(*modules: str) -> RungSearched:
    cause = "modules" if modules else "data"
    return RungSearched(step=70, modules=modules, cause=cause, reason="a replay has shown it")


def test_after_a_search_fp32_remains_in_the_modules_found(world, storm) -> None:
    run = world.begin()
    world.guard.on_event("a", run.id, found("head"))
    assert world.state == "watching", "nothing has tripped"
    storm(run)
    world.guard.on_event("a", run.id, found())
    assert world.guard.in_force("a").demands_fp32, "no module is to blame"
    world.now += 1
    world.guard.on_event("a", run.id, found("head"))
    assert not world.guard.in_force("a").demands_fp32
    assert world.guard.in_force("a").modules == ("head",)
    world.guard.refresh()
    world.restart()
    decision = world.guard.decision("a")
    assert (world.state, decision.modules, decision.level) == ("tripped", ("head",), 1)
    assert decision.trigger == "overflow_storm"
    bundle = json.loads((world.settings.home / decision.evidence).read_text())
    assert bundle["search"]["reason"] == "a replay has shown it"
    world.configure(guard_enabled=False)
    assert world.guard.in_force("a").modules == ()


def test_modules_that_did_not_suffice_are_not_raised_again(world, storm) -> None:
    run = world.begin()
    storm(run)
    world.now += 1
    world.guard.on_event("a", run.id, found("head"))
    world.now += 1
    storm(run)
    assert world.guard.in_force("a").demands_fp32
    assert world.guard.decision("a").level == 2
    world.guard.refresh()
    world.restart()
    world.guard.on_event("a", run.id, found("head"))
    assert world.guard.in_force("a").demands_fp32
    world.guard.on_event("a", run.id, found("head", "trunk"))
    assert world.guard.in_force("a").modules == ("head", "trunk")


@on_each_database
def test_a_part_has_its_own_precision_where_a_search_has_shown_it(world, storm) -> None:
    run = world.begin()
    storm(run)
    world.now += 1
    world.guard.on_event("a", run.id, searched("parts", parts={"critic": "bf16"}))
    assert not world.guard.in_force("a").demands_fp32
    assert world.guard.in_force("a").parts == {"critic": "bf16"}
    world.guard.refresh()
    world.restart()
    decision = world.guard.decision("a")
    assert (decision.rung, decision.parts, decision.level) == ("parts", {"critic": "bf16"}, 1)
    assert decision.descended
    world.configure(guard_ladder=False)
    assert world.guard.in_force("a").demands_fp32
    world.configure(guard_ladder=True)
    world.now += 1
    storm(run)
    assert world.guard.in_force("a").demands_fp32
    tripped_at = world.guard.decision("a").at
    world.now += 1
    world.guard.on_event("a", run.id, searched("parts", parts={"critic": "bf16"}))
    assert world.guard.in_force("a").demands_fp32, "it did not suffice"
    refused = world.guard.decision("a")
    assert refused.reason.startswith("critic bf16 was found once more, but this did not suffice")
    assert (refused.tripped, refused.level) == (False, 2)
    assert refused.at > tripped_at
    world.now += 1
    world.guard.on_event("a", run.id, searched("parts", parts={"critic": "bf16"}))
    assert world.guard.decision("a") == refused, "it is told once"
    world.guard.on_event("a", run.id, searched("parts", parts={"critic": "fp32"}))
    assert world.guard.in_force("a").parts == {"critic": "fp32"}
    notice = Notice.warning("modules_not_raised", "no such part", modules="critic")
    world.guard.on_event("a", run.id, notice)
    assert world.guard.in_force("a").demands_fp32
    assert world.guard.in_force("a").parts == {}


def test_modules_that_have_vanished_lead_to_fp32_until_a_search_finds_others(world, storm) -> None:
    run = world.begin()
    storm(run)
    world.now += 1
    world.guard.on_event("a", run.id, found("head", "trunk"))
    why = "the guard raised 'head', but the model has no such module"
    notice = Notice.warning("modules_not_raised", why, modules="other")
    world.guard.on_event("a", run.id, notice)
    assert world.guard.in_force("a").modules == ("head", "trunk"), "those of an older decision"
    world.now += 1
    notice = Notice.warning("modules_not_raised", why, modules="head, trunk")
    world.guard.on_event("a", run.id, notice)
    decision = world.guard.decision("a")
    assert world.guard.in_force("a").demands_fp32
    assert (decision.reason, decision.level, decision.trigger) == (why, 1, "overflow_storm")
    world.guard.refresh()
    world.restart()
    assert world.guard.decision("a").reason == why
    world.guard.on_event("a", run.id, found("head", "trunk"))
    assert world.guard.in_force("a").modules == ("head", "trunk"), "it was no relapse"


@pytest.mark.parametrize(
    "forbidden", [{"guard_ladder": False}, {"agents": {"a": AgentSettings(guard_ladder=False)}}]
)
def test_where_the_ladder_is_forbidden_fp32_stays(world, storm, forbidden) -> None:
    world.configure(**forbidden)
    run = world.begin()
    storm(run)
    with capture_logs() as logs:
        world.guard.on_event("a", run.id, found("head"))
    assert world.guard.in_force("a").demands_fp32
    assert "GENESIS_GUARD_LADDER is false" in logs[0]["reason"]


def test_a_ladder_that_is_forbidden_later_leads_to_fp32_until_it_is_allowed(world, storm) -> None:
    run = world.begin()
    storm(run)
    world.guard.on_event("a", run.id, found("head"))
    world.configure(guard_ladder=False)
    assert world.guard.in_force("a").demands_fp32
    assert world.guard.in_force("a").modules == ()
    world.configure(guard_ladder=True)
    assert not world.guard.in_force("a").demands_fp32
    assert world.guard.in_force("a").modules == ("head",)


def test_a_search_out_of_its_time_leaves_fp32(world, storm) -> None:
    run = world.begin()
    storm(run)
    world.guard.on_event("a", run.id, searched("unfinished"))
    assert world.guard.in_force("a").demands_fp32


def test_an_operator_ends_the_rung(world, storm) -> None:
    run = world.begin()
    storm(run)
    world.guard.on_event("a", run.id, found("head"))
    last = world.guard.decision("a")
    cleared = rules.clear_trip(last, now=world.now, actor="ann", reason="mended")
    assert cleared is not None
    assert (cleared.state, cleared.modules) == ("probation", ())
    assert cleared.returned_at == world.now, "a worker's own fallback ends"
    storm(run)
    world.now += 1
    world.store.guard.add(replace(cleared, at=world.now))
    world.guard.refresh()
    storm(run)
    world.guard.on_event("a", run.id, found("head"))
    assert world.guard.in_force("a").modules == ("head",), "an operator permits another try"


def searched(cause: str, **changes: object) -> RungSearched:
    fields = {"step": 70, "cause": cause, "reason": "a replay has shown it", **changes}
    return RungSearched.model_validate(fields)


@on_each_database
def test_the_other_half_type_replaces_fp32_where_a_search_has_shown_it(world, storm) -> None:
    run = world.begin()
    storm(run)
    world.now += 1
    world.guard.on_event("a", run.id, searched("half_type", half_type="bf16"))
    assert not world.guard.in_force("a").demands_fp32
    assert world.guard.in_force("a").roles == {"world_model": "bf16"}
    world.guard.refresh()
    world.restart()
    assert world.guard.decision("a").rung == "roles"
    storm(run)
    assert world.guard.in_force("a").demands_fp32, "it did not suffice"
    world.guard.on_event("a", run.id, searched("half_type", half_type="bf16"))
    assert world.guard.in_force("a").demands_fp32, "nor is it tried again"


def test_all_copies_of_a_policy_get_the_other_half_type(world, storm) -> None:
    run = world.begin()
    storm(run)
    roles = dict.fromkeys(("policy", "rollout"), "bf16")
    world.guard.on_event("a", run.id, searched("half_type", half_type="bf16", roles=roles))
    demanded = world.guard.in_force("a").roles
    assert demanded == {"world_model": "bf16", **roles}
    assert world.guard.decision("a").descended


@on_each_database
def test_a_reference_to_blame_is_raised_alone(world, storm) -> None:
    run = world.begin()
    storm(run)
    world.now += 1
    world.guard.on_event("a", run.id, searched("roles", roles={"reference": "fp32"}))
    assert not world.guard.in_force("a").demands_fp32
    assert world.guard.in_force("a").roles == {"reference": "fp32"}
    world.guard.refresh()
    world.restart()
    decision = world.guard.decision("a")
    assert (decision.rung, decision.descended) == ("roles", True)
    world.configure(guard_ladder=False)
    assert world.guard.in_force("a").demands_fp32
    world.configure(guard_ladder=True)
    storm(run)
    world.guard.on_event("a", run.id, searched("roles", roles={"reference": "fp32"}))
    assert world.guard.in_force("a").demands_fp32, "it did not suffice"


def test_a_scale_that_cures_itself_brings_half_precision_back_once(world, storm) -> None:
    run = world.begin()
    storm(run)
    world.guard.on_event("a", run.id, searched("scale"))
    assert (world.state, world.guard.in_force("a").demands_fp32) == ("probation", False)
    assert world.guard.decision("a").reason == "a replay has shown it"
    storm(run)
    world.guard.refresh()
    world.restart()
    world.guard.on_event("a", run.id, searched("scale"))
    assert world.guard.in_force("a").demands_fp32


def test_one_rung_further_down_after_a_quiet_time(world, storm, stats) -> None:
    world.configure(guard_reenable="auto")
    run = world.begin()
    storm(run)
    world.guard.on_event("a", run.id, found("head"))
    world.guard.on_event("a", run.id, stats(steps=500))
    assert world.guard.in_force("a").modules == ("head",), "the cool-down is not over"
    world.now += world.settings.guard_cooldown_seconds
    world.guard.on_event("a", run.id, stats(steps=1))
    assert (world.state, world.guard.in_force("a").modules) == ("probation", ())
    assert world.guard.decision("a").returned_at == world.now, "a worker's own fallback ends"
    storm(run)
    assert world.guard.decision("a").returned_at == 0.0
    decision = world.guard.decision("a")
    assert (decision.rung, decision.level) == ("fp32", 2), "it climbs again"
    world.guard.on_event("a", run.id, found("head"))
    assert world.guard.in_force("a").modules == ("head",), "which had sufficed"
    world.now += world.settings.guard_cooldown_seconds
    world.guard.on_event("a", run.id, stats(steps=500))
    assert world.guard.in_force("a").modules == ("head",), "the cool-down has doubled"


def test_without_auto_a_rung_is_kept(world, storm, stats) -> None:
    run = world.begin()
    storm(run)
    world.guard.on_event("a", run.id, found("head"))
    world.now += 10 * world.settings.guard_cooldown_seconds
    world.guard.on_event("a", run.id, stats(steps=500))
    assert world.guard.in_force("a").modules == ("head",)


def test_what_the_loss_scale_cures_is_left_alone_and_told(world, stats, compared) -> None:
    run = world.begin()
    fp16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
    begun = PrecisionChanged(step=0, state=fp16, loss_scale=65536.0)
    world.guard.on_event("a", run.id, begun)
    vanishing = {"gradient_error": 0.9, "underflow": 0.6}
    with capture_logs() as logs:
        world.guard.on_event("a", run.id, stats(steps=20, overflow=20))
        for exponent in range(10, 15):
            world.guard.on_event("a", run.id, compared(loss_scale=2.0**exponent, **vanishing))
        world.guard.on_event("a", run.id, stats())
        world.guard.on_event("a", run.id, stats())
    assert world.state == "watching"
    told = [line for line in logs if line["event"] == "guard_left_to_scale"]
    assert [set(line) & {"overflows", "comparisons"} for line in told] == [
        {"overflows"},
        {"overflows", "comparisons"},
    ]
    for _ in range(3):
        world.guard.on_event("a", run.id, compared(loss_scale=2.0**14, **vanishing))
    assert world.guard.decision("a").trigger == "underflow", "it does not grow any more"


def test_a_mismatch_changes_the_guilty_role_and_nothing_else(world, disagree) -> None:
    run = world.begin()
    disagree(run, "fp16", "bf16")
    assert world.guard.in_force("a").roles == {"rollout": "fp32"}
    assert not world.guard.in_force("a").demands_fp32
    assert world.guard.in_force("b").roles == {}
    world.guard.refresh()
    [decision] = world.store.guard.history("a")
    assert (decision.trigger, decision.roles) == ("mismatch", {"rollout": "fp32"})
    bundle = json.loads((world.settings.home / decision.evidence).read_text())
    assert bundle["roles"] == {"rollout": "fp32"}
    assert bundle["numbers"]["guilty"] == ["rollout"]
    assert len(bundle["mismatches"]) == 3
    assert bundle["settings"]["guard_mismatch_kl"] == 0.001
    world.restart()
    assert world.guard.in_force("a").roles == {"rollout": "fp32"}
    world.configure(guard_enabled=False)
    assert world.guard.in_force("a").roles == {}


def test_the_other_half_type_if_the_worker_says_that_nobody_chose_one(world, disagree) -> None:
    run = world.begin()
    bf16 = PrecisionState(requested="bf16", effective="bf16", reason="default")
    world.guard.on_event("a", run.id, PrecisionChanged(step=0, state=bf16, loss_scale=1.0))
    disagree(run, "bf16", "bf16")
    assert world.guard.in_force("a").roles == {"policy": "fp16", "rollout": "fp16"}


def test_a_chosen_half_type_is_not_replaced_by_the_other(world, disagree) -> None:
    run = world.begin()
    bf16 = PrecisionState(requested="bf16", effective="bf16", reason="agent")
    world.guard.on_event("a", run.id, PrecisionChanged(step=0, state=bf16, loss_scale=1.0))
    disagree(run, "bf16", "bf16")
    assert world.guard.in_force("a").demands_fp32
    assert world.guard.in_force("a").roles == {}


def test_what_else_is_detected_while_a_role_is_changed_demands_fp32(world, disagree, storm) -> None:
    run = world.begin()
    disagree(run, "fp16", "bf16")
    disagree(run, "fp16", "bf16")
    assert not world.guard.in_force("a").demands_fp32, "the worker has not changed yet"
    storm(run)
    assert world.guard.in_force("a").demands_fp32
    assert world.guard.decision("a").level == 2
    assert [decision.trigger for decision in world.told] == ["mismatch", "overflow_storm"]


def test_a_changed_role_that_does_not_end_the_mismatch_leads_to_fp32(world, disagree) -> None:
    run = world.begin()
    disagree(run, "fp16", "bf16")
    disagree(run, "bf16", "fp32")
    assert world.guard.in_force("a").demands_fp32
    assert world.guard.decision("a").trigger == "mismatch"


@on_each_database
def test_a_changed_role_comes_back_by_the_same_ladder(world, disagree, mismatched, stats) -> None:
    world.configure(guard_reenable="auto")
    disagree(world.begin(), "fp16", "bf16")
    world.guard.refresh()
    world.succeed(world.store.runs("a")[0])
    world.now += world.settings.guard_cooldown_seconds
    trial = world.begin()
    assert (world.state, world.guard.in_force("a").roles) == ("probation", {})
    world.guard.on_event("a", trial.id, mismatched("fp16", "bf16"))
    assert (world.state, world.guard.in_force("a").roles) == ("tripped", {"rollout": "fp32"})
    assert world.guard.decision("a").level == 2, "a relapse doubles the cool-down"
    world.succeed(trial)
    world.now += 2 * world.settings.guard_cooldown_seconds
    clean = world.begin()
    world.guard.on_event("a", clean.id, mismatched("fp16", "fp16"))
    world.guard.on_event("a", clean.id, stats(steps=100))
    world.succeed(clean, half_steps=100)
    assert world.state == "watching"


def test_a_full_disk_costs_the_evidence_only(world, storm) -> None:
    world.settings.home.mkdir(exist_ok=True)
    (world.settings.home / "guard").write_text("in the way")
    storm(world.begin())
    world.guard.refresh()
    [decision] = world.store.guard.history("a")
    assert decision.evidence == ""
    assert world.guard.in_force("a").demands_fp32


def test_a_store_that_fails_is_tried_again(world, storm, home_settings: Settings) -> None:
    run = world.begin()
    quick = Store.open(home_settings, busy_milliseconds=1)
    world.store = quick
    world.restart()
    storm(run)
    with closing(sqlite3.connect(home_settings.home / "genesis.db")) as database:
        database.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="locked"):
            world.guard.refresh()
    assert world.guard.in_force("a").demands_fp32
    world.guard.refresh()
    assert len(quick.guard.history("a")) == 1
    quick.close()


def test_a_decision_outlives_a_daemon_that_ends_while_the_store_is_locked(
    world, storm, home_settings: Settings
) -> None:
    run = world.begin()
    free, world.store = world.store, Store.open(home_settings, busy_milliseconds=1)
    world.restart()
    storm(run)
    with closing(sqlite3.connect(home_settings.home / "genesis.db")) as database:
        database.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError, match="locked"):
            world.guard.refresh()
        world.store.close()
    world.store = free
    assert free.guard.history("a") == []
    world.restart()
    assert world.guard.in_force("a").demands_fp32
    world.guard.refresh()
    [decision] = free.guard.history("a")
    bundle = json.loads((world.settings.home / decision.evidence).read_text())
    assert (bundle["attempt"], bundle["reason"]) == (1, decision.reason)
    world.restart()
    world.guard.refresh()
    assert free.guard.history("a") == [decision], "once is enough"


def test_a_later_decision_of_the_store_outranks_a_bundle(world, storm) -> None:
    storm(world.begin())
    world.guard.refresh()
    [tripped] = world.store.guard.history("a")
    world.now += 5
    cleared = rules.clear_trip(tripped, now=world.now, actor="ann", reason="mended")
    assert cleared is not None
    world.store.guard.add(cleared)
    older = write_evidence(world.settings.home, replace(tripped, at=world.now - 1), {})
    world.restart()
    assert older.evidence > tripped.evidence
    assert world.state is GuardState.PROBATION
