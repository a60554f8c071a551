"""Reports below the home, and what is not one."""

import os
from pathlib import Path

from genesis_fp16.api.readings import lab_reports


def _report(home: Path, name: str, text: str = "report") -> Path:
    path = home / lab_reports.FOLDER / name / "report.html"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_reports_are_listed_newest_first_and_read(tmp_path: Path) -> None:
    os.utime(_report(tmp_path, "older"), (1, 1))
    _report(tmp_path, "newer", "content")
    assert [report.name for report in lab_reports.find(tmp_path)] == ["newer", "older"]
    assert lab_reports.read(tmp_path, "newer") == b"content"


def test_nothing_but_plain_files_in_plain_folders_counts(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "report.html").write_text("secret")
    reports = tmp_path / lab_reports.FOLDER
    (reports / "file").mkdir(parents=True)
    (reports / "file" / "report.html").symlink_to(secret / "report.html")
    (reports / "folder").symlink_to(secret)
    (reports / "pipe").mkdir()
    os.mkfifo(reports / "pipe" / "report.html")
    with _report(tmp_path, "huge").open("w") as huge:
        huge.truncate(1 << 40)
    assert lab_reports.find(tmp_path) == []
    for name in ("file", "folder", "pipe", "huge", "none", "..", "../secret", ""):
        assert lab_reports.read(tmp_path, name) is None


def test_folders_with_other_names_hide_no_report(tmp_path: Path) -> None:
    _report(tmp_path, "mine")
    for number in range(600):
        (tmp_path / lab_reports.FOLDER / f".hidden{number}").mkdir()
    assert [report.name for report in lab_reports.find(tmp_path)] == ["mine"]


def test_a_home_without_reports_has_none(tmp_path: Path) -> None:
    assert lab_reports.find(tmp_path) == []
