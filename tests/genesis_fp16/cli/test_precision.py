"""``genesis-fp16 precision``, also with damaged rows and files, wrong names and concurrent use."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from genesis_fp16.cli.app import app
from genesis_fp16.domain.guard import Decision, GuardState, Trigger
from genesis_fp16.guard.evidence import write_evidence
from genesis_fp16.settings import load_settings
from genesis_fp16.store import Store
from tests.preloaded import ForkedPopen

PROGRAM = Path(sys.executable).with_name("genesis-fp16")
TRIPPED = Decision(
    agent="a", state=GuardState.TRIPPED, at=1e9, trigger=Trigger.UNDERFLOW, until=2e9, reason="lost"
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
PARTS = ("attempt", "statistics", "offending_modules", "checkpoint", "numbers", "step", "path")
BUNDLES = ANY_JSON | st.dictionaries(st.sampled_from(PARTS), ANY_JSON)


pytestmark = pytest.mark.usefixtures("folder")


def ask(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["precision", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def ask_json(*arguments: str) -> object:
    result = ask(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def bundle(store: Store) -> Path:
    """The evidence of a trip of the agent a."""
    home = load_settings().home
    written = write_evidence(home, TRIPPED, {})
    store.guard.add(written)
    return home.absolute() / written.evidence


@pytest.fixture
def database(store: Store) -> Iterator[sqlite3.Connection]:
    """The same database, written by somebody else."""
    with closing(sqlite3.connect(load_settings().home / "genesis.db")) as database:
        database.isolation_level = None
        yield database


@pytest.mark.process
@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(content=BUNDLES)
def test_malformed_evidence_does_not_hide_the_rest(bundle: Path, content: object) -> None:
    bundle.write_text(json.dumps(content))
    result = ask("explain", "a")
    assert result.exit_code == 0
    assert "underflow at" in result.stdout
    assert ("All numbers" in result.stdout) != (f"{bundle} cannot be read: " in result.stdout)
    answer = json.loads(ask("explain", "a", "--json").stdout, parse_constant=pytest.fail)
    assert (answer["evidence"] is None) == bool(answer["evidence_trouble"])


def test_missing_evidence_is_named(bundle: Path) -> None:
    bundle.unlink()
    os.mkfifo(bundle)
    result = ask("explain", "a").stdout
    assert f"{bundle} cannot be read: not a regular file" in result
    assert "precision clear --guard a" in result


@pytest.mark.process
@pytest.mark.parametrize("at", [1e18, -1e18, 9e999])
def test_a_row_with_an_invalid_time_does_not_hide_the_others(
    bundle: Path, database: sqlite3.Connection, at: float, install_plugin
) -> None:
    install_plugin("a")
    for reason in ("first", "second"):
        assert ask("set", "fp32", "--agent", "a", "--next-run", "--reason", reason).exit_code == 0
    for table, column in (("guard_decisions", "at"), ("overrides", "created_at"), ("audit", "at")):
        oldest = f"id = (SELECT min(id) FROM {table})"
        database.execute(f'UPDATE {table} SET "{column}" = ? WHERE {oldest}', (at,))
    for command in (["show"], ["explain", "a"]):
        result = ask(*command)
        assert result.exit_code == 0
        assert "unreadable time" in result.stdout
        assert "second" in result.stdout
        json.loads(ask(*command, "--json").stdout, parse_constant=pytest.fail)
    assert "on probation" in ask("clear", "--guard", "a").stdout


def test_unreadable_overrides_demand_fp32_and_are_reported_on_stderr(
    database: sqlite3.Connection, install_plugin
) -> None:
    install_plugin("a")
    for reason in ("first", "second", "third"):
        ask("set", "fp32", "--agent", "a", "--next-run", "--reason", reason)
    database.execute("UPDATE overrides SET precision = 'fp8' WHERE reason = 'first'")
    database.execute("UPDATE overrides SET created_at = 'noon' WHERE reason = 'second'")
    result = ask("show", "--json")
    overrides = json.loads(result.stdout)["overrides"]
    assert [
        override["reason"] for override in overrides if "cannot be read" not in override["reason"]
    ] == ["third"]
    said = " ".join(ask("show").stdout.split())
    for number, reason in enumerate(("first", "second"), start=1):
        assert f"override {number} cannot be read; correct or clear it ({reason})" in said
    assert result.stderr.count("row_unreadable") == 2


def test_an_unknown_agent_is_refused_with_a_suggestion(install_plugin) -> None:
    install_plugin("pendulum")
    for arguments in (
        ["explain", "pendulom"],
        ["clear", "--guard", "pendulom"],
        ["clear", "--agent", "pendulom"],
        ["set", "fp32", "--reason", "x", "--agent", "pendulom"],
    ):
        result = ask(*arguments)
        assert result.exit_code == 2
        said = " ".join(result.output.replace("│", " ").split())
        assert "'pendulom'; did you mean pendulum? " in said
        assert "pendulum" in said.partition("did you mean pendulum?")[2]
    assert ask("explain", "pendulum").exit_code == 0
    assert ask("clear", "--guard", "pendulum").exit_code == 0


@pytest.mark.process
@pytest.mark.parametrize("name", ["", " ", "A", "ä\u202e", "\udcff", "x" * 10_000, "a\x1b[2J"])
def test_a_malformed_name_is_refused(name: str, folder: Path) -> None:
    for arguments in (["explain", name], ["clear", "--guard", name], ["clear", "--agent", name]):
        result = ask(*arguments)
        assert result.exit_code == 2
        assert "no agent" in result.output
        assert "\x1b[2J" not in result.output
        assert len(result.output) < 2000
    assert not (folder / ".genesis").exists()


def test_an_uninstalled_agent_can_be_explained_and_cleared(
    bundle: Path, database: sqlite3.Connection, install_plugin
) -> None:
    install_plugin("b")
    ask("set", "fp32", "--agent", "b", "--reason", "x")
    database.execute("UPDATE overrides SET agent = 'gone'")
    assert "tripped since" in ask("explain", "a").stdout
    assert "mean gone?" in " ".join(ask("explain", "gond").output.split())
    assert "cleared for gone" in ask("clear", "--agent", "gone").stdout
    assert "on probation" in ask("clear", "--guard", "a").stdout


def test_overrides_of_an_agent_that_never_ran_are_shown(install_plugin) -> None:
    install_plugin("a")
    ask("set", "fp32", "--agent", "a", "--reason", "not yet")
    ask("set", "bf16", "--reason", "for all")
    result = ask("explain", "a").stdout
    assert "not run yet" in result
    assert "fp32 for a," in result
    assert "bf16 for all agents" in result
    assert "for a: not yet" in result


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1.5h", 5400), ("1d12h", 129600), (" 2h30m ", 9000)]
)
def test_a_duration_may_have_several_parts(text: str, seconds: float) -> None:
    result = json.loads(ask("set", "fp32", "--reason", "x", "--for", text, "--json").stdout)
    assert result["expires_at"] - result["created_at"] == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "12h1d", "1h1h", "5", "-5h", "1e3h", "0.5s", "nan s", "inf", "9" * 500 + "d", "٣h"]
)
def test_a_malformed_duration_is_refused(text: str, folder: Path) -> None:
    assert ask("set", "fp32", "--reason", "x", "--for", text).exit_code == 2
    assert not (folder / ".genesis").exists()


def start(
    *arguments: str, popen: type[subprocess.Popen[str]] = ForkedPopen
) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return popen([PROGRAM, "precision", *arguments], stdout=pipe, stderr=pipe, text=True)


@pytest.mark.process
def test_a_locked_database_ends_every_change_with_a_message(
    bundle: Path, database: sqlite3.Connection, install_plugin
) -> None:
    install_plugin("a")
    ask("set", "fp32", "--reason", "stays")
    database.execute("BEGIN IMMEDIATE")
    changes = [
        start("set", "fp16", "--reason", "x", popen=subprocess.Popen),  # as an operator does
        start("clear"),
        start("clear", "--guard", "a"),
    ]
    assert "stays" in ask("show").stdout
    for change in changes:
        output, error = change.communicate(timeout=300)
        assert (change.returncode, output) == (65, "")
        assert "database is locked" in error
        assert "Traceback" not in error
    database.execute("ROLLBACK")
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name], "nothing was cleared"
    assert "tripped" in ask("show").stdout
    assert "stays" in ask("show").stdout


@pytest.mark.process
def test_of_concurrent_overrides_one_is_in_force_and_all_are_audited(store: Store) -> None:
    commands = [start("set", "fp32", "--reason", f"command {n}") for n in range(8)]
    assert [command.communicate(timeout=300)[1] for command in commands] == [""] * 8
    assert len(store.overrides.in_force()) == 1
    assert len(store.overrides.audit()) == 8


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


@pytest.mark.process
def test_a_killed_command_has_stored_all_or_nothing(store: Store) -> None:
    for n in range(6):
        command = start("set", "fp32", "--next-run", "--reason", f"command {n}")
        while command.poll() is None and cpu_seconds(command) < 0.02 * n:  # the last may end first
            time.sleep(0.001)
        command.send_signal(signal.SIGKILL)
        command.communicate(timeout=300)
        assert len(store.overrides.in_force()) == len(store.overrides.audit())
    assert ask("set", "fp32", "--reason", "last").exit_code == 0


def test_override_is_set_shown_audited_and_cleared(
    install_plugin: Callable[..., None],
) -> None:
    install_plugin("fine")
    result = ask("set", "fp32", "--reason", "odd loss", "--for", "2h")
    assert result.exit_code == 0, result.output
    assert "fp32 for all agents" in result.stdout
    ask_json("set", "bf16", "--agent", "fine", "--reason", "try it")
    for_all, for_one = ask_json("show")["overrides"]
    assert (for_all["agent"], for_all["precision"], for_all["reason"]) == (None, "fp32", "odd loss")
    assert for_all["expires_at"] - for_all["created_at"] == 7200
    assert (for_one["agent"], for_one["expires_at"]) == ("fine", None)
    assert "by " + for_all["actor"] in ask().stdout
    cleared = ask_json("clear", "--reason", "it was the data")
    assert cleared == {"agent": None, "cleared": True}
    assert len(ask_json()["overrides"]) == 1
    with closing(Store.open(load_settings())) as store:
        trail = [(change.action, change.reason) for change in store.overrides.audit()]
    assert trail == [
        ("precision clear", "it was the data"),
        ("precision set", "try it"),
        ("precision set", "odd loss"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set", "fp8", "--reason", "x"], "one of fp32, fp16, bf16, auto, got 'fp8'"),
        (["set", "fp32"], "--reason"),
        (["set", "fp32", "--reason", "  "], "reason"),
        (["set", "fp32", "--reason", "x", "--for", "soon"], "got 'soon'"),
        (["set", "fp32", "--reason", "x", "--for", "3000000d"], "ten years"),
        (["set", "fp32", "--reason", "x", "--for", "9" * 400 + "d"], "ten years"),
        (["set", "fp32", "--reason", "x", "--agent", "nobody"], "'nobody'"),
    ],
)
def test_wrong_override_is_refused(arguments: list[str], said: str) -> None:
    result = ask(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert not Path(".genesis").exists()


def test_a_reason_is_one_plain_line() -> None:
    reason = "odd\n\x1b[31mloss\r" + "!" * 900
    assert ask("set", "fp32", "--reason", reason).exit_code == 0
    [override] = ask_json()["overrides"]
    assert override["reason"].startswith("odd loss!!")
    assert len(override["reason"]) <= 500


def test_a_flag_that_outranks_an_override_is_shown(folder: Path) -> None:
    (folder / ".env").write_text("ENABLE_FP16_TRAINING=false\n")
    result = ask("set", "fp16", "--reason", "x")
    assert "FP32 stays" in result.stderr
    assert "FP32 for all (.env line 1)" in ask().stdout


def test_presets_of_agents_are_shown(folder: Path) -> None:
    (folder / ".env").write_text("GENESIS_AGENTS__A_B__ROLE_PRECISION=flowrl_fp16\n")
    assert "a-b: flowrl_fp16, by its ROLE_PRECISION" in ask("show").stdout
    assert ask_json("show")["role_precisions"] == {"a-b": "flowrl_fp16"}


def test_half_precision_for_all_names_the_runs_that_stay_in_fp32(install_plugin) -> None:
    install_plugin("a")
    exception = "fell back to FP32 by itself stays in FP32 until it ends"
    assert exception in ask("set", "fp16", "--reason", "x").stdout
    for arguments in (("fp16", "--agent", "a"), ("fp32",), ("bf16", "--next-run")):
        assert exception not in ask("set", *arguments, "--reason", "x").stdout
