from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from genesis_fp16.plugins.probe.parent import Plugin, ProbeResult
from genesis_fp16.plugins.probe.results_file import RESULTS_FILE, read_results, write_results
from infrastructure.agent_contract import Schedule

READY = Plugin(
    name="a",
    entry_point="m:A",
    distribution="d",
    version="1",
    state="ready",
    schedule=Schedule(every_seconds=60),
    settings_schema={"type": "object"},
)


def test_results_survive_a_restart(tmp_path: Path) -> None:
    assert read_results(tmp_path) == {}
    result = ProbeResult(plugin=READY, key="k", environment="e")
    write_results(tmp_path, [result])
    assert read_results(tmp_path) == {"a": result}


@given(content=st.binary() | st.sampled_from([b"{}", b"[]", b'{"format": 2}', b'{"results": 3}']))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_what_is_not_ours_is_ignored_with_a_warning(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RESULTS_FILE).write_bytes(content)
    with capture_logs() as logs:
        assert read_results(tmp_path) == {}
    assert [line["event"] for line in logs] == ["plugins_file_ignored"]


def test_a_folder_in_its_place_is_ignored(tmp_path: Path) -> None:
    (tmp_path / RESULTS_FILE).mkdir()
    with capture_logs() as logs:
        assert read_results(tmp_path) == {}
    assert logs[0]["cause"] == "is not a regular file"


@pytest.mark.parametrize(
    ("state", "answered", "key", "environment", "holds"),
    [
        ("ready", True, "k", "other", True),
        ("ready", True, "other", "e", False),
        ("quarantined", True, "k", "e", True),
        ("quarantined", True, "k", "other", False),
        ("quarantined", False, "k", "e", False),
    ],
)
def test_for_how_long_a_result_holds(state, answered, key, environment, holds) -> None:
    plugin = Plugin(
        name="a",
        entry_point="m:A",
        distribution="d",
        version="1",
        state=state,
        answered=answered,
    )
    result = ProbeResult(plugin=plugin, key="k", environment="e")
    assert result.holds_for(key, environment) is holds
