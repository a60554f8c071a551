"""A spare worker: it has imported torch and waits for a run; it is used only while it is current.

What a worker is made of must be what a new process would be made of: environment variables, what a
process inherits, what an import would find, and the files that it has imported.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from genesis_fp16.settings.source import child_environment

SPARE_COMMAND = (sys.executable, "-P", "-m", "genesis_fp16.worker.spare")
_IMPORT_SECONDS = 120.0
_END_SECONDS = 1.0
_INHERITED = (  # lines of /proc/self/status
    *("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp"),
    *("Cpus_allowed_list", "Mems_allowed_list"),
)
_IMPORTABLE = (".py", ".so", ".pth", ".dist-info", ".egg-info", ".egg-link")

FileMark = tuple[int, int, int]  # inode, time of the last change of its content, size


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a child of this process would take on if it were started now.

    Attributes:
        variables: Environment variables.
        inherited: Limits, priority, rights, control group and working folder.
        importable: What an import would find in the folders of ``sys.path``.
    """

    variables: dict[str, str]
    inherited: tuple[str, ...]
    importable: tuple[str, ...]

    @classmethod
    def now(cls) -> Surroundings:
        """Look at this process."""
        return cls(
            variables=child_environment({}), inherited=_inherited(), importable=_importable()
        )

    def difference(self, other: Surroundings) -> str:
        """What differs, in words; empty if nothing does."""
        if names := sorted(name for name, _ in self.variables.items() ^ other.variables.items()):
            return f"environment variables changed: {', '.join(dict.fromkeys(names))}"
        if self.inherited != other.inherited:
            return "limits, priority, rights, control group or working folder changed"
        if self.importable != other.importable:
            return "something was installed or removed"
        return ""


class SpareWorker:
    """A process that waits for a run. Start it from a thread that lives as long as this process.

    Args:
        variable: Name of the environment variable that marks it and its descendants.
        command: Its command line without the last two arguments; see `genesis_fp16.worker.spare`.

    Attributes:
        token: Value of *variable*.
        process: The process, which leads its own session.
        files: Paths that it has imported, as they were then; empty until all is imported.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, variable: str, command: Sequence[str] = SPARE_COMMAND) -> None:
        self.token = secrets.token_hex(16)
        self._surroundings = Surroundings.now()
        self._started_ns, self._began = time.time_ns(), time.monotonic()
        self.files: dict[str, FileMark | None] = {}
        self._changed = ""  # a file that changed while it was imported
        with ExitStack() as files:
            self._output = files.enter_context(TemporaryFile())
            self._report = files.enter_context(TemporaryFile())
            report = self._report.fileno()
            self.process = subprocess.Popen(
                [*command, str(os.getpid()), str(report)],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=child_environment({variable: self.token}),
                pass_fds=[report],
            )
            self._open_files = files.pop_all()

    @property
    def failure(self) -> str:
        """Why it will never be ready, or is no longer; empty if it may serve."""
        code = self.process.poll()
        if code is not None:
            return f"it ended with exit code {code}: {self._last_line() or 'no output'}"
        if not self.is_ready() and time.monotonic() - self._began > _IMPORT_SECONDS:
            return f"it has not imported torch within {_IMPORT_SECONDS:g} s"
        return ""

    def is_ready(self) -> bool:
        """Whether all is imported, so that it waits for a run."""
        if self.files:
            return True
        text = os.pread(self._report.fileno(), os.fstat(self._report.fileno()).st_size, 0)
        if not text.endswith(b"\n"):
            return False
        self.files = {path: _mark(path) for path in json.loads(text)}
        self._changed = next(
            (path for path in self.files if _changed_ns(path) > self._started_ns), ""
        )
        return True

    def outdated(self) -> str:
        """Why a new process would differ from it, in words; empty if it would not."""
        changed = self._changed or next(
            (path for path, mark in self.files.items() if _mark(path) != mark), ""
        )
        return (
            f"{changed} changed" if changed else self._surroundings.difference(Surroundings.now())
        )

    def hand_over(self, spec: Path, log: Path) -> bool:
        """Make it the worker of the attempt that *spec* describes; whether it still listens.

        The file *log* must exist.
        """
        if self.process.stdin is None:
            return False
        order = json.dumps({"spec": str(spec), "log": str(log)}).encode() + b"\n"
        try:
            self.process.stdin.write(order)
            self.process.stdin.flush()
        except OSError:  # it has ended
            return False
        self._open_files.close()
        return True

    def end(self) -> None:
        """Kill it, unless it has ended."""
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        self._open_files.close()

    def _last_line(self) -> str:
        text = os.pread(self._output.fileno(), os.fstat(self._output.fileno()).st_size, 0)
        return (text.decode(errors="replace").strip().splitlines() or [""])[-1]


def _inherited() -> tuple[str, ...]:
    inherited = [f"nice {os.getpriority(os.PRIO_PROCESS, 0)}"]
    with suppress(OSError):
        inherited.append(f"in {Path.cwd()}")
    for name in ("limits", "cgroup", "oom_score_adj"):
        with suppress(OSError):  # only Linux has them
            inherited.append(Path("/proc/self", name).read_text())
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        inherited += [line for line in lines if line.startswith(_INHERITED)]
    return tuple(inherited)


def _importable() -> tuple[str, ...]:
    """Names that an import may find, and the state of the files that change ``sys.path``."""
    modules = []
    for folder in dict.fromkeys(sys.path):
        with suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in entries:
                ending = os.path.splitext(entry.name)[1]  # noqa: PTH122 -- for each of thousands
                is_importable = ending in _IMPORTABLE if ending else entry.name.isidentifier()
                if is_importable and entry.name != "__pycache__":
                    mark = _mark(entry.path) if ending == ".pth" else ""
                    modules.append(f"{entry.path} {mark}")
    return tuple(sorted(modules))


def _mark(path: str) -> FileMark | None:
    try:
        status = os.stat(path)  # noqa: PTH116 -- thousands of Path objects would be slow
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _changed_ns(path: str) -> int:
    """When the file last changed in any way, in nanoseconds of Unix time; 0 if it is missing."""
    try:
        return os.stat(path).st_ctime_ns  # noqa: PTH116 -- as above
    except OSError:
        return 0
