"""Notices through a real socket, which is read late or never."""

import os
import socket
import time
from collections.abc import Iterator

import pytest

from genesis_fp16.daemon import systemd
from genesis_fp16.daemon.systemd import SystemdNotices


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where systemd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reader:
        reader.bind(f"\0genesis-systemd-{os.getpid()}")
        reader.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@genesis-systemd-{os.getpid()}")
        yield reader


def read_all(reader: socket.socket) -> list[bytes]:
    reader.setblocking(False)
    messages = []
    try:
        while True:
            messages.append(reader.recv(100))
    except BlockingIOError:
        return messages


def test_a_reader_that_is_late_delays_notices_and_not_the_daemon(reader: socket.socket) -> None:
    with SystemdNotices() as notices:
        for _ in range(2000):  # more than any queue holds
            notices.send_watchdog()
        notices.send("RELOADING=1")
        notices.send_watchdog()
        notices.send("READY=1")
        assert set(read_all(reader)) == {b"WATCHDOG=1"}
        notices.send_watchdog()
        assert read_all(reader) == [b"RELOADING=1", b"READY=1", b"WATCHDOG=1"]


def test_the_last_notice_waits_for_a_bounded_time(
    reader: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "LAST_NOTICE_SECONDS", 0.05)
    with SystemdNotices() as notices:
        for _ in range(2000):
            notices.send_watchdog()
        began = time.monotonic()
        notices.send_last("STOPPING=1")
        assert time.monotonic() - began >= 0.05
        read_all(reader)
        notices.send_last("STOPPING=1")
    assert read_all(reader) == [b"STOPPING=1"] * 2


def test_nothing_is_kept_for_a_reader_that_has_gone(reader: socket.socket) -> None:
    with SystemdNotices() as notices:
        reader.close()
        notices.send("READY=1")
        began = time.monotonic()
        notices.send_last("STOPPING=1")
        assert time.monotonic() - began < systemd.LAST_NOTICE_SECONDS
