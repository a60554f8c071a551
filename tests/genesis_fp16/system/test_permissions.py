"""Which files other users of the machine may read, with any umask."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from genesis_fp16.system.permissions import (
    close_to_others,
    open_to_others,
    private_umask,
    write_private,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize(
    ("home", "folder", "file"),
    [(None, 0o700, 0o600), (0o700, 0o700, 0o600), (0o750, 0o750, 0o640), (0o2770, 0o770, 0o660)],
)
def test_what_is_created_is_as_open_as_the_home(
    tmp_path: Path, umask: int, home: int | None, folder: int, file: int
) -> None:
    path = tmp_path / "home"
    if home is not None:
        path.mkdir()
        path.chmod(home)
    with private_umask(path):
        (path / "runs").mkdir(parents=True)
        (path / "runs" / "worker.log").touch()
    assert mode(path) == (home or 0o700)
    assert mode(path / "runs") & 0o777 == folder
    assert mode(path / "runs" / "worker.log") == file
    assert os.umask(umask) == umask, "restored"


def test_an_open_home_is_closed_with_what_is_in_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "runs").mkdir(parents=True)
    (home / "genesis.db").touch()
    (tmp_path / "other").touch(mode=0o644)
    (home / "link").symlink_to(tmp_path / "other")
    for path, bits in ((home, 0o755), (home / "runs", 0o755), (home / "genesis.db", 0o644)):
        path.chmod(bits)
    assert list(open_to_others(home)) == [home, home / "genesis.db", home / "runs"]
    with capture_logs() as lines:
        close_to_others(home)
        close_to_others(home)
    assert [mode(path) for path in (home, home / "runs", home / "genesis.db")] == [
        0o700,
        0o700,
        0o600,
    ]
    assert mode(tmp_path / "other") == 0o644
    assert {(line["event"], line["before"], line["now"]) for line in lines} == {
        ("made_private", "0755", "0700"),
        ("made_private", "0644", "0600"),
    }
    assert len(lines) == 3
    assert list(open_to_others(home)) == []


def test_a_home_shared_with_a_group_stays_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "agents").mkdir()
    home.chmod(0o2750)
    (home / "agents").chmod(0o755)
    close_to_others(home)
    assert (mode(home), mode(home / "agents")) == (0o2750, 0o750)


def test_a_volume_of_another_user_is_left_but_not_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root of a volume with fsGroup belongs to root; the daemon's files do not."""
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2775)
    with monkeypatch.context() as context:
        context.setattr(os, "geteuid", lambda: 10001)
        close_to_others(volume)
        with private_umask(volume):
            (volume / "genesis.db").touch()
        assert list(open_to_others(volume)) == []
    assert (mode(volume), mode(volume / "genesis.db")) == (0o2775, 0o660)


def test_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    close_to_others(tmp_path / "missing")


def test_a_private_file_is_private_in_an_open_folder(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "spec.json"
    write_private(path, "1")
    assert (mode(path), path.read_text()) == (0o600, "1")
    path.chmod(0o644)
    write_private(path, "22")
    assert (mode(path), path.read_text()) == (0o600, "22")
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        write_private(link, "333")
    del umask


def test_a_file_that_does_not_fit_on_the_disk_is_not_left_half_written(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    program = (
        "import resource, signal, sys; from pathlib import Path;"
        "from genesis_fp16.system.permissions import write_private;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10));"
        "write_private(Path(sys.argv[1]), 'x' * 1000)"
    )
    command = [sys.executable, "-B", "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "OSError: [Errno 27]" in done.stderr
    assert not path.exists()
