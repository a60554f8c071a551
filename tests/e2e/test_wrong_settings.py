"""Each wrong setting is named with its source and the remedy, and nothing starts."""

import pytest

pytestmark = pytest.mark.e2e

EX_CONFIG = 78


@pytest.mark.parametrize("command", [["serve"], ["agents"], ["config", "show"], ["run", "quick"]])
def test_all_are_named_at_once(make_daemon, command: list[str]) -> None:
    daemon = make_daemon()
    daemon.configure(
        GENESIS_SLOTS="many", FP16_GROWTH_FACTOR=0.5, GENESIS_METRIC_PORT=1, PATH_OF_OTHERS="x"
    )
    done = daemon.cli(*command)
    assert done.returncode == EX_CONFIG
    said = done.stdout + done.stderr
    lines = (daemon.folder / ".env").read_text().splitlines()
    number = lines.index("GENESIS_SLOTS=many") + 1
    assert f"GENESIS_SLOTS=many (.env line {number})" in said
    assert "GENESIS_SLOTS=1" in said
    assert f"FP16_GROWTH_FACTOR=0.5 (.env line {number + 1})" in said
    assert "2 settings are wrong" in said, "an unknown name is ignored, with a warning"
    assert "PATH_OF_OTHERS" not in said
    assert "Traceback" not in said


def test_a_wrong_setting_of_an_agent_costs_that_agent_only(daemon) -> None:
    daemon.configure(GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS="several")
    daemon.start()
    daemon.wait_for(lambda: "plugins_probed" in daemon.log, "to have probed all agents")
    assert daemon.metrics().labels("genesis_plugin_up", agent="quick") == []
    quick = next(agent for agent in daemon.json("agents") if agent["name"] == "quick")
    assert quick["state"] == "quarantined"
    assert "GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS=several" in quick["reason"]
    assert quick["reason"] in daemon.log
    assert daemon.get("/healthz")[0] == 200
