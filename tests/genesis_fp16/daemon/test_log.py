"""Lines for programs and for people, in separate processes because logging is global."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOG_SCRIPT = """
import logging, sys, warnings
import structlog
from genesis_fp16.daemon.log import configure_logging
from genesis_fp16.settings import Settings
configure_logging(Settings(log_format=sys.argv[1], log_level=sys.argv[2]))
log = structlog.get_logger()
log.debug("too_fine")
log.info("run_started", agent="a", seconds=1.5)
logging.getLogger("library").info("chatter")
logging.getLogger("library").warning("careful")
warnings.warn("outdated")
try:
    secret = "hunter2"
    raise RuntimeError("broken")
except RuntimeError:
    log.exception("run_failed")
"""


def talk(form: str, level: str = "info") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOG_SCRIPT, form, level], capture_output=True, text=True, check=True
    )
    assert done.stdout == "", "stdout belongs to answers"
    return done.stderr.splitlines()


@pytest.mark.process
@pytest.mark.parametrize("form", ["json", "auto"])
def test_json_lines_begin_alike(form: str) -> None:
    """auto means JSON if stderr is not a terminal."""
    lines = [json.loads(line) for line in talk(form)]
    assert [list(line)[:3] for line in lines] == [["timestamp", "level", "event"]] * 4
    assert [(line["level"], line["event"]) for line in lines[:2]] == [
        ("info", "run_started"),
        ("warning", "careful"),
    ]
    assert lines[0]["agent"] == "a"
    assert "outdated" in lines[2]["event"]
    assert "RuntimeError: broken" in lines[3]["exception"]


@pytest.mark.process
def test_people_get_plain_text_and_no_values_of_variables() -> None:
    text = "\n".join(talk("console"))
    assert "run_started" in text
    assert "agent=a" in text
    assert "RuntimeError: broken" in text
    assert "hunter2" not in text.replace('secret = "hunter2"', "")
    assert "\x1b" not in text, "colours belong on terminals"
    assert "chatter" not in text


@pytest.mark.process
def test_the_level_is_obeyed() -> None:
    assert "too_fine" in "".join(talk("json", "debug"))
    assert "run_started" not in "".join(talk("json", "error"))


def test_a_full_disk_loses_lines_and_nothing_else() -> None:
    """An error while logging an error would end the daemon's loop."""
    program = LOG_SCRIPT + "print('still here', flush=True)\nos._exit(0)\n"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "import os\n" + program, "json", "info"],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=True,
        )
    assert done.stdout == "still here\n"
