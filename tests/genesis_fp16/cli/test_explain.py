"""The story of an agent's precision, from a real store and real evidence, without a daemon."""

import json
import math
import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from genesis_fp16.cli.app import app
from genesis_fp16.domain.attempt import events_path
from genesis_fp16.domain.guard import Decision, GuardState
from genesis_fp16.domain.run import Ending, Run, RunState, RunSummary, RunTransition
from genesis_fp16.guard.guard import Guard
from genesis_fp16.runs.retention import Retention
from genesis_fp16.settings import load_settings
from genesis_fp16.store import Store
from infrastructure.events import EventWriter, Role
from infrastructure.events.event import (
    BaselineCompared,
    CheckpointSaved,
    LostUpdatesMeasured,
    MismatchMeasured,
    OverflowDiagnosed,
    RungSearched,
    StepStats,
)
from infrastructure.events.mismatch_report import Combination, MismatchReport

STORM = StepStats(step=160, applied=40, overflow=60, fp16=100, loss_scale=4.0, precision="fp16")
COMPARED = BaselineCompared(
    step=50,
    precision="fp16",
    loss_scale=1024.0,
    loss=0.5,
    fp32_loss=0.5,
    nonfinite_module="mul in encoder.0",
)
MISMATCHED = MismatchMeasured(
    step=70,
    round=7,
    report=MismatchReport(
        policy="fp16", rollout="bf16", tokens=900, sequences=64, k1=0.002, k2=0.002, k3=0.002,
        mean_difference=0.01, max_difference=0.3, pearson=0.99, chi2_token=0.01,
        chi2_sequence=math.inf, effective_sample_size=0.9, sequence_std=0.2, slope=math.nan,
        combinations=(
            Combination(policy="fp32", rollout="fp32", k3=1e-9, mean_difference=0.0),
            Combination(policy="fp16", rollout="fp32", k3=2e-5, mean_difference=0.0),
            Combination(policy="fp16", rollout="bf16", k3=2e-3, mean_difference=0.01),
        ),
    ),
)  # fmt: skip
BY_GUARD = {"requested": "fp16", "effective": "fp32", "reason": "guard"}
BY_DEFAULT = {"requested": "fp16", "effective": "fp16", "reason": "default"}

Ask = Callable[..., Result]


pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def ask() -> Ask:
    return lambda *arguments: CliRunner().invoke(app, ["precision", *arguments])


def words(ask: Ask) -> str:
    """What is explained about the agent a, with single spaces."""
    return " ".join(ask("explain", "a").stdout.split())


def explained(ask: Ask) -> dict[str, Any]:
    return json.loads(ask("explain", "a", "--json").stdout, parse_constant=pytest.fail)


def finished(store: Store, metric: float | None, half_steps: int, **precision: str) -> Run:
    """A run of the agent a that succeeded after 100 steps."""
    run = store.enqueue("a", first_seed=0)
    attempt = store.begin_attempt(run.id, run.id)
    assert attempt is not None
    summary = RunSummary(
        metrics={"mse": metric},
        primary_metric="mse",
        primary_value=metric,
        higher_is_better=False,
        steps=100,
        half_steps=half_steps,
        precision=precision,
    )
    store.update_summary(run.id, summary)
    store.end_attempt(
        attempt,
        Ending(exit_code=0),
        RunTransition(state=RunState.SUCCEEDED),
        finished_at=store.now(),
    )
    return run


@pytest.fixture
def tripped(store: Store) -> Run:
    """A run in which the guard has tripped, as a daemon leaves it behind."""
    run = finished(store, 0.5, 100, **BY_GUARD)
    guard = Guard(store, load_settings())
    guard.on_event("a", run.id, COMPARED)
    guard.on_event("a", run.id, CheckpointSaved(step=90, path="/ck", size_bytes=1, seconds=0.1))
    guard.on_event("a", run.id, STORM)
    guard.refresh()
    return run


@pytest.fixture
def role_changed(store: Store) -> Run:
    """A run in which the guard has changed the precision of the rollout."""
    run = finished(store, 0.5, 100, **BY_DEFAULT)
    guard = Guard(store, load_settings())
    for _ in range(3):
        guard.on_event("a", run.id, MISMATCHED)
    guard.refresh()
    return run


def test_a_changed_role_is_explained_with_the_measurement(ask: Ask, role_changed: Run) -> None:
    output = words(ask)
    for said in (
        *("Last trip mismatch at ", "rounding of rollout in bf16", "Rollout changes to FP32"),
        *("Mismatch 0.002 -> 0.002 -> 0.002 ", "(policy FP16, rollout BF16)"),
        *("Same tokens fp32/fp32 1e-09, fp16/fp32 2e-05, fp16/bf16 0.002", "rollout in FP32"),
        *("(GENESIS_GUARD_REENABLE=manual)", "genesis-fp16 precision clear --guard a"),
    ):
        assert said in output
    assert explained(ask)["decisions"][0]["roles"] == {"rollout": "fp32"}


def test_each_measurement_is_explained_with_its_own_precisions(ask: Ask, store: Store) -> None:
    run = finished(store, 0.5, 100, **BY_DEFAULT)
    exact = MISMATCHED.report.model_copy(update={"policy": "fp32", "rollout": "fp32", "k3": 1e-9})
    guard = Guard(store, load_settings())
    guard.on_event("a", run.id, MISMATCHED.model_copy(update={"report": exact}))
    for _ in range(3):
        guard.on_event("a", run.id, MISMATCHED)
    guard.refresh()
    measured = r"1e-09 .*\(policy FP32, .* FP32\) -> 0.002 -> 0.002 -> 0.002 .*FP16, rollout BF16"
    assert re.search(measured, words(ask))


def test_overflows_and_lost_updates_of_the_run_are_explained(
    ask: Ask, store: Store, folder: Path
) -> None:
    run = finished(store, 0.5, 100, **BY_DEFAULT)
    [attempt] = store.attempts(run.id)
    path = events_path(load_settings().home, attempt)
    path.parent.mkdir(parents=True)
    write = EventWriter(path)
    overflow = {"precision": "fp16", "loss_scale": 512.0, "overflows": 3, "seconds": 0.1}
    for step, operation in ((10, "add.Tensor"), (30, "exp.default")):
        write(
            OverflowDiagnosed(
                step=step, cause="forward", module="net.1 (Gate)", operation=operation, **overflow
            )
        )
    write(
        OverflowDiagnosed(
            step=40,
            cause="backward",
            lower_scale_helps=True,
            module="net.2 (Head)",
            operation="MulBackward0",
            **overflow,
        )
    )
    write(OverflowDiagnosed(step=50, cause="not_reproduced", **overflow))
    fp32 = {"module": "the loss function, outside Net.forward", "operation": "log"}
    write(OverflowDiagnosed(step=60, cause="fp32", **fp32, **overflow))
    write(
        LostUpdatesMeasured(
            step=70,
            precision="fp16",
            loss_scale=512.0,
            zero=0.25,
            subnormal=0.125,
            underflow_module="net.0 (Linear)",
            stagnation=0.5,
            seconds=0.1,
        )
    )
    output = words(ask)
    for said in (
        *("step 30: exp.default in net.1 (Gate), in the forward", "__A__KEEP_FP32=net.1 "),
        *("step 40: MulBackward0 in net.2 (Head), in the backward", "512; a lower scale helps "),
        *("step 50: the batch that was tried does not overflow at loss scale 512", "step 60: log"),
        *("Net.forward is not finite in FP32", "Underflow step 70: 25.00% ", " 12.50% subnormal"),
        *("most of them in net.0 (Linear)", "Stagnation step 70: 50.00% "),
    ):
        assert said in output
    telemetry = explained(ask)["telemetry"]
    assert [window["step"] for window in telemetry["overflows"]] == [30, 40, 50, 60]
    assert telemetry["lost_updates"]["stagnation"] == 0.5
    write(RungSearched(step=80, cause="unfinished", reason="it was killed"))
    assert "KEEP_FP32=net.1" in words(ask)
    write(RungSearched(step=90, cause="modules", modules=("net.0",), reason="a replay shows it"))
    output = words(ask)
    assert "KEEP_FP32=net.1" not in output, "a search has found another module"
    assert "step 30: first seen in net.1 (Gate), in the forward pass, as exp.default" in output


def test_an_event_file_that_cannot_be_read_costs_only_the_telemetry(
    ask: Ask, store: Store, folder: Path
) -> None:
    run = finished(store, 0.5, 100, **BY_DEFAULT)
    [attempt] = store.attempts(run.id)
    path = events_path(load_settings().home, attempt)
    path.mkdir(parents=True)
    output = ask("explain", "a").stdout
    assert "No telemetry  " in output
    assert "trained in FP16" in output


def test_an_agent_that_never_ran_is_not_an_error(ask: Ask, folder: Path, install_plugin) -> None:
    install_plugin("a")
    result = ask("explain", "a")
    assert result.exit_code == 0
    assert "not run yet" in result.stdout
    assert ask("explain", "a", "--json").stdout.strip() == '{\n  "agent": "a"\n}'
    assert not (folder / ".genesis").exists()


def test_a_checkpoint_removed_by_retention_is_named_with_the_reason(
    ask: Ask, store: Store, tripped: Run
) -> None:
    settings = load_settings().model_copy(update={"keep_runs": 1})

    def retain() -> None:
        retention = Retention(store, settings)
        for _ in range(3):
            retention.tick()

    weights = settings.home / "runs" / tripped.id / "best-epoch.pt"
    newest = settings.home / "runs" / finished(store, 0.5, 100, **BY_GUARD).id / "best-epoch.pt"
    for path in (weights, newest):
        path.parent.mkdir(parents=True)
        path.touch()
    retain()
    assert "step 90: /ck\n" in ask("explain", "a").stdout, "the guard's decision keeps it"
    store.guard.add(Decision(agent="a", state=GuardState.WATCHING, at=store.now()))
    retain()
    assert not weights.exists()
    output = words(ask)
    assert "step 90: /ck; removed on " in output
    assert "(GENESIS_KEEP_RUNS=1)" in output
    assert "GENESIS_KEEP_RUNS=1" in explained(ask)["weights_removed"]


def test_a_run_is_explained_after_its_folder_was_removed(
    ask: Ask, store: Store, tripped: Run
) -> None:
    settings = load_settings().model_copy(update={"keep_runs": 1})
    store.guard.add(Decision(agent="a", state=GuardState.WATCHING, at=store.now()))
    folder = settings.home / "runs" / tripped.id
    newest = settings.home / "runs" / finished(store, 0.5, 100, **BY_GUARD).id
    for path in (folder, newest):
        (path / "attempts").mkdir(parents=True)
        (path / "snapshot.json").touch()
    with closing(Store.open(settings, clock=lambda: time.time() + 91 * 86400)) as later:
        retention = Retention(later, settings, lambda: 0.0)  # never out of time
        for _ in range(3):
            retention.tick()
    assert [folder.exists(), newest.exists()] == [False, True]
    output = words(ask)
    assert "Run folder removed on " in output
    assert "step 90: /ck; removed with it" in output
    assert "All numbers" in output
    folder.mkdir()
    assert f"left in {folder.absolute()}, see run_files_not_removed" in words(ask)
    assert "GENESIS_KEEP_RUN_DAYS" in explained(ask)["folder_removed"]


def test_a_checkpoint_that_remains_of_a_removed_folder_is_shown(
    ask: Ask, store: Store, folder: Path
) -> None:
    run, left = finished(store, 0.5, 100, **BY_GUARD), folder / "left.pt"
    left.touch()
    guard = Guard(store, load_settings())
    guard.on_event("a", run.id, CheckpointSaved(step=9, path=str(left), size_bytes=1, seconds=0.1))
    guard.on_event("a", run.id, STORM)
    guard.refresh()
    store.record_folder_removed(run.id, "removed on a day")
    assert f"step 9: {left}\n" in ask("explain", "a").stdout
    left.unlink()
    assert f"step 9: {left}; removed with it\n" in ask("explain", "a").stdout


def test_a_trip_is_shown_with_its_numbers_and_how_to_undo_it(ask: Ask, tripped: Run) -> None:
    output = ask("explain", "a").stdout
    for said in (
        *(f"FP32 (run {tripped.id}, number 1, succeeded)", "FP16 was requested", "reason guard"),
        *("tripped since", "overflow_storm at", "60 of 100 steps overflowed (60%", "is 30%)"),
        *(f"run {tripped.id}, attempt 1, step 160", "Loss scale    4", "mul in encoder.0"),
        *("step 90: /ck", "(GENESIS_GUARD_REENABLE=manual)", "precision clear --guard a"),
    ):
        assert said in output
    [line] = [line for line in output.splitlines() if line.startswith("All numbers")]
    assert json.loads(Path(line.split()[-1]).read_text())["trigger"] == "overflow_storm"


def test_a_policys_other_half_type_is_explained_in_a_word(
    ask: Ask, store: Store, tripped: Run, folder: Path
) -> None:
    roles = dict.fromkeys((Role.POLICY, Role.ROLLOUT, Role.REFERENCE), "bf16")
    found = RungSearched(step=1, cause="half_type", half_type="bf16", roles=roles, reason="so")
    guard = Guard(store, load_settings())
    guard.on_event("a", tripped.id, found)
    guard.refresh()
    assert "What now BF16 in place of the other half type in every run until" in words(ask)
    (folder / ".env").write_text("GENESIS_GUARD_LADDER=false\n")
    assert "What now FP32 for all: GENESIS_GUARD_LADDER is false" in words(ask)


def test_an_automatic_return_is_shown(ask: Ask, tripped: Run, folder: Path) -> None:
    (folder / ".env").write_text("GENESIS_GUARD_REENABLE=auto\n")
    assert "half precision again" in ask("explain", "a").stdout
    (folder / ".env").write_text("GENESIS_GUARD_ENABLED=false\n")
    assert "GENESIS_GUARD_ENABLED is false" in ask("explain", "a").stdout


def test_a_guard_is_cleared_by_name_once_and_with_evidence(
    ask: Ask, tripped: Run, store: Store, folder: Path
) -> None:
    assert "a tripped since" in ask("show").stdout
    result = ask("clear", "--guard", "a", "--reason", "driver replaced")
    assert "on probation" in result.stdout
    assert "not tripped" in ask("clear", "--guard", "a").stdout
    last, first = store.guard.history("a")
    assert (last.state, last.reason, last.level) == ("probation", "driver replaced", 1)
    bundle = json.loads((folder / ".genesis" / last.evidence).read_text())
    assert bundle["actor"] == last.actor
    assert bundle["ends"]["trigger"] == first.trigger
    [change] = store.overrides.audit()
    assert (change.action, change.subject, change.reason) == ("guard clear", "a", "driver replaced")
    output = ask("explain", "a").stdout
    assert "probation since" in output
    assert f"{last.actor}: guard clear for a: driver" in output


def test_guard_and_override_are_cleared_one_at_a_time(ask: Ask) -> None:
    result = ask("clear", "--guard", "a", "--agent", "a")
    assert result.exit_code == 2
    assert "not both" in result.output


def test_half_precision_and_fp32_are_compared(ask: Ask, store: Store) -> None:
    for metric in (0.5, 0.7):
        finished(store, metric, 100, **BY_DEFAULT)
    finished(store, 0.4, 0, **{**BY_GUARD, "reason": "canary"})
    finished(store, 0.6, 50, **BY_DEFAULT)
    finished(store, None, 95, **BY_DEFAULT)
    output = [line.split() for line in ask("explain", "a").stdout.splitlines()]
    [half, fp32, mixed] = [line for line in output if line and line[0] in ("half", "fp32", "mixed")]
    assert half[:5] == ["half", "3", "0.6", "0.5", "0.7"]
    assert half[5:] == ["#5", "not", "finite,", "#2", "0.7,", "#1", "0.5"]
    assert fp32[:3] == ["fp32", "1", "0.4"]
    assert mixed[:3] == ["mixed", "1", "0.6"]
    precisions = [outcome["precision"] for outcome in explained(ask)["outcomes"]]
    assert precisions == ["half", "mixed", "fp32", "half", "half"]


def test_the_value_that_was_published_is_shown_and_named(ask: Ask, store: Store) -> None:
    """The model published may be an ensemble; its metric then differs from the network's."""
    run = store.enqueue("a", first_seed=0)
    summary = RunSummary(
        published=True,
        metrics={"nll_skill": 0.030},
        primary_metric="nll_skill",
        primary_value=-0.035,
        higher_is_better=True,
        steps=100,
        half_steps=100,
        precision=BY_DEFAULT,
    )
    store.update_summary(run.id, summary)
    attempt = store.begin_attempt(run.id, run.id)
    done = RunTransition(state=RunState.SUCCEEDED)
    store.end_attempt(attempt, Ending(exit_code=0), done, finished_at=store.now())
    output = words(ask)
    assert "#1 published 0.03 (-0.035)" in output
    assert "network alone" in output
    [outcome] = explained(ask)["outcomes"]
    assert (outcome["value"], outcome["decided_value"]) == (-0.035, 0.030)


def test_overrides_and_the_audit_trail_are_shown(ask: Ask, tripped: Run, install_plugin) -> None:
    install_plugin("a")
    ask("set", "bf16", "--agent", "a", "--next-run", "--for", "2h", "--reason", "try it")
    output = ask("explain", "a").stdout
    assert re.search("bf16 for a until .*runs begun since", words(ask))
    assert "precision set for a: try it" in output


def test_an_override_for_the_next_run_is_stored_as_such(ask: Ask, store: Store) -> None:
    output = ask("set", "fp32", "--next-run", "--reason", "x").stdout
    assert "fp32 for all agents, in runs" in output
    assert [override.next_run for override in store.overrides.in_force()] == [True]
    ask("set", "fp32", "--now", "--reason", "x")
    assert [override.next_run for override in store.overrides.in_force()] == [False]


def test_only_what_concerns_the_agent_is_shown(
    ask: Ask, store: Store, tripped: Run, install_plugin
) -> None:
    install_plugin("a")
    install_plugin("b")
    ask("set", "fp32", "--agent", "b", "--reason", "for b")
    ask("set", "bf16", "--reason", "everyone")
    store.enqueue("a", first_seed=1)  # nobody has acknowledged anything in that one
    output = ask("explain", "a").stdout
    assert "for b" not in output
    assert output.count("everyone") == 2, "the override, and that it was said"
    assert f"FP32 (run {tripped.id}, number 1, succeeded)" in output
    assert re.search(r"^decided +state +trigger +trips", output, re.MULTILINE)


def test_without_a_trip_there_is_nothing_to_undo(ask: Ask, store: Store) -> None:
    finished(store, 0.5, 100, **BY_DEFAULT)
    output = ask("explain", "a").stdout
    assert "FP16 (run " in output
    assert "GENESIS_PRECISION chose it (reason default)" in output
    assert "no decision yet" in output
    for absent in ("was requested", "How to undo", "Last trip"):
        assert absent not in output


@pytest.mark.process
def test_probation_and_the_last_loss_scales_are_shown(ask: Ask, store: Store, folder: Path) -> None:
    run = finished(store, 0.5, 100, **BY_GUARD)
    guard = Guard(store, load_settings())
    for number in range(12):
        event = STORM.model_copy(update={"applied": 1, "overflow": 0, "loss_scale": 2.0**number})
        guard.on_event("a", run.id, event)
    guard.on_event("a", run.id, STORM)
    guard.refresh()
    assert " 32 -> 64 -> 128 -> 256 -> 512 -> 1024 -> 2048 -> 4 " in words(ask)
    ask("clear", "--guard", "a", "--reason", "replaced")
    output = ask("explain", "a").stdout
    assert "half precision on probation" in output
    assert "How to undo" not in output
    assert "Last trip     overflow_storm" in output
    (folder / ".env").write_text("GENESIS_GUARD_ENABLED=false\n")
    assert "GENESIS_GUARD_ENABLED is false" in ask("explain", "a").stdout


@pytest.mark.process
def test_long_histories_are_cut(ask: Ask, store: Store, tripped: Run, install_plugin) -> None:
    install_plugin("a")
    for number in range(5):
        ask("set", "fp32", "--agent", "a", "--reason", f"word {number}")
    for number in range(12):
        store.guard.add(Decision(agent="a", state=GuardState.WATCHING, at=1e9 + number))
    output = ask("explain", "a").stdout
    assert output.count("By hand") == 3
    assert len(re.findall(r"^2001-09-09 01:46:\d\dZ +watching", output, re.MULTILINE)) == 8


def test_runs_whose_metric_is_not_finite_are_counted(ask: Ask, store: Store) -> None:
    for _ in range(2):
        finished(store, math.nan, 100, **BY_DEFAULT)
    output = ask("explain", "a").stdout
    assert re.search(r"^half +2 +not finite +not finite +not finite", output, re.MULTILINE)


def test_the_roles_of_a_policy_job_are_shown(ask: Ask, store: Store) -> None:
    finished(store, 0.5, 100, **BY_DEFAULT, roles="policy:fp32/fp16/fp32,rollout:fp32/fp32/fp32")
    shown = "policy:fp32/fp16/fp32 rollout:fp32/fp32/fp32"
    assert f"Roles         {shown} (store/compute/out)" in ask("explain", "a").stdout
    assert f"roles of a: {shown}" in ask("show").stdout
