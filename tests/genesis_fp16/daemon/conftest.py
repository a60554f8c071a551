"""Daemons as processes; tests of the daemon in this process leave its logging as it was."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from tests.genesis_fp16.daemon.daemon_process import DaemonProcess


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    handlers = logging.root.handlers[:]
    yield
    logging.captureWarnings(capture=False)
    logging.root.handlers[:] = handlers
    structlog.reset_defaults()


@pytest.fixture
def start(tmp_path: Path, until) -> Iterator[Callable[..., DaemonProcess]]:
    """Start a daemon in a folder of its own; all are gone afterwards."""
    started: list[DaemonProcess] = []

    def start(
        folder: Path | None = None, settings: str = "", *, forked: bool = True, **environ: str
    ) -> DaemonProcess:
        folder = folder or tmp_path / f"daemon{len(started)}"
        folder.mkdir(exist_ok=True)
        (folder / ".env").write_text(
            f"GENESIS_METRICS_PORT=0\nGENESIS_AGENTS__SE_DARWIN__ENABLED=false\n{settings}"
        )
        started.append(DaemonProcess(folder, until, forked=forked, **environ))
        return started[-1]

    yield start
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.wait(timeout=300)


@pytest.fixture
def notices() -> Iterator[socket.socket]:
    """Where systemd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        notices.bind(f"\0genesis-test-{os.getpid()}")
        notices.settimeout(300)
        yield notices
