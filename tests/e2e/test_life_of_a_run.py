"""From start to a published model, everything an operator can ask, and a clean stop."""

import getpass
import math
import sqlite3
import time
from contextlib import closing

import pytest

from tests.patience import crowding

pytestmark = pytest.mark.e2e


@pytest.fixture
def published(shared_daemon):
    """A daemon whose quick agent has published, in FP32, as on any CPU."""
    if shared_daemon.process is None:
        shared_daemon.configure(GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS=40)
        shared_daemon.start()
        shared_daemon.wait_for(
            lambda: shared_daemon.metrics().value("genesis_runs_total", result="succeeded") > 0,
            "to succeed",
        )
    return shared_daemon


def test_every_question_has_a_json_answer(published) -> None:
    agents = {agent["name"]: agent for agent in published.json("agents")}
    assert agents["quick"]["state"] == "ready"
    assert agents["se-darwin"]["state"] == "disabled"

    runs = published.json("runs")
    succeeded = [run for run in runs if run["state"] == "succeeded"]
    assert {run["agent"] for run in runs} == {"quick"}
    shown = published.json("runs", "show", succeeded[0]["id"])
    assert shown["id"] == succeeded[0]["id"]
    assert len(shown["attempts"]) == 1

    assert published.cli("doctor", "--json").returncode == 0
    settings = {row["name"]: row for row in published.json("config", "show")}
    assert settings["GENESIS_CHECKPOINT_INTERVAL_SECONDS"]["source"] == ".env line 4"
    assert settings["GENESIS_SLOTS"]["source"] == "default"


def test_a_run_asked_of_a_daemon(published) -> None:
    """A daemon serves: it runs what the command asks for, and the command follows."""
    before = published.metrics().value("genesis_runs_total", result="succeeded")
    done = published.cli("run", "quick")
    assert done.returncode == 0, done.stdout + done.stderr
    succeeded = [run for run in published.json("runs") if run["state"] == "succeeded"]
    assert len(succeeded) == before + 1
    assert published.metrics().value("genesis_runs_total", result="succeeded") == before + 1
    with closing(sqlite3.connect(published.home / "genesis.db")) as database:
        [asked] = database.execute("SELECT actor, subject FROM audit WHERE action = 'run'")
    assert asked == (getpass.getuser(), "quick")


def test_a_run_and_everything_it_shows(published) -> None:
    metrics = published.metrics()
    assert metrics.value("genesis_plugin_up", agent="quick") == 1
    assert metrics.value("genesis_training_steps_total", agent="quick", outcome="applied") >= 800
    assert metrics.value("genesis_fp16_training_steps_total", agent="quick") == 0
    assert metrics.value("genesis_training_samples_total", agent="quick") >= 800 * 32
    assert 0 < metrics.value("genesis_training_loss", agent="quick") < 0.5
    assert metrics.value("genesis_training_step_duration_seconds_count", agent="quick") > 0
    assert metrics.value("genesis_last_success_timestamp_seconds", agent="quick") <= time.time()
    assert metrics.value("genesis_config_reload_success") == 1
    assert metrics.value("genesis_leader") == 1
    assert time.time() - metrics.value("genesis_loop_last_tick_timestamp_seconds") < 10
    assert metrics.labels("genesis_precision_info", agent="quick") == [
        {
            "agent": "quick",
            "requested": "fp16",
            "effective": "fp32",
            "reason": "no_accelerator",
        }
    ]

    decision = published.events("published")[0]
    assert decision.published
    assert decision.metrics["mse"] < 0.5
    assert published.get("/healthz")[0] == 200
    assert published.get("/readyz")[0] == 200
    assert published.get("/no-such-page")[0] == 404

    code, seconds = published.stop()
    assert code == 0
    assert seconds < 10 * crowding()


def test_a_run_in_the_foreground(daemon) -> None:
    """No daemon serves: the command runs it itself, and says how it went."""
    done = daemon.cli("run", "quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [run["state"] for run in daemon.json("runs")] == ["succeeded"]
    assert math.isnan(daemon.metrics().value("genesis_leader"))
