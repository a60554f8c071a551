"""What commands know while a daemon watches; lock, watch and signal are real, in this process."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genesis_fp16.cli.app import app
from genesis_fp16.daemon.foreground import AgentNotReadyError, run_once
from genesis_fp16.daemon.known_agents import RescanError, known_agents, rescan
from genesis_fp16.plugins.discovery import UnknownAgentError
from genesis_fp16.plugins.watch import PluginWatch
from genesis_fp16.settings import Settings
from genesis_fp16.store import DaemonLock, Store
from genesis_fp16.store.daemon_status import STATUS_FILE

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forked")]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home",
        env_file=tmp_path / ".env",
        device="cpu",
        agents={"se_darwin": {"enabled": False}},
        probe_timeout_seconds=600.0,
    )


@pytest.fixture
def watch(
    settings: Settings, install_plugin, any_agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PluginWatch]:
    """A watch that a SIGHUP reaches, its progress published as a daemon does.

    Commands find it in this process's environment. It looks again only when it is asked to.
    """
    monkeypatch.setattr("genesis_fp16.plugins.watch.POLL_SECONDS", 3600.0)
    monkeypatch.setattr("genesis_fp16.daemon.known_agents.RESCAN_SECONDS", 1.0)
    install_plugin(
        "good", f"open({str(tmp_path / 'imports')!r}, 'a').write('x')\n" + any_agent("good")
    )
    install_plugin("broken", "raise RuntimeError('worn out')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GENESIS_HOME", str(settings.home))
    monkeypatch.setenv("GENESIS_AGENTS__SE_DARWIN__ENABLED", "false")
    ended = threading.Event()
    with DaemonLock(settings) as lock:
        watch = PluginWatch(settings)
        before = signal.signal(signal.SIGHUP, lambda *_: watch.rescan())

        def publish() -> None:
            while not ended.wait(0.05):
                lock.write_status(settings, scanned_at=watch.scanned_at, probing=watch.slow_probes)

        publisher = threading.Thread(target=publish)
        publisher.start()
        watch.start(probe_device=False)
        yield watch
        watch.close()
        ended.set()
        publisher.join(timeout=60)
        signal.signal(signal.SIGHUP, before)


def test_a_command_shows_what_the_daemon_has_found(
    settings: Settings, watch: PluginWatch, until, install_plugin, any_agent, tmp_path: Path
) -> None:
    until(lambda: watch.scanned_at and known_agents(settings)[0].state == "quarantined")
    assert [(agent.name, agent.state) for agent in known_agents(settings)] == [
        ("broken", "quarantined"),
        ("good", "ready"),
        ("policy", "disabled"),
        ("se-darwin", "disabled"),
        ("waltzrl-conversation", "disabled"),
        ("waltzrl-feedback", "disabled"),
    ]
    assert (tmp_path / "imports").read_text() == "x", "the command has probed nothing"
    with pytest.raises(AgentNotReadyError, match=r"'broken' is quarantined: .*worn out"):
        run_once(settings, "broken")
    with pytest.raises(UnknownAgentError, match="'nosuch'"):
        run_once(settings, "nosuch")

    (tmp_path / "site" / "broken_plugin.py").write_text(any_agent("broken"))
    [pending] = known_agents(settings, only="broken")
    assert pending.state == "pending"
    assert "not yet probed" in pending.reason
    shutil.rmtree(tmp_path / "site" / "good_plugin-1.5.dist-info")
    rescan(settings, pytest.fail)
    until(lambda: [agent.state for agent in known_agents(settings)] == ["ready", *["disabled"] * 4])


def test_a_hanging_plugin_holds_up_neither_a_rescan_nor_the_answer_of_run(
    settings: Settings, watch: PluginWatch, until, install_plugin, tmp_path, capsys
) -> None:
    ends = tmp_path / "end"
    install_plugin(
        "hangs",
        f"""
        import pathlib, time
        while not pathlib.Path({str(ends)!r}).exists():
            time.sleep(0.05)
        raise RuntimeError("worn out as well")
        """,
    )
    watch.rescan()
    until(lambda: "hangs" in watch.slow_probes)
    until(lambda: known_agents(settings, only="good")[0].state == "ready")
    answer = CliRunner().invoke(app, ["agents", "--rescan", "--json"])
    assert answer.exit_code == os.EX_TEMPFAIL
    assert "still probing" in answer.stderr
    agents = {agent["name"]: agent for agent in json.loads(answer.stdout)}
    assert agents["good"]["state"] == "ready"
    assert agents["hangs"]["state"] == "pending"
    assert agents["hangs"]["reason"].startswith("probing since ")

    def mend_after_the_run_waits() -> None:
        with closing(Store.open(settings)) as store:
            until(lambda: store.unfinished("hangs"))
        ends.touch()

    with closing(Store.open(settings)) as store:  # the only slot is taken
        store.begin_attempt(store.enqueue("good", first_seed=1).id, "incarnation")
    mender = threading.Thread(target=mend_after_the_run_waits)
    mender.start()
    with pytest.raises(AgentNotReadyError, match=r"worn out as well.*queue") as caught:
        run_once(settings, "hangs")
    mender.join(timeout=300)
    assert caught.value.exit_code == os.EX_CONFIG
    lines = capsys.readouterr().err.splitlines()
    [waits] = [line for line in lines if "run_waiting" in line]
    assert "the only slot is busy (GENESIS_SLOTS): good#1" in waits
    [said] = [line for line in lines if "agent_pending" in line]
    assert "probing since" in said
    assert "genesis-fp16 agents" in said


def test_a_daemon_elsewhere_must_be_asked_there(settings: Settings) -> None:
    status = settings.home / STATUS_FILE
    with DaemonLock(settings) as lock:
        lock.write_status(settings, scanned_at=1.0)
        status.write_text(status.read_text().replace('"host":"', '"host":"elsewhere-'))
        with pytest.raises(RescanError, match=r"elsewhere .*SIGHUP"):
            rescan(settings, pytest.fail)


def test_without_a_daemon_agents_are_probed_here(settings: Settings, install_plugin) -> None:
    install_plugin("good")
    rescan(settings, pytest.fail)
    assert [agent.state for agent in known_agents(settings, only="good")] == ["ready"]
    assert not settings.home.exists()
