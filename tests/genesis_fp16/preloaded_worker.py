"""Worker processes forked from one that has imported torch, which takes seconds for each.

They run the worker's own `main` with stdin, output, environment and session as
``python -m genesis_fp16.worker`` would have them.
"""

import io
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from tests.preloaded import start_server

_CONTEXT = multiprocessing.get_context("forkserver")


class PreloadedWorker:
    """One worker, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, spec: Path, log: Path, environment: Mapping[str, str]) -> None:
        start_server()
        commands, writer = _CONTEXT.Pipe(duplex=False)
        arguments = (commands, str(spec), str(log), dict(environment))
        self._process = _CONTEXT.Process(target=_work, args=arguments)
        self._process.start()
        commands.close()
        self.stdin = io.FileIO(os.dup(writer.fileno()), "wb")
        writer.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _work(commands: Connection, spec: str, log: str, environment: dict[str, str]) -> None:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, source in enumerate((commands.fileno(), output, output)):
        os.dup2(source, number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing closed the old one
    os.closerange(3, 64)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = ["genesis_fp16.worker", spec]
    from genesis_fp16.worker.__main__ import main

    main()
