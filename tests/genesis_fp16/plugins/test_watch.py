"""Distributions come and go in a real folder, and are probed in real child processes."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from genesis_fp16.plugins.probe import HardwareProbeError, Plugin
from genesis_fp16.plugins.probe.results_file import read_results
from genesis_fp16.plugins.watch import REMOVAL_GRACE_SECONDS, RETRY_SECONDS, PluginWatch
from genesis_fp16.settings import AgentSettings, Settings
from tests.patience import crowding
from tests.preloaded import PlainPopen

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forked")]

BUILT_IN_OFF = {"se_darwin": AgentSettings(enabled=False)}


class Watched:
    """A watch with a clock that a test moves, and the news it has given so far."""

    def __init__(self, until: Callable[..., None], folder: Path, **settings: object) -> None:
        self.settings = Settings(
            home=folder / "home", device="cpu", agents=BUILT_IN_OFF, **settings
        )
        self.settings.home.mkdir(exist_ok=True)
        self.ahead, self.news, self.until = 0.0, [], until
        self.watch = PluginWatch(self.settings, lambda: time.monotonic() + self.ahead)
        self.watch.start(probe_device=False)

    def latest(self, name: str) -> Plugin | None:
        while (plugin := self.watch.take()) is not None:
            self.news.append(plugin)
        return next((plugin for plugin in reversed(self.news) if plugin.name == name), None)

    def wait_for(self, name: str, state: str, version: str = "1.5") -> Plugin:
        def there() -> bool:
            plugin = self.latest(name)
            return plugin is not None and (plugin.state, plugin.version) == (state, version)

        self.until(there, f"{name} to be {state}: {self.news}")
        return self.latest(name)

    def wait_for_end_of_scan(self, since: float = 0.0) -> None:
        self.until(lambda: self.watch.scanned_at > since, "the end of the scan")


@pytest.fixture
def start(until, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    started: list[Watched] = []

    def start(**settings: object) -> Watched:
        started.append(Watched(until, tmp_path, **settings))
        return started[-1]

    yield start
    for watched in started:
        watched.watch.close()


def metadata(site: Path, name: str) -> Path:
    [folder] = site.glob(f"{name}_plugin-*.dist-info")
    return folder


def test_agents_are_installed_upgraded_mended_and_removed(
    start, install_plugin, any_agent, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    install_plugin("good")
    install_plugin("broken", "raise RuntimeError('worn out')")
    watched = start()
    watched.wait_for("good", "ready")
    assert "worn out" in watched.wait_for("broken", "quarantined").reason
    watched.wait_for_end_of_scan()
    assert watched.watch.absent("good") == ""
    assert watched.watch.absent("nosuch") == "", "an upgrade may be under way"
    assert watched.latest("se-darwin").state == "disabled"

    (site / "broken_plugin.py").write_text(any_agent("broken"))
    install_plugin("new")
    info = metadata(site, "good")
    upgraded = info.with_name("good_plugin-2.0.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: good-plugin\nVersion: 2.0\n")
    info.rename(upgraded)
    watched.wait_for("broken", "ready")
    watched.wait_for("new", "ready")
    watched.wait_for("good", "ready", "2.0")

    shutil.rmtree(upgraded)
    missing = watched.wait_for("good", "pending", "2.0")
    assert "distribution is missing" in missing.reason
    assert watched.watch.absent("good") == ""
    watched.ahead += REMOVAL_GRACE_SECONDS
    watched.wait_for("good", "removed", "2.0")
    assert "good is not installed" in watched.watch.absent("good")
    assert "nosuch is not installed" in watched.watch.absent("nosuch")
    ours = ["policy", "se-darwin", "waltzrl-conversation", "waltzrl-feedback"]
    assert watched.watch.names == ["broken", "new", *ours]


def test_definitions_are_found_mended_and_removed(start) -> None:
    watched = start()
    path = watched.settings.home / "agents.d" / "seo.toml"
    watched.wait_for_end_of_scan()
    path.parent.mkdir()
    path.write_text('[source]\npath = "records"\nfromat = "casebank"\n')

    def is_in(state: str) -> bool:
        plugin = watched.latest("seo")
        return plugin is not None and plugin.state == state

    watched.until(lambda: is_in("quarantined"), "the wrong definition")
    assert "line 3: source.fromat" in watched.latest("seo").reason
    path.write_text('schedule = "every 9h"\n[source]\npath = "records"\nformat = "casebank"\n')
    watched.until(lambda: is_in("ready"), "the mended definition")
    assert watched.latest("seo").schedule.every_seconds == 9 * 3600.0
    path.unlink()
    watched.until(lambda: is_in("pending"), "the removal")
    assert "file is missing" in watched.latest("seo").reason
    watched.ahead += REMOVAL_GRACE_SECONDS
    watched.until(lambda: is_in("removed"), "the end of the grace")


def test_what_a_probe_found_is_remembered_until_something_changes(
    start, install_plugin, any_agent, tmp_path: Path
) -> None:
    witness = tmp_path / "imports"
    note = f"open({str(witness)!r}, 'a').write(__name__ + '\\n')\n"
    install_plugin("good", note + any_agent("good"))
    install_plugin("broken", note + "raise RuntimeError('worn out')")
    first = start()
    first.wait_for_end_of_scan()
    first.watch.close()
    assert sorted(witness.read_text().split()) == ["broken_plugin", "good_plugin"]

    second = start()
    second.wait_for("good", "ready")
    assert "worn out" in second.wait_for("broken", "quarantined").reason
    second.wait_for_end_of_scan()
    second.watch.close()
    assert len(witness.read_text().split()) == 2

    install_plugin("other")  # it may be what the broken one lacks
    third = start()
    third.wait_for_end_of_scan()
    assert witness.read_text().split()[2:] == ["broken_plugin"]
    third.wait_for("good", "ready")
    third.watch.close()

    settings = {"good": AgentSettings(settings={"depth": 3}), **BUILT_IN_OFF}
    third.settings = third.settings.model_copy(update={"agents": settings})
    fourth = PluginWatch(third.settings)
    fourth.start(probe_device=False)
    try:
        third.until(lambda: fourth.scanned_at)
    finally:
        fourth.close()
    results = read_results(third.settings.home)
    assert "takes no settings" in results["good"].plugin.reason


def test_settings_of_an_agent_that_is_not_ready_take_effect_at_once(
    start, install_plugin, any_agent
) -> None:
    """Installed first, then configured, then corrected, then disabled."""
    settings_model = "settings_model(self):\n        return Own"
    install_plugin(
        "needy",
        "import pydantic\nclass Own(pydantic.BaseModel):\n    size: int\n"
        + any_agent("needy").replace("settings_model(self):\n        return None", settings_model),
    )
    watched = start()
    reason = watched.wait_for("needy", "quarantined").reason
    assert "GENESIS_AGENTS__NEEDY__SETTINGS__SIZE: Field required" in reason
    for changes, state in (
        ({"settings": {"size": "many"}}, "quarantined"),
        ({"settings": {"size": "3"}}, "ready"),
        ({"enabled": False}, "disabled"),
    ):
        agents = {**BUILT_IN_OFF, "needy": AgentSettings(**changes)}
        watched.news.clear()
        watched.watch.configure(watched.settings.model_copy(update={"agents": agents}))
        watched.wait_for("needy", state)


def test_a_probe_that_hung_is_tried_again(start, install_plugin, any_agent, tmp_path) -> None:
    stuck = tmp_path / "stuck"
    stuck.touch()
    waits = f"import os, time\nwhile os.path.exists({str(stuck)!r}):\n    time.sleep(0.1)\n"
    install_plugin("slow", waits + any_agent("slow"))
    seconds = round(2 * crowding())  # in which it has begun to hang
    watched = start(probe_timeout_seconds=seconds)
    reason = watched.wait_for("slow", "quarantined").reason
    assert f"{seconds} s, it hung at slow_plugin.py:3" in reason
    stuck.unlink()
    watched.ahead += 0.9 * RETRY_SECONDS
    assert watched.latest("slow").state == "quarantined"
    watched.ahead += 0.2 * RETRY_SECONDS

    def ready() -> bool:
        plugin = watched.latest("slow")
        if plugin.state == "quarantined":  # on a crowded machine this one may take long, too
            watched.ahead += 0.1 * RETRY_SECONDS
        return plugin.state == "ready"

    watched.until(ready, "another try")


def test_a_rescan_by_hand_probes_what_failed_and_removes_at_once(
    start, install_plugin, tmp_path: Path
) -> None:
    repaired = tmp_path / "repaired"
    install_plugin("gone")
    install_plugin(
        "flaky",
        f"""
        import os
        if not os.path.exists({str(repaired)!r}):
            raise RuntimeError("not yet")
        from gone_plugin import AnyAgent as Base

        class AnyAgent(Base):
            name = "flaky"
        """,
    )
    watched = start()
    watched.wait_for("flaky", "quarantined")
    watched.wait_for_end_of_scan()
    repaired.touch()
    shutil.rmtree(metadata(tmp_path / "site", "gone"))
    asked_at = time.time()
    watched.watch.rescan()
    watched.wait_for("flaky", "ready")
    watched.wait_for("gone", "removed")
    assert watched.watch.absent("gone")
    watched.wait_for_end_of_scan(asked_at)
    assert read_results(watched.settings.home).keys() == {"flaky"}


def test_closing_ends_probes_that_hang(
    start, install_plugin, until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", PlainPopen)  # their command lines are looked for
    for name in ("a", "b", "c"):
        install_plugin(name, "import time; time.sleep(600)")
    watched = start(probe_timeout_seconds=300.0)
    probes: list[psutil.Process] = []

    def probing() -> bool:
        probes.clear()
        for child in psutil.Process().children():  # other tests may have left theirs
            with suppress(psutil.Error):  # it has just ended
                if any(argument.endswith("_plugin:AnyAgent") for argument in child.cmdline()):
                    probes.append(child)
        return len(probes) == 2

    until(probing, "two probes at once")
    assert watched.watch.pending == 3
    watched.watch.close()
    assert [probe.pid for probe in probes if probe.is_running()] == []
    assert watched.watch.scanned_at == 0.0


def test_a_device_that_does_not_exist(start) -> None:
    watched = start()
    watched.watch.close()
    settings = watched.settings.model_copy(update={"device": "cuda:99"})
    watch = PluginWatch(settings)
    watch.start()
    try:
        watched.until(lambda: watch.hardware_error)
    finally:
        watch.close()
    assert isinstance(watch.hardware_error, HardwareProbeError)
    assert watch.hardware is None


def test_a_file_that_is_damaged_is_made_anew(start, install_plugin, tmp_path: Path) -> None:
    install_plugin("good")
    home = tmp_path / "home"
    home.mkdir()
    (home / "plugins.json").write_bytes(os.urandom(100))
    watched = start()
    watched.wait_for("good", "ready")
    watched.wait_for_end_of_scan()
    watched.watch.close()
    assert read_results(home).keys() == {"good"}
