"""Arguments that no command accepts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from genesis_fp16.cli.arguments import NotUtf8Error, check_utf8

PROGRAM = Path(sys.executable).parent / "genesis-fp16"


def test_text_in_any_script_is_accepted() -> None:
    check_utf8(["größe", "規模", ""])


@pytest.mark.parametrize("word", [b"a\xff\x1b[2J", b"\xff" * 500])
def test_what_is_not_utf8_is_named_and_bounded(word: bytes) -> None:
    with pytest.raises(NotUtf8Error, match="argument 2") as caught:
        check_utf8(["run", os.fsdecode(word)])
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.process
@pytest.mark.parametrize("command", ["runs --agent", "run"])
def test_the_program_refuses_them_before_anything_else(folder: Path, command: str) -> None:
    done = subprocess.run(
        [PROGRAM, *command.split(), os.fsdecode(b"a\xff")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "not UTF-8: 'a\\xff'" in done.stderr
    assert not (folder / ".genesis").exists()
