"""``run`` where no daemon serves: exit codes, and what is refused."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from genesis_fp16.daemon.foreground import AgentNotReadyError, run_once
from genesis_fp16.domain.pause import Pause
from genesis_fp16.domain.run import RunState
from genesis_fp16.plugins.discovery import UnknownAgentError
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.home import ForeignHomeError
from genesis_fp16.store.pauses import AgentPausedError
from infrastructure.trajectories import ReplayBuffer

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forked")]

NO_NEIGHBOURS = {"se_darwin": {"enabled": False}}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home",
        env_file=tmp_path / ".env",
        max_attempts=1,
        agents=NO_NEIGHBOURS,
    )


def test_an_agent_that_fails(settings: Settings, install_plugin) -> None:
    install_plugin("any")  # its build_job raises
    assert run_once(settings, "any") == 1
    with closing(Store.open(settings)) as store:
        [run] = store.runs()
        assert run.state is RunState.FAILED
        assert "NotImplementedError" in str(run.error)


def test_a_foreign_folder_as_home_is_refused(settings: Settings, install_plugin) -> None:
    install_plugin("any")
    settings.home.mkdir(mode=0o755)
    (settings.home / "doc.txt").touch()
    with pytest.raises(ForeignHomeError, match=r"doc\.txt"):
        run_once(settings, "any")
    assert [path.name for path in settings.home.iterdir()] == ["doc.txt"]
    assert settings.home.stat().st_mode & 0o777 == 0o755


def test_an_agent_that_is_paused_is_not_run(settings: Settings, install_plugin) -> None:
    install_plugin("any")
    with closing(Store.open(settings)) as store:
        pause = Pause(agent="any", reason="moving", actor="ann", created_at=1.0)
        store.pauses.begin(pause)
        with pytest.raises(AgentPausedError, match="ann: moving") as caught:
            run_once(settings, "any")
        assert caught.value.exit_code == 75
        assert store.runs() == []


def test_an_agent_that_is_not_there_or_not_usable(settings: Settings, install_plugin) -> None:
    install_plugin("broken", "raise RuntimeError('worn out')")
    with pytest.raises(UnknownAgentError, match=r"'brocken' .*broken") as caught:
        run_once(settings, "brocken")
    assert caught.value.exit_code == 2
    with pytest.raises(AgentNotReadyError, match=r"'broken' is quarantined: .*worn out"):
        run_once(settings, "broken")
    assert not (settings.home / "genesis.db").exists()


def test_an_agent_without_code_records_trains_and_decides(settings: Settings) -> None:
    definition = settings.home / "agents.d" / "desk.toml"
    definition.parent.mkdir(parents=True)
    definition.write_text(
        '[source]\npath = "records"\n[spec.observation]\nx = { type = "box" }\n'
        '[spec.targets]\ny = { type = "box" }\n[training]\nsteps = 40\nepochs = 2\n'
    )
    records = settings.home / "records"
    with pytest.raises(UnknownAgentError, match="there are desk"):
        run_once(settings, "dask")
    assert run_once(settings, "desk") == 78  # there is no folder yet
    records.mkdir()
    rows = [(number // 5, number * 7 % 11 / 11) for number in range(400)]
    lines = [
        {"group": f"g{group}", "id": number, "observation": {"x": x}, "next_observation": {"y": x}}
        for number, (group, x) in enumerate(rows)
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (records / "a.jsonl").write_text(text + text)
    assert run_once(settings, "desk") == 0
    with closing(Store.open(settings)) as store:
        done, failed = store.runs()
    assert done.published is not None, done
    assert str(records) in str(failed.error)
    recorded = ReplayBuffer(settings.home / "agents" / "desk" / "replay").read()
    assert len(recorded) == len(lines)
