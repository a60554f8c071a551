"""The process of a probe: start it, limit its time, end all that it started, say how it ended."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from genesis_fp16.settings.source import child_environment
from genesis_fp16.system.processes import kill, started_with
from infrastructure.events.plain_text import plain

_GRACE_SECONDS = 5.0  # the probe ends itself at its deadline; this is for one that cannot
_OUTPUT_BYTES = 16384
_TRACE_BYTES = 1 << 20  # of up to 100 threads
_TRACE_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_TRACE_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_PROBE_VARIABLE = "_GENESIS_PROBE"  # in the environment of a probe and of its descendants
_PROBE_MODULE = str(Path(__file__).with_name("__main__.py"))


class ProbesClosedError(Exception):
    """The probes were ended because the process stops."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a probe ended.

    Attributes:
        status: Exit status; None if it was killed at its deadline.
        answer: Its answer in JSON, if it gave one.
        output: End of what it printed.
        trace: Tracebacks that faulthandler wrote when it crashed or met its deadline.
    """

    status: int | None
    answer: str
    output: str
    trace: str

    @property
    def timed_out(self) -> bool:
        """Whether it met its deadline."""
        return self.status is None or (self.status == 1 and self.trace.startswith("Timeout ("))

    def failure(self, deadline_seconds: float, remedy: str, module: str = "") -> str:
        """Return the reason for the missing answer, with the line; one of *module* if possible.

        The *remedy* is that of a probe which met its deadline.
        """
        place = _place(self.trace or self.output, module)  # a plugin may have called faulthandler
        if self.timed_out:
            hung = f", it hung at {place}" if place else ""
            return f"did not load within {deadline_seconds:g} s{hung}: {remedy}"
        at = f" at {place}" if place else ""
        if self.status is not None and self.status < 0:
            known = {number.value: number.name for number in signal.Signals}
            killer = known.get(-self.status, f"signal {-self.status}")
            return f"crashed while loading{at}: killed by {killer}"
        return f"ended its process with status {self.status} while loading{at}"


class ProbeProcesses:
    """Starts probes; `close` ends those that are under way. For use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def close(self) -> None:
        """Kill every probe and its children; no new one starts."""
        with self._lock:
            self._closed = True
            for child in self._running:
                _kill_group(child)

    def run(self, arguments: list[str], request: str, deadline_seconds: float) -> Ended:
        """Run a probe in its own process group; kill that group and its children afterwards.

        Raises:
            ProbesClosedError: `close` was called.
            OSError: No process can be started.
        """
        with (
            tempfile.TemporaryFile() as requests,
            tempfile.TemporaryFile() as answer,
            tempfile.TemporaryFile() as trace,
            tempfile.TemporaryFile() as output,
        ):
            requests.write(request.encode())
            requests.seek(0)
            command = [sys.executable, "-P", "-m", "genesis_fp16.plugins.probe", *arguments]
            command += ["--answer", str(answer.fileno()), "--trace", str(trace.fileno())]
            command += ["--deadline", str(deadline_seconds)]
            token = secrets.token_hex(16)
            with self._lock:
                if self._closed:
                    raise ProbesClosedError
                child = subprocess.Popen(
                    command,
                    stdin=requests,
                    stdout=output,
                    stderr=output,
                    pass_fds=(answer.fileno(), trace.fileno()),
                    start_new_session=True,
                    env=child_environment({_PROBE_VARIABLE: token}),
                )
                self._running.add(child)
            status = None
            with suppress(subprocess.TimeoutExpired):
                status = child.wait(deadline_seconds + _GRACE_SECONDS)
            with self._lock:
                _kill_group(child)
                self._running.discard(child)
            child.wait()
            kill(started_with(_PROBE_VARIABLE, token))  # those in sessions of their own
            if self._closed:
                raise ProbesClosedError
            output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
            printed = plain(output.read().decode(errors="replace"), _OUTPUT_BYTES)
            answer.seek(0)
            trace.seek(0)
            traced = trace.read(_TRACE_BYTES).decode(errors="replace")
            return Ended(status, answer.read().decode(errors="replace"), printed, traced)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _place(output: str, module: str) -> str:
    """The innermost line of *module*, else of any, in the last traceback of faulthandler."""
    for trace in reversed(_TRACE_THREAD.split(output)):
        frames = _TRACE_FRAME.findall(trace)
        if _PROBE_MODULE not in (file for file, *_ in frames):  # a thread of the plugin
            continue
        frames = [frame for frame in frames if not frame[0].startswith("<")]
        of_module = [frame for frame in frames if module in Path(frame[0]).with_suffix("").parts]
        file, line, function = (of_module or frames)[0]
        return f"{Path(file).name}:{line} in {function}"
    return ""
