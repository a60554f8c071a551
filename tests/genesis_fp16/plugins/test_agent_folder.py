"""The last pre-flight report; a real one is written and read in the pre-flight's own tests."""

from pathlib import Path

from genesis_fp16.plugins.agent_folder import read_preflight


def test_a_report_that_is_missing_or_of_another_version_is_none(tmp_path: Path) -> None:
    assert read_preflight(tmp_path) is None
    (tmp_path / "preflight.json").write_text('{"of": "another version"}')
    assert read_preflight(tmp_path) is None
