"""What workers leave; a pre-flight report is written and read in the pre-flight's own tests."""

import os
from pathlib import Path

from genesis_fp16.plugins.agent_folder import copy_agent_folder, read_preflight


def test_a_report_that_is_missing_or_of_another_version_is_none(tmp_path: Path) -> None:
    assert read_preflight(tmp_path) is None
    (tmp_path / "preflight.json").write_text('{"of": "another version"}')
    assert read_preflight(tmp_path) is None


def test_what_a_worker_put_in_place_of_a_report_holds_up_nobody(tmp_path: Path) -> None:
    report = tmp_path / "preflight.json"
    os.mkfifo(report)  # without a writer
    assert read_preflight(tmp_path) is None
    report.unlink()
    report.touch()
    os.truncate(report, 1 << 40)  # a sparse file
    assert read_preflight(tmp_path) is None


def test_a_copy_shares_the_segments_of_the_buffer_and_nothing_else(tmp_path: Path) -> None:
    folder, copied = tmp_path / "agent", tmp_path / "copied"
    for name in ("replay/1.jsonl", "published/model.json", "positions.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    copy_agent_folder(folder, copied)
    same = {
        str(path.relative_to(copied)): path.samefile(folder / path.relative_to(copied))
        for path in copied.rglob("*")
        if path.is_file()
    }
    assert same == {"replay/1.jsonl": True, "published/model.json": False, "positions.json": False}
    (copied / "positions.json").write_text("changed")
    assert (folder / "positions.json").read_text() == "positions.json"


def test_an_agent_without_a_folder_is_copied_as_an_empty_one(tmp_path: Path) -> None:
    copy_agent_folder(tmp_path / "missing", tmp_path / "copied")
    assert list((tmp_path / "copied").iterdir()) == []
