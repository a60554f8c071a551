"""A container as a process: everything in it ends with its first process."""

import os
import signal
import subprocess
import time
import uuid
from contextlib import suppress

import psutil

MARK = "_TEST_CONTAINER"  # variable that marks the processes of one container


class Container:
    """The first container of *pod* with the variables *environ* of its image; starts at once.

    Raises:
        OSError: The command cannot be started.
    """

    def __init__(self, pod, environ=()):
        [container] = pod["spec"]["containers"]
        self._mark, self._kill_at, self._code = uuid.uuid4().hex, None, None
        self._process = subprocess.Popen(
            [*container["command"], *container.get("args", [])],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={
                "PATH": os.environ["PATH"],
                "HOME": "/",
                "HOSTNAME": pod["metadata"]["name"],
                "PYTHONDONTWRITEBYTECODE": "1",
                **dict(environ),
                MARK: self._mark,
            },
        )

    def exit_code(self):
        """Exit code as Kubernetes counts it, after the end of all processes; None before."""
        if self._code is None and (code := self._process.poll()) is not None:
            self.kill()
            self._code = 128 - code if code < 0 else code
        return self._code

    def end(self, grace_seconds):
        """SIGTERM at the first call, SIGKILL at a call *grace_seconds* later or without grace."""
        if self._kill_at is None:
            self._process.send_signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + grace_seconds
        if time.monotonic() >= self._kill_at or grace_seconds == 0:
            self._process.kill()

    def kill(self):
        """Kill every process that is left."""
        if self._process.poll() is None:
            self._process.kill()
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self._mark:
                    process.kill()
        self._process.wait(timeout=60)
