"""The release refuses what is not ready; advisories in a file are matched with pinned versions."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy.release import audit, release

CHANGELOG = "# Changelog\n\n## 0.3.0 - 2027-01-02\n\n- new\n\n## 0.2.0 - unreleased\n\n- old\n"


def test_the_section_of_a_release() -> None:
    assert release.changes_of(CHANGELOG, "0.3.0", draft=False) == "- new\n"
    assert release.changes_of(CHANGELOG, "0.2.0", draft=True) == "- old\n"
    with pytest.raises(release.NotReadyError, match="write the day"):
        release.changes_of(CHANGELOG, "0.2.0", draft=False)
    with pytest.raises(release.NotReadyError, match=r"no section '## 0\.4\.0"):
        release.changes_of(CHANGELOG, "0.4.0", draft=True)


def test_both_distributions_have_one_version_with_a_section(root: Path) -> None:
    release.changes_of((root / "CHANGELOG.md").read_text(), release.version(), draft=True)


def test_a_wheel_without_its_files_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "genesis_fp16-0.2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("genesis_fp16/py.typed", "")
        archive.writestr("tests/test_it.py", "")
    with pytest.raises(release.NotReadyError, match=r"tests/test_it.*lacks .*index\.html"):
        release.check_wheel(wheel)


def advisory(*events: dict[str, str], name: str = "Some_Package", **more: object) -> dict:
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}]
    package = {"ecosystem": "PyPI", "name": name}
    return {"id": "X-1", "affected": [{"package": package, "ranges": ranges}], **more}


@pytest.mark.parametrize(
    ("events", "version", "expected"),
    [
        ([{"introduced": "0"}, {"fixed": "2.0"}], "1.9", True),
        ([{"introduced": "0"}, {"fixed": "2.0"}], "2.0", False),
        ([{"introduced": "1.0"}, {"last_affected": "1.5"}], "1.5", True),
        ([{"introduced": "1.0"}, {"last_affected": "1.5"}], "1.6", False),
        ([{"introduced": "1.0"}, {"fixed": "1.2"}, {"introduced": "2.0"}], "1.10", False),
        ([{"introduced": "1.0"}, {"fixed": "1.2"}, {"introduced": "2.0"}], "2.1rc1", True),
        ([{"introduced": "1.0"}], "0.9", False),
    ],
)
def test_versions_are_matched(events, version: str, expected: bool) -> None:
    assert audit.affects(advisory(*events), "some-package", version) is expected
    assert not audit.affects(advisory(*events, withdrawn="2026"), "some-package", version)
    assert not audit.affects(advisory(*events, name="other"), "some-package", version)


def test_an_offline_file_is_checked(tmp_path: Path, root: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("Some.Package==1.0\nother==2.0\n")
    hit, miss = advisory({"introduced": "0"}, summary="it leaks"), advisory({"introduced": "3"})
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("X-1.json", json.dumps(hit))
        files.writestr("X-2.json", json.dumps(miss))

    def ask(path: Path) -> subprocess.CompletedProcess[str]:
        program = root / "deploy" / "release" / "audit.py"
        command = [sys.executable, program, path, "--constraints", constraints]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    found = ask(archive)
    assert found.returncode == 1
    assert (
        "some-package 1.0: X-1: it leaks\n2 advisories, 2 pinned versions: 1 apply" in found.stdout
    )
    lines = tmp_path / "lines.json"
    lines.write_text(f"{json.dumps(miss)}\n{json.dumps(miss)}\n")
    assert ask(lines).returncode == 0
    (tmp_path / "empty.json").write_text("[]")
    assert "nothing was checked" in ask(tmp_path / "empty.json").stderr
    (tmp_path / "wrong.json").write_text("{")
    assert "cannot be read" in ask(tmp_path / "wrong.json").stderr
