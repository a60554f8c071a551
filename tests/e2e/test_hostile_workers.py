"""Workers that flood their event files delay neither a rollback nor the daemon's end."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import crowding

pytestmark = pytest.mark.e2e

DEADLINE_SECONDS = 2.0
STOP_SECONDS = 3.0
ENTRY_POINTS = """[genesis.agents]
flooder = hostile_agents:Flooder
claimer = hostile_agents:Claimer
linker = hostile_agents:Linker
"""


@pytest.fixture
def hostile_daemon(tmp_path: Path, make_daemon: Callable, quick_plugin: Path) -> Iterator:
    """A daemon, not yet started, with the quick agent and the hostile ones."""
    site = tmp_path / "site"
    shutil.copytree(quick_plugin, site)
    shutil.copy(Path(__file__).with_name("hostile_agents.py"), site)
    metadata = site / "hostile_agents-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: hostile-agents\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    daemon = make_daemon(python_path=site)
    daemon.configure(
        GENESIS_SLOTS=4, GENESIS_STOP_TIMEOUT_SECONDS=STOP_SECONDS, GENESIS_MAX_ATTEMPTS=1
    )
    yield daemon
    for agent in ("flooder", "claimer"):  # whoever reads all events would take long
        for path in _event_files(daemon, agent):
            path.unlink(missing_ok=True)


def _event_files(daemon, agent: str) -> list[Path]:
    """Event files of the agent's runs."""
    specs = daemon.home.glob("runs/*/attempts/*/spec.json")
    return [
        path.with_name("events.ndjson")
        for path in specs
        if f'"agent": "{agent}"' in path.read_text()
    ]


def _has_flooded(daemon, agent: str) -> bool:
    files = [path for path in _event_files(daemon, agent) if path.exists()]
    return sum(path.lstat().st_size for path in files) > 6 << 20


def test_a_flood_delays_neither_a_rollback_nor_the_end(
    hostile_daemon,
    train_without_end: Callable,
    record_property: Callable[[str, object], None],
) -> None:
    daemon = train_without_end(hostile_daemon)
    for agent in ("flooder", "claimer"):
        daemon.wait_for(
            lambda agent=agent: _has_flooded(daemon, agent), f"to be flooded by {agent}"
        )
    daemon.wait_for(lambda: "must not be replaced by a link" in daemon.log, "to refuse the link")

    daemon.configure(ENABLE_FP16_TRAINING="false")
    rolled_back = {"effective": "fp32", "reason": "flag"}
    seconds = daemon.wait_for(
        lambda: daemon.metrics().labels("genesis_precision_info", agent="quick", **rolled_back),
        "to be in FP32",
    )
    record_property("measured", f"{seconds:.2f} s to FP32 beside a flood of events")
    assert seconds < DEADLINE_SECONDS * crowding()

    claimed = daemon.metrics().value("genesis_training_steps_total", agent="claimer")
    assert not claimed >= 1, "nobody makes 30 million steps"
    code, seconds = daemon.stop(signal.SIGTERM)
    record_property("measured", f"{seconds:.2f} s to the daemon's end beside a flood of events")
    assert code == 0
    assert seconds < STOP_SECONDS + DEADLINE_SECONDS
    refused = {
        word
        for line in daemon.log.splitlines()
        if "events_refused" in line
        for word in ("impossible_events", "shortened_events", "malformed_lines")
        if word in line
    }  # and skipped_bytes, if the flood came faster than the daemon could read
    assert len(refused) == 3, daemon.log[-6000:]
    assert len(daemon.log) < 1 << 20
