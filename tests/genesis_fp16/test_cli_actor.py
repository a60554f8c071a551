"""Who is named for a command: the account, and the person behind a real sudo of root's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from genesis_fp16.cli_actor import actor
from genesis_fp16.store.failure import user_name

ASK = "from genesis_fp16.cli_actor import actor; print(actor())"
CALL = "import subprocess, sys; print(subprocess.check_output(sys.argv[1:], text=True), end='')"
AS_ROOT = "import os; os.setresuid(0, 0, 0)"
AS_PERSON = "import os; os.setresuid({uid}, 0, 0)"  # whose process it is; it may still call sudo
ANN = 12_345


def called_by(uid: int, name: str, folder: Path) -> str:
    """What the command records below a process of root's called *name*, called by *uid*."""
    (folder / name).symlink_to(sys.executable)
    command = [sys.executable, "-c", ASK]
    sudo = [str(folder / name), "-c", f"{AS_ROOT}; {CALL}", *command]
    person = [sys.executable, "-c", f"{AS_PERSON.format(uid=uid)}; {CALL}", *sudo]
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
