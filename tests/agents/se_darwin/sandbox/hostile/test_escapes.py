"""Candidates that try to escape, to exhaust the machine, or to leave something behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(600)  # the fixture waits for all programs

HOSTILE = {
    "fork bomb": """
        import os
        def solve(x):
            while True:
                try:
                    os.fork()
                except OSError:
                    pass
        """,
    "thread bomb": """
        import threading
        def solve(x):
            while True:
                try:
                    threading.Thread(target=solve, args=(x,)).start()
                except RuntimeError:
                    pass
        """,
    "endless loop in finally": """
        def solve(x):
            while True:
                try:
                    while True:
                        pass
                finally:
                    while True:
                        pass
        """,
    "loop deaf to signals": """
        import signal
        def solve(x):
            for number in range(1, 65):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            while True:
                pass
        """,
    "sleeper": """
        import time
        def solve(x):
            time.sleep(3600)
        """,
    "stops itself": """
        import os, signal
        def solve(x):
            os.kill(os.getpid(), signal.SIGSTOP)
        """,
    "closes its pipe and loops": """
        import os
        def solve(x):
            os.closerange(0, 256)
            while True:
                pass
        """,
    "memory hog": """
        def solve(x):
            hoard = []
            while True:
                hoard.append(bytearray(1 << 24))
        """,
    "file writer": """
        def solve(x):
            for path in ("written", "/tmp/se-darwin-written", "HOME/written"):
                try:
                    open(path, "w").write("x")
                    return x + 1
                except OSError:
                    pass
        """,
    "overwriter": """
        import os
        def solve(x):
            for attempt in (
                lambda: open("HOME/precious", "w").write(""),
                lambda: os.truncate("HOME/precious", 0),
                lambda: os.rename("HOME/precious", "HOME/renamed"),
                lambda: os.symlink("/etc", "HOME/link"),
            ):
                try:
                    attempt()
                    return x + 1
                except OSError:
                    pass
        """,
    "deleter": """
        import os, shutil
        def solve(x):
            for attempt in (
                lambda: os.unlink("HOME/precious"),
                lambda: shutil.rmtree("HOME"),
                lambda: os.rmdir("HOME/empty"),
            ):
                try:
                    attempt()
                    return x + 1
                except OSError:
                    pass
        """,
    "mode changer": """
        import os
        def solve(x):
            os.chmod("HOME", 0)
            return x + 1
        """,
    "reader": """
        def solve(x):
            open("HOME/precious").read()
            return x + 1
        """,
    "socket opener": """
        import socket
        def solve(x):
            socket.create_connection(("127.0.0.1", PORT)).sendall(b"out")
            return x + 1
        """,
    "socket opener that frees a descriptor": """
        import os, socket
        def solve(x):
            os.close(0)
            socket.create_connection(("127.0.0.1", PORT)).sendall(b"out")
            return x + 1
        """,
    "program starter": """
        import subprocess
        def solve(x):
            subprocess.run(["touch", "HOME/started"])
            return x + 1
        """,
    "raiser of its own limits": """
        import os, resource
        def solve(x):
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            open("HOME/precious").read()
            return x + 1
        """,
    "killer of everything": """
        import os, signal
        def solve(x):
            for pid in (-1, 1, PARENT, os.getppid()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
        """,
    "floods its pipe": """
        import os
        def solve(x):
            while True:
                for descriptor in range(3, 256):
                    try:
                        os.write(descriptor, b"x" * 65536)
                    except OSError:
                        pass
        """,
    "keeper of memory that outlives it": """
        import ctypes
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        def solve(x):
            for _ in range(4):
                kept = libc.shmget(0, 1 << 22, 0o666)
                place = libc.shmat(kept, None, 0)
                if kept < 0 or place == ctypes.c_void_p(-1).value:
                    return None
                ctypes.memset(place, 1, 1 << 22)
                libc.shmdt(ctypes.c_void_p(place))
            return x + 1
        """,
    "leaver of messages": """
        import ctypes
        def solve(x):
            return x + 1 if ctypes.CDLL(None).msgget(77, 0o1666) >= 0 else None
        """,
    "leaver of semaphores": """
        import ctypes
        def solve(x):
            return x + 1 if ctypes.CDLL(None).semget(77, 1, 0o1666) >= 0 else None
        """,
    "keeper of keys": """
        import ctypes, os
        number = 248 if os.uname().machine == "x86_64" else 217
        def solve(x):
            key = ctypes.CDLL(None).syscall(number, b"user", b"name", b"word", 4, -5)
            return x + 1 if key >= 0 else None
        """,
    "enterer of a user namespace": """
        import ctypes
        def solve(x):
            return x + 1 if ctypes.CDLL(None).unshare(0x10000000) == 0 else None
        """,
    "cloner into a user namespace": """
        import ctypes, os
        number = 56 if os.uname().machine == "x86_64" else 220
        def solve(x):
            pid = ctypes.CDLL(None, use_errno=True).syscall(number, 0x10000011, 0, 0, 0, 0)
            if pid == 0:
                os._exit(0)
            refused = pid < 0 and ctypes.get_errno() == 1  # not EAGAIN, as by a limit
            return None if refused else x + 1
        """,
    "tracer of the server": """
        import os, sys
        def solve(x):
            libc = sys.modules["ctypes"].CDLL(None)
            attached = libc.ptrace(16, os.getppid(), 0, 0)
            return x + 1 if attached == 0 else None
        """,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_hostile_candidate_passes_or_harms_its_neighbour(
    aftermath: dict[str, Any], name: str
) -> None:
    effects = aftermath["report"][name]
    assert not effects["passed"]
    assert effects["neighbour"]


def test_their_targets_are_untouched(aftermath: dict[str, Any]) -> None:
    assert aftermath["files"] == ["empty", "precious"]
    assert aftermath["precious"] == "precious"
    assert aftermath["mode"] == 0o700
    assert not Path("/tmp/se-darwin-written").exists()
    assert not aftermath["connected"]


def test_the_server_survives_them_all(aftermath: dict[str, Any]) -> None:
    assert aftermath["report"]["restarts"] == 0


def test_nothing_outlives_the_sandbox(aftermath: dict[str, Any]) -> None:
    assert aftermath["report"]["left"] == []


def test_a_container_needs_no_namespaces(
    aftermath: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    layers = aftermath["report"]["layers"]
    in_container = "container" in request.node.callspec.id
    assert layers["namespaces"].startswith("refused" if in_container else "on")
    assert layers["seccomp"] == "on"
