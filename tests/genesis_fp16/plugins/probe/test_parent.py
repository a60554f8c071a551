"""Broken agents are really broken: installed distributions, probed in real child processes."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from genesis_fp16.plugins.probe import HardwareProbeError, Plugin, probe_agents, probe_hardware
from genesis_fp16.settings import AgentSettings, Settings
from infrastructure.agent_contract import Schedule
from tests.patience import crowding, gone, wait_until

pytestmark = pytest.mark.usefixtures("forked")

BUILT_IN_OFF = {"se_darwin": AgentSettings(enabled=False)}


def load(deadline: float = 20.0, **agents: AgentSettings) -> dict[str, Plugin]:
    settings = Settings(probe_timeout_seconds=deadline, agents={**BUILT_IN_OFF, **agents})
    return {plugin.name: plugin for plugin in probe_agents(settings, {})}


def test_good_plugin_is_ready(install_plugin: Callable[..., None]) -> None:
    install_plugin("fine")
    plugin = load()["fine"]
    assert (plugin.state, plugin.reason) == ("ready", "")
    assert (plugin.distribution, plugin.version) == ("fine-plugin", "1.5")
    assert plugin.schedule == Schedule(every_seconds=3600)
    assert plugin.settings_schema is None
    assert "fine_plugin" not in sys.modules


def test_a_long_name_is_cut_and_quarantined(
    install_plugin: Callable[..., None],
) -> None:
    install_plugin("a" * 200, distribution="long", factory="AnyAgent")
    [plugin] = (plugin for plugin in load().values() if plugin.distribution == "long")
    assert plugin.name == "a" * 63 + "…"
    assert plugin.state == "quarantined"
    assert "must match" in plugin.reason
    assert len(plugin.reason) < 200


def test_plugin_that_prints_does_not_garble_the_answer(
    install_plugin: Callable[..., None], any_agent: Callable[[str], str]
) -> None:
    install_plugin("chatty", "print('{}' * 9999)\n" + any_agent("chatty"))
    assert load()["chatty"].state == "ready"


BROKEN = {
    "raises": ("raise RuntimeError('no\\nluck')", "RuntimeError: no luck (raises_plugin.py:1)"),
    "exits": ("import sys; sys.exit(0)", "called sys.exit(0)"),
    "interrupts": ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    "quits": ("import os; os._exit(0)", "status 0"),
    "needs-more": ("import no_such_dependency", "the module 'no_such_dependency'"),
    "no-factory": ("x = 1", "no_factory_plugin:AnyAgent does not exist"),
    "bad-syntax": ("def", "SyntaxError"),
    "newer": (
        "class AnyAgent:\n    contract_version = 2\n    name = 'newer'",
        "contract 2",
    ),
    "no-agent": ("AnyAgent = dict", "lacks name, contract_version"),
}


def test_each_broken_plugin_is_quarantined_with_its_reason(
    install_plugin: Callable[..., None],
) -> None:
    for name, (source, _) in BROKEN.items():
        install_plugin(name, source)
    install_plugin("fine")
    plugins = load()
    assert plugins["fine"].state == "ready"
    for name, (_, reason) in BROKEN.items():
        assert plugins[name].state == "quarantined", name
        assert reason in plugins[name].reason
        assert "\n" not in plugins[name].reason
    assert "no\nluck" in plugins["raises"].detail
    assert "crashes_plugin.py" in plugins["crashes"].detail
    assert "crashes_plugin.py:1 in <module>" in plugins["crashes"].reason


def test_a_hanging_plugin_is_killed_with_its_children(
    install_plugin: Callable[..., None], tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    install_plugin(
        "hangs",
        f"""
        import subprocess, time
        children = [
            subprocess.Popen(["sleep", "600"], start_new_session=own) for own in (False, True)
        ]
        open({str(pid_file)!r}, "w").write(" ".join(str(child.pid) for child in children))
        while True:
            time.sleep(1)
        """,
    )
    install_plugin(
        "floods",
        """
        import os, threading, time
        def flood():
            while True:
                os.write(1, b"x" * 4096)
                time.sleep(0.0005)
        threading.Thread(target=flood, daemon=True).start()
        os.dup2(1, 2)
        time.sleep(600)
        """,
    )
    install_plugin("mute", "import os, time\nos.close(1)\nos.close(2)\ntime.sleep(600)")
    seconds = round(3 * crowding())  # in which each has begun to hang
    plugins = load(deadline=seconds)
    assert "floods_plugin.py:9 in <module>" in plugins["floods"].reason
    assert "mute_plugin.py:4 in <module>" in plugins["mute"].reason
    plugin = plugins["hangs"]
    assert plugin.state == "quarantined"
    expected = f"did not load within {seconds} s, it hung at hangs_plugin.py:8 in <module>"
    assert expected in plugin.reason
    assert "hangs_plugin.py" in plugin.detail
    pids = [int(pid) for pid in pid_file.read_text().split()]
    wait_until(lambda: all(gone(pid) for pid in pids), "the end of its children")


def edited(agent: str, old: str, new: str) -> str:
    assert old in agent
    return agent.replace(old, new)


def test_agent_that_breaks_the_contract_is_quarantined(
    install_plugin: Callable[..., None], any_agent: Callable[[str], str]
) -> None:
    install_plugin("wrong-name", any_agent("another-name"))
    install_plugin("old", edited(any_agent("old"), "contract_version = 1", "contract_version = 0"))
    install_plugin(
        "timeless", edited(any_agent("timeless"), "Schedule(every_seconds=3600)", "'hourly'")
    )
    install_plugin("never", edited(any_agent("never"), "every_seconds=3600", "cron='99 0 * * *'"))
    install_plugin("Upper", any_agent("Upper"))
    plugins = load()
    assert "is named 'another-name'" in plugins["wrong-name"].reason
    assert "contract 0" in plugins["old"].reason
    assert "schedule() returned 'hourly'" in plugins["timeless"].reason
    assert "must match" in plugins["Upper"].reason
    assert "schedule() is invalid" in plugins["never"].reason
    names = ("wrong-name", "old", "timeless", "never", "Upper")
    assert {plugins[name].state for name in names} == {"quarantined"}


def test_the_operators_settings_are_validated_by_the_agents_model(
    install_plugin: Callable[..., None], any_agent: Callable[[str], str]
) -> None:
    model = (
        "import pydantic\n\nclass Knobs(pydantic.BaseModel, extra='forbid'):\n    depth: int = 3\n"
    )
    for name in ("tuned", "mistuned", "misspelt"):
        source = model + any_agent(name)
        install_plugin(name, edited(source, "return None", "return Knobs"))
    install_plugin("knobless")
    plugins = load(
        tuned=AgentSettings(settings={"depth": "7"}),
        mistuned=AgentSettings(settings={"depth": "deep"}),
        misspelt=AgentSettings(settings={"deep": "7"}),
        knobless=AgentSettings(settings={"depth": "7"}),
    )
    assert plugins["tuned"].state == "ready"
    schema = plugins["tuned"].settings_schema
    assert schema is not None
    assert "depth" in json.dumps(schema["properties"])
    assert "GENESIS_AGENTS__MISTUNED__SETTINGS__DEPTH=deep" in plugins["mistuned"].reason
    assert "SETTINGS__DEEP: " in plugins["misspelt"].reason
    assert "there are DEPTH" in plugins["misspelt"].reason
    assert "delete GENESIS_AGENTS__KNOBLESS__SETTINGS__DEPTH" in plugins["knobless"].reason


def test_name_of_two_distributions_quarantines_both(install_plugin: Callable[..., None]) -> None:
    install_plugin("twin", distribution="first")
    install_plugin("twin", distribution="second")
    settings = Settings(agents=BUILT_IN_OFF)
    twins = [plugin for plugin in probe_agents(settings, {}) if plugin.name == "twin"]
    assert [plugin.state for plugin in twins] == ["quarantined", "quarantined"]
    assert all("first and second both" in plugin.reason for plugin in twins)


def test_an_optional_agent_is_off_until_it_is_turned_on_and_never_quarantined(
    install_plugin: Callable[..., None], tmp_path: Path
) -> None:
    install_plugin("two-part", group="genesis.optional_agents")

    def load(enabled: bool | None) -> Plugin:
        agents = {**BUILT_IN_OFF, "two_part": AgentSettings(enabled=enabled)}
        (plugin,) = probe_agents(Settings(agents=agents), {}, only="two-part")
        return plugin

    variable = "GENESIS_AGENTS__TWO_PART__ENABLED=true"
    off = load(None)
    assert off.state == "disabled"
    assert f"set {variable}" in off.reason
    assert load(False).reason == "disabled by the operator"
    assert load(True).state == "ready"

    info = tmp_path / "site" / "two_part_plugin-1.5.dist-info"
    points = (info / "entry_points.txt").read_text().strip()
    (info / "entry_points.txt").write_text(f"{points} [all]\n")
    with (info / "METADATA").open("a") as metadata:
        metadata.write("Requires-Dist: no-such-thing ; extra == 'all'\n")
    install = "pip install 'two-part-plugin[all]'"
    assert f"run {install}, set {variable}" in load(None).reason
    missing = load(True)
    assert missing.state == "disabled"
    assert re.match(f"needs no-such-thing.*{re.escape(install)}$", missing.reason)


def test_disabled_agent_is_not_loaded(install_plugin: Callable[..., None], tmp_path: Path) -> None:
    witness = tmp_path / "imported"
    install_plugin("idle", f"open({str(witness)!r}, 'w')")
    assert load(idle=AgentSettings(enabled=False))["idle"].state == "disabled"
    assert not witness.exists()


def test_module_from_elsewhere_is_shadowed(
    install_plugin: Callable[..., None],
    any_agent: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_plugin("hidden")
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    (elsewhere / "hidden_plugin.py").write_text(any_agent("hidden"))
    monkeypatch.setenv("PYTHONPATH", str(elsewhere), prepend=os.pathsep)
    assert "is shadowed" in load()["hidden"].reason


def test_torch_describes_the_hardware_in_a_child() -> None:
    hardware = probe_hardware(Settings(device="cpu"))
    assert (hardware.device, hardware.fp16, hardware.bf16) == ("cpu", False, False)
    assert hardware.torch_version


def test_missing_device_names_the_remedy() -> None:
    with pytest.raises(HardwareProbeError, match=r"cuda:99.*GENESIS_DEVICE=auto"):
        probe_hardware(Settings(device="cuda:99"))


def test_the_reason_is_clean_and_bounded(install_plugin: Callable[..., None]) -> None:
    install_plugin("loud", "raise RuntimeError('\\x1b[31m' + 'x' * 50_000)")
    install_plugin("dead", "import os; print('\\x1b[2Jgone', flush=True); os._exit(3)")
    plugins = load()
    assert "\x1b" not in plugins["loud"].reason + plugins["loud"].detail + plugins["dead"].detail
    assert len(plugins["loud"].reason) <= 400
    assert len(plugins["loud"].detail) <= 2000
    assert "gone" in plugins["dead"].detail
