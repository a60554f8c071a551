"""What the readings keep is read again as soon as it no longer holds."""

import time
from pathlib import Path

from genesis_fp16.api.readings.kept import DueTimes, KeptScan
from infrastructure.agent_contract import Schedule


def test_a_scan_is_kept_until_something_changes(tmp_path: Path, install_plugin) -> None:
    scans, home = KeptScan(), tmp_path / "home"

    def agents() -> set[str]:
        return {agent.point.name for agent in scans.look(home).agents}

    # Other tests create files in the project's folder, which is on the path: several attempts.
    assert any(scans.look(home) is scans.look(home) for _ in range(100))
    install_plugin("newcomer")
    assert "newcomer" in agents()
    (home / "agents.d").mkdir(parents=True)
    with_folder = scans.look(home)
    (home / "agents.d" / "recorded.toml").write_text("")
    assert scans.look(home) is not with_folder
    assert "recorded" in agents()
    newest = scans.look(home)
    (tmp_path / "site" / "newcomer_plugin.py").write_text("# other code\n")
    assert scans.look(home) is not newest


def test_a_due_time_is_kept_until_it_has_come() -> None:
    due, second = DueTimes(), Schedule(every_seconds=1)
    began = time.time()
    first = due.next(second)
    assert first is not None
    assert began < first <= time.time() + 1.0
    while time.time() < first:
        time.sleep(0.01)
    later = due.next(second)
    assert later is not None
    assert first + 1.0 <= later <= time.time() + 1.0
    assert DueTimes().next(Schedule(cron="0 0 30 2 *")) is None
