"""Candidates with private folders that try to leave them, or to disturb those of others."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.timeout(600)  # the fixture waits for all programs
ARGUMENTS = ["--files"]

HOSTILE = {
    "writer outside its folder": """
        def solve(x):
            for path in ("../written", "/tmp/written", "HOME/written"):
                try:
                    open(path, "w").write("x")
                    return x + 1
                except OSError:
                    pass
        """,
    "writer through links": """
        import os
        def solve(x):
            for number, path in enumerate(("HOME/precious", "HOME", "/tmp", "/")):
                os.symlink(path, f"link{number}")
                try:
                    with open(f"link{number}" if number == 0 else f"link{number}/written", "w"):
                        return x + 1
                except OSError:
                    pass
        """,
    "mover": """
        import os
        def solve(x):
            open("mine", "w").close()
            for act in (os.rename, os.link, os.replace):
                for old, new in (("HOME/precious", "moved"), ("mine", "HOME/moved")):
                    try:
                        act(old, new)
                        return x + 1
                    except OSError:
                        pass
        """,
    "reader of the host": """
        import os
        def solve(x):
            for path in ("HOME/precious", "/etc/passwd", "/proc/PARENT/environ", "/proc/1/maps"):
                try:
                    open(path).read(1)
                    return x + 1
                except OSError:
                    pass
        """,
    "looker into the folders of others": """
        import os
        def solve(x):
            own = os.getcwd()
            for path in ["/tmp", *(f"/tmp/{number}" for number in range(4))]:
                try:
                    if path != own:
                        os.listdir(path)
                        return x + 1
                except OSError:
                    pass
        """,
    "locker": """
        import os
        def solve(x):
            os.mkdir("locked", 0)
        """,
    "filler": """
        import os
        def solve(x):
            for number in range(100):
                with open(str(number), "wb") as file:
                    file.write(bytes(1 << 20))
            return x + 1
        """,
    "keeper of a descriptor": """
        import os
        def solve(x):
            kept = os.open(".", os.O_RDONLY)
            for name in ("../written", "../../written"):
                try:
                    os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=kept))
                    return x + 1
                except OSError:
                    pass
        """,
    "watcher": """
        import ctypes
        def solve(x):
            libc = ctypes.CDLL(None)
            if libc.inotify_init() >= 0 or libc.fanotify_init(0x200, 0) >= 0:
                return x + 1
        """,
    "mounter": """
        import ctypes
        def solve(x):
            libc = ctypes.CDLL(None)
            done = [libc.syscall(number, b"tmpfs", 0, 0) >= 0 for number in (428, 430)]
            done.append(libc.mount(b"tmpfs", b".", b"tmpfs", 0, None) == 0)
            done.append(libc.umount(b"/tmp") == 0)
            if any(done):
                return x + 1
        """,
    "maker of devices": """
        import os
        def solve(x):
            for mode in (0o020666, 0o060666, 0o010666, 0o140666):
                try:
                    os.mknod(f"node{mode}", mode, os.makedev(1, 3))
                    return x + 1
                except OSError:
                    pass
        """,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_candidate_passes_or_harms_its_neighbour(aftermath: dict[str, Any], name: str) -> None:
    outcome = aftermath["report"][name]
    assert not outcome["passed"]
    assert outcome["neighbour"]


def test_their_targets_are_untouched(aftermath: dict[str, Any]) -> None:
    assert aftermath["files"] == ["empty", "precious"]
    assert aftermath["precious"] == "precious"
    assert aftermath["report"]["left"] == []
