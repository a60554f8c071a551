"""A machine of its own, as far as a daemon can tell: a host name and process ids of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from genesis_fp16.settings.source import child_environment

PROGRAM = Path(sys.executable).with_name("genesis-fp16")
_INIT = 'hostname "$0" && { "$@" & wait; exec sleep infinity; }'  # it outlives the daemon


class Machine:
    """A daemon, and what it starts, in namespaces of their own; needs the rights of root.

    Args:
        folder: Folder of the log; created.
        settings: Environment of the daemon, besides the path.
    """

    def __init__(self, name: str, folder: Path, settings: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self._log = name, folder / "log"
        self._daemon: psutil.Process | None = None
        self._log.unlink(missing_ok=True)
        command = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        with self._log.open("wb") as log:
            self._init = subprocess.Popen(
                [*command, "sh", "-c", _INIT, name, PROGRAM, "serve", "--standby"],
                cwd=folder,
                env={
                    **child_environment({}),
                    "OMP_NUM_THREADS": "1",
                    "GENESIS_METRICS_PORT": "0",
                    **settings,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        """All that the daemon has printed."""
        return self._log.read_text()

    def lines(self, event: str) -> list[dict[str, object]]:
        """Lines of its log with that event."""
        found = [line for line in self.log.splitlines() if line.startswith("{")]
        return [each for each in map(json.loads, found) if each["event"] == event]

    def leads(self) -> bool:
        """Whether its metrics say so."""
        return "genesis_leader 1.0" in self.get("/metrics")[1]

    def waits(self) -> bool:
        """Whether it waits for another daemon to end."""
        status, text = self.get("/readyz")
        return status == 503 and "another daemon leads" in text

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of the answer; 0 and nothing if it does not answer."""
        started = self.lines("listener_started")
        if not started:
            return 0, ""
        url = str(started[-1]["metrics"]).removesuffix("/metrics") + path
        try:
            with urllib.request.urlopen(url, timeout=5.0) as answer:  # noqa: S310 - ours
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def daemon(self) -> psutil.Process | None:
        """The daemon's process; None if it has ended."""
        with suppress(psutil.NoSuchProcess):
            if self._daemon is None:
                started = psutil.Process(self._init.pid).children(recursive=True)
                found = (each for each in started if str(PROGRAM) in each.cmdline()[:2])
                self._daemon = next(found, None)  # a parent comes before its children
            if self._daemon is not None and self._daemon.status() != psutil.STATUS_ZOMBIE:
                return self._daemon
        return None

    def kill_daemon(self) -> None:
        """Kill the daemon alone; its workers go on, as after a crash."""
        if (daemon := self.daemon()) is not None:
            daemon.kill()

    def suspend_daemon(self) -> None:
        """Suspend the daemon alone; for its workers it is still there."""
        if (daemon := self.daemon()) is not None:
            daemon.suspend()

    def resume_daemon(self) -> None:
        """Let a suspended daemon go on."""
        if (daemon := self.daemon()) is not None:
            daemon.resume()

    def destroy(self) -> None:
        """End everything on the machine at once."""
        self._init.kill()
        self._init.wait()
