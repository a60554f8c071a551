"""A daemon as a process of its own, and what a test asks it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from tests.preloaded import ForkedPopen

PROGRAM = Path(sys.executable).with_name("genesis-fp16")


class DaemonProcess:
    """`serve` in a process with the settings file given; *forked* after all imports, or started."""

    def __init__(
        self, folder: Path, until: Callable[..., None], *, forked: bool = True, **environ: str
    ) -> None:
        self.folder, self._until = folder, until
        self._log = folder / f"log{len(list(folder.glob('log*')))}"  # of it alone
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "PYTHONPATH")}
        start = ForkedPopen if forked else subprocess.Popen
        with self._log.open("w") as log:
            self.process = start(
                [PROGRAM, "serve"],
                cwd=folder,
                env=kept | environ,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )

    def lines(self, event: str) -> list[dict]:
        """Log lines of that event."""
        lines = []
        for line in self._log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                lines.append(json.loads(line))
        return [line for line in lines if line["event"] == event]

    def wait_for(self, event: str, count: int = 1) -> dict:
        def there() -> bool:
            assert self.process.poll() is None, self._log.read_text()
            return len(self.lines(event)) >= count

        self._until(there, event)
        return self.lines(event)[-1]

    def end(self) -> tuple[int, str]:
        """Wait for its end: exit code, and its log."""
        return self.process.wait(timeout=300), self._log.read_text()

    def get(self, path: str) -> str:
        """The listener's answer, whatever its status."""
        address = urlsplit(self.lines("listener_started")[-1]["metrics"]).netloc
        with closing(HTTPConnection(address, timeout=60)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read().decode().strip()

    def last_tick(self) -> str:
        """The line that tells when the loop last came round."""
        lines = self.get("/metrics").splitlines()
        return next(line for line in lines if line.startswith("genesis_loop_last_tick"))
