"""Fork server: a clean interpreter that forks one confined child per candidate.

Frames on standard input and output: four bytes of length, then JSON. Expected results never reach
this process: children send what they computed, and the parent compares. A test suite lies in an
unnamed file that only suite runners read, each for itself, because a candidate could find in its
memory everything that this process ever held.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from pathlib import Path

from .batch import Batch, Request
from .confinement import (
    die_with_parent,
    drop_user,
    enter_landlock,
    enter_namespaces,
    forbid_tracing,
)
from .private_folder import make_folders
from .seccomp_filter import install_seccomp_filter
from .time_zones import keep_time_zones


def main() -> None:
    """Import modules, confine this process, report the layers, then serve until stdin closes.

    Arguments: folder of this package, modules, descriptor of the suite, number of private folders,
    and folders of installed packages.
    """
    modules = json.loads(sys.argv[2])
    sys.path += sys.argv[5:]
    loops = importlib.import_module(f"{__package__}.virtual_loop") if "asyncio" in modules else None
    if loops is not None:
        loops.install()  # before others take functions of `time` from it
    missing = [name for name in modules if not _importable(name)]
    if loops is not None:
        loops.adapt_packages()
    keep_time_zones()
    sys.path.clear()  # no file can be opened from here on, so other imports fail as not found
    sys.path_hooks.clear()  # also in packages
    sys.path_importer_cache.clear()
    base_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    requests, answers, suite_fd = os.dup(0), os.dup(1), os.dup(int(sys.argv[3]))
    os.close(int(sys.argv[3]))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    layers = {"namespaces": enter_namespaces()}
    folders, layers["files"] = _make_folders(int(sys.argv[4]), layers["namespaces"])
    _become_init(requests, answers)
    layers["user"] = drop_user()
    die_with_parent()  # again: the kernel clears it when the user changes
    layers["landlock"] = enter_landlock(folders)
    if folders and not layers["landlock"].startswith("on"):
        folders, layers["files"] = [], "refused: no Landlock"
    forbid_tracing()
    layers["seccomp"] = install_seccomp_filter()  # once: children inherit it at no cost
    gc.collect()
    gc.freeze()
    gc.disable()
    _send(answers, {"layers": layers, "missing": missing})
    while (request := _receive(requests)) is not None:
        _send(answers, {"results": Batch(request, suite_fd, requests, base_bytes, folders).run()})
    os._exit(0)


def _make_folders(count: int, namespaces: str) -> tuple[list[str], str]:
    """Make private folders; return them, and ``on``, ``not asked for``, or why there are none."""
    if not count:
        return [], "not asked for"
    if namespaces != "on":
        return [], "refused: no namespaces"
    try:
        return make_folders(count), "on"
    except OSError as error:
        return [], f"refused: {error.strerror}"


def _importable(name: str) -> bool:
    """Import *name*: a module, or what one contains, which some packages load when it is read."""
    package, _, last = name.rpartition(".")
    try:
        if not hasattr(sys.modules.get(package), last):
            importlib.import_module(name)
    except (Exception, SystemExit):  # not in this version of Python, or it fails without a terminal
        return False
    return True


def _become_init(requests: int, answers: int) -> None:
    """Continue as the first process of the new PID namespace; its end kills every other one."""
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        return
    os.close(requests)
    os.close(answers)
    os.waitpid(pid, 0)
    os._exit(0)


def _receive(descriptor: int) -> Request | None:
    header = _read_exactly(descriptor, 4)
    if header is None:
        return None
    body = _read_exactly(descriptor, int.from_bytes(header, "big"))
    if body is None:
        return None
    request: Request = json.loads(body)
    return request


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = os.read(descriptor, size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def _send(descriptor: int, message: object) -> None:
    body = json.dumps(message).encode()
    data = memoryview(len(body).to_bytes(4, "big") + body)
    while data:
        data = data[os.write(descriptor, data) :]
