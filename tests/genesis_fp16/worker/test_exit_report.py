"""The paragraph that says why an attempt failed."""

import errno
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from genesis_fp16.worker.exit_report import describe_failure


@pytest.fixture
def spec(tmp_path: Path) -> Any:
    return SimpleNamespace(agent="line", attempt_folder=tmp_path)


def test_a_failure_names_agent_activity_cause_and_log(spec: Any) -> None:
    text = describe_failure(ValueError("odd"), spec, "collecting")
    assert "failed while collecting" in text
    assert "ValueError: odd" in text
    assert text.endswith(str(spec.attempt_folder / "worker.log"))


def test_a_full_disk_behind_another_error_is_named(spec: Any) -> None:
    wrapped = RuntimeError("the buffer cannot be written")
    wrapped.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    text = describe_failure(wrapped, spec, "collecting")
    assert "disk is full" in text
    assert "MiB free" in text


def test_output_to_a_full_disk_is_dropped() -> None:
    code = (
        "import warnings; from genesis_fp16.worker import exit_report;"
        "exit_report.drop_output_on_full_disk();"
        "print('x' * 100_000, flush=True); warnings.warn('w');"
        "import structlog, sys; structlog.WriteLogger(sys.stderr).info('lost')"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=full, check=False)
    assert done.returncode == 0


def test_an_endless_message_is_cut(spec: Any) -> None:
    assert len(describe_failure(ValueError("x" * 100_000), spec, "training")) < 2000
