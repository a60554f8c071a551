"""Rehearses the rollback: a real daemon trains in FP16 on this machine and is switched to FP32.

Run ``make drill``, or ``python drill.py`` beside an installed genesis-fp16. It starts
its own daemon in a temporary folder and touches no other. Exit code 0: every switch took at most
two seconds. ``--device`` names another device than the one that ``auto`` finds; ``--cuda-graph``
trains by CUDA graphs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

DEADLINE_SECONDS = 2.0
START_SECONDS = 120.0
GENESIS = Path(sys.executable).with_name("genesis-fp16")
SETTINGS = """\
ENABLE_FP16_TRAINING={flag}
GENESIS_CPU_HALF=true
GENESIS_DEVICE={device}
GENESIS_CUDA_GRAPH={cuda_graph}
GENESIS_METRICS_PORT=0
GENESIS_LOG_FORMAT=json
GENESIS_AGENTS__SE_DARWIN__ENABLED=false
"""


PASSED_ON = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")  # what CUDA may need


class DrillError(Exception):
    """A step did not take effect in time."""


def main(arguments: Sequence[str] = ()) -> int:
    """Rehearse, and print each step, its effect and how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--cuda-graph", action="store_true", help="train by CUDA graphs")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="genesis-drill-") as name:
        drill = _Drill(Path(name), options.device, cuda_graph=options.cuda_graph)
        try:
            with drill.daemon():
                _rehearse(drill)
        except DrillError as error:
            print(f"\nThe drill failed: {error}\n{drill.log[-3000:]}")
            return 1
        except KeyboardInterrupt:
            print("\nThe drill was interrupted; its daemon has ended.")
            return 130
    print("\nThe drill has passed: flag and override switched to FP32 and back in time.")
    return 0


def _rehearse(drill: _Drill) -> None:
    drill.announce("A daemon starts, and with it an agent that trains in FP16.")
    drill.await_precision("fp16", "default", START_SECONDS)
    drill.show_device()

    drill.announce("Switch everything to FP32: ENABLE_FP16_TRAINING=false in the settings file.")
    drill.set_flag("false")
    drill.await_precision("fp32", "flag", DEADLINE_SECONDS)
    drill.announce("Switch back: the loss scale continues where it was.")
    drill.set_flag("true")
    drill.await_precision("fp16", "default", DEADLINE_SECONDS)

    drill.announce("Switch one agent to FP32 for a day, as its operator, with a recorded reason.")
    drill.show("precision", "set", "fp32", "--agent", "drill", "--for", "24h", "--now")
    drill.await_precision("fp32", "operator", DEADLINE_SECONDS)
    drill.announce("See what decides the precision now.")
    drill.show("precision", "show")
    drill.announce("Withdraw the override.")
    drill.show("precision", "clear", "--agent", "drill")
    drill.await_precision("fp16", "default", DEADLINE_SECONDS)

    drill.announce("See what happened in this run, and why it trains in this precision.")
    [run] = json.loads(drill.run("runs", "--agent", "drill", "--json"))
    drill.show("runs", "show", run["id"])
    drill.show("precision", "explain", "drill")
    drill.announce("Stop the daemon; the run checkpoints, and the next start would resume it.")


class _Drill:
    def __init__(self, folder: Path, device: str, *, cuda_graph: bool) -> None:
        self._folder, self._log = folder, folder / "daemon.log"
        self._settings = {"device": device, "cuda_graph": str(cuda_graph).lower()}
        self._environ = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(folder),
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},  # noqa: TID251
        }
        self._step, self._address = 0, ""
        shutil.copy(Path(__file__).with_name("drill_agent.py"), folder)
        about = folder / "drill_agent-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: drill-agent\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(
            "[genesis.agents]\ndrill = drill_agent:DrillAgent\n"
        )
        self.set_flag("true", show=False)

    @property
    def log(self) -> str:
        """The daemon's log so far."""
        return self._log.read_text()

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """Serve until the block ends."""
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [GENESIS, "serve"], cwd=self._folder, env=self._environ, stderr=log
            )
        try:
            self._wait_for(lambda: '"listener_started"' in self.log, START_SECONDS, "daemon")
            line = next(line for line in self.log.splitlines() if '"listener_started"' in line)
            self._address = urlsplit(json.loads(line)["metrics"]).netloc
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                print(f"   exit code {process.wait(30)}")
            except subprocess.TimeoutExpired:
                process.kill()

    def announce(self, step: str) -> None:
        """Announce the next step."""
        self._step += 1
        print(f"\n{self._step}. {step}", flush=True)

    def set_flag(self, value: str, *, show: bool = True) -> None:
        """Replace the settings file by one with that flag, and print the command if *show*."""
        written = self._folder / ".env.new"
        written.write_text(SETTINGS.format(flag=value, **self._settings))
        written.rename(self._folder / ".env")
        if show:
            print(f"   $ sed -i s/^ENABLE_FP16_TRAINING=.*/ENABLE_FP16_TRAINING={value}/ .env")

    def run(self, *words: str) -> str:
        """Run a command of genesis-fp16 and return its output."""
        done = subprocess.run(
            [GENESIS, *words],
            cwd=self._folder,
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DrillError(f"genesis-fp16 {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def show(self, *words: str) -> None:
        """Run a command as an operator would, and print it with its output."""
        if words[1] in ("set", "clear"):
            words = (*words, "--reason", "a drill")
        shown = " ".join(f'"{word}"' if " " in word else word for word in words)
        print(f"   $ genesis-fp16 {shown}", flush=True)
        for line in self.run(*words).splitlines():
            print(f"     {line}")

    def show_device(self) -> None:
        """Print where the worker trains, and why not by CUDA graphs if it was asked to."""
        (events,) = self._folder.rglob("events.ndjson")
        lines = (json.loads(line) for line in events.read_text().splitlines())
        print(f"   device: {next(line for line in lines if line['kind'] == 'started')['device']}")
        for line in events.with_name("worker.log").read_text().splitlines():
            if "cuda_graph_refused" in line:
                print(f"   {line}")

    def await_precision(self, effective: str, reason: str, seconds: float) -> None:
        """Wait until the worker has acknowledged that precision, and print how long it took.

        Raises:
            DrillError: It did not within *seconds*.
        """
        begun = time.monotonic()
        self._wait_for(lambda: (effective, reason) == self._precision(), seconds, effective)
        took = time.monotonic() - begun
        print(f"   the worker trains in {effective} (reason: {reason}) after {took:.2f} s")

    def _precision(self) -> tuple[str, str]:
        connection = http.client.HTTPConnection(self._address, timeout=10)
        with closing(connection):
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "genesis_precision_info" and sample.value:
                    return sample.labels["effective"], sample.labels["reason"]
        return "", ""

    def _wait_for(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        begun = time.monotonic()
        while not holds():
            if time.monotonic() - begun > seconds:
                raise DrillError(f"no {what} within {seconds:.0f} s")
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
