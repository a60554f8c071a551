"""Who is named for a command: the account, and the person behind a real sudo of root's."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from genesis_fp16.cli.actor import actor
from genesis_fp16.store.errors import user_name

pytestmark = pytest.mark.process

ASK = "import sys; sys.stdin.read(); from genesis_fp16.cli.actor import actor; print(actor())"
CALL = "import subprocess, sys; child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)"
ANSWER = "child.communicate()"  # which lets the one who asks begin
AS_ROOT = "import os; os.setresuid(0, 0, 0)"
NOT_AS_ROOT = "os.seteuid({uid})"
AS_PERSON = "import os; os.setresuid({uid}, 0, 0)"  # whose process it is; it may still call sudo
ANN = 12_345


def called_by(uid: int, name: str, folder: Path, owner: int = 0) -> str:
    """What the command records below a process of *owner*'s called *name*, called by *uid*."""
    (folder / name).symlink_to(sys.executable)
    command = [sys.executable, "-c", ASK]
    calls = f"{CALL}; {NOT_AS_ROOT.format(uid=owner)}; {ANSWER}"
    sudo = [str(folder / name), "-c", f"{AS_ROOT}; {calls}", *command]
    person = [sys.executable, "-c", f"{AS_PERSON.format(uid=uid)}; {CALL}; {ANSWER}", *sudo]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.check_output(person, text=True, env=environ).strip()


def test_an_account_is_named_by_itself() -> None:
    assert actor() == user_name(os.geteuid())


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to stand in for sudo")
@pytest.mark.parametrize(
    ("uid", "name", "said"),
    [(ANN, "sudo", f"uid {ANN} (as root)"), (ANN, "doas", "root"), (0, "sudo", "root")],
)
def test_the_person_behind_sudo_is_named(tmp_path: Path, uid: int, name: str, said: str) -> None:
    assert called_by(uid, name, tmp_path) == said


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to stand in for sudo")
def test_a_sudo_that_is_not_roots_names_no_person(tmp_path: Path) -> None:
    assert called_by(ANN, "sudo", tmp_path, owner=ANN + 1) == "root"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to act as another")
def test_the_account_is_the_effective_one() -> None:
    os.seteuid(ANN)
    try:
        said = actor()
    finally:
        os.seteuid(0)
    assert said == f"uid {ANN}"


def test_without_visible_callers_only_the_account_is_named() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ended:
        process = psutil.Process(ended.pid)
    assert actor(process) == user_name(os.geteuid())
