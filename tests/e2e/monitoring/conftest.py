"""The real daemon, a real Prometheus, a real Alertmanager: a storm is seen, told and shown.

Prometheus runs the shipped rules with one change: `scaled` divides every duration in them by 60,
so that a minute passes in a second. Alertmanager's waits are treated alike.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import dropwhile
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.measuring.ports import free_port
from infrastructure.events import EventTail
from infrastructure.events.event import Started
from tests.patience import wait_until
from tests.preloaded import start_server

ROOT = Path(__file__).resolve().parents[3]
AGENTS = Path(__file__).resolve().parents[1]
SPEED = 60
PROGRAMS = ("prometheus", "prometheus-alertmanager")
DURATION = re.compile(r"(\d+)([smhd])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
RATE_INTERVAL = 5  # seconds


def scaled(text: str) -> str:
    """*text* with each duration divided by `SPEED`."""
    seconds = [f"{int(n) * SECONDS[unit] * 1000 // SPEED}ms" for n, unit in DURATION.findall(text)]
    return DURATION.sub(lambda _: seconds.pop(0), text)


def scaled_rules(path: Path) -> dict[str, Any]:
    """The rules of *path*, faster: their ``for`` and the ranges of their expressions."""
    rules = yaml.safe_load(path.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[\w+\]", lambda window: scaled(window[0]), rule["expr"])
            if "for" in rule:
                rule["for"] = scaled(rule["for"])
    return rules


class Receiver(ThreadingHTTPServer):
    """A webhook as an operator's would be; remembers what Alertmanager posts."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        remember = self.alerts.extend

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                remember(json.loads(body)["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"

    def received(self, name: str, agent: str | None = None) -> list[dict[str, Any]]:
        """The alerts of that *name* that fired, for *agent* if one is given."""
        return [
            alert
            for alert in self.alerts
            if alert["labels"]["alertname"] == name
            and alert["status"] == "firing"
            and agent in (None, alert["labels"].get("agent"))
        ]


class Monitoring:
    """Prometheus and Alertmanager on free ports, from the shipped files, at `SPEED`."""

    def __init__(self, folder: Path, daemon_port: int, webhook: str) -> None:
        port, alerts_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        shipped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        [job], [alerting] = shipped["scrape_configs"], shipped["alerting"]["alertmanagers"]
        shipped["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        shipped["rule_files"] = [str(folder / "*.rules.yml")]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{daemon_port}"]}]
        alerting["static_configs"] = [{"targets": [f"127.0.0.1:{alerts_port}"]}]
        for path in (ROOT / "deploy/prometheus/rules").glob("*.rules.yml"):
            (folder / path.name).write_text(yaml.safe_dump(scaled_rules(path)))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(shipped))

        alerts = yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yml").read_text())
        waits = ("group_wait", "group_interval")
        alerts["route"] |= {wait: scaled(alerts["route"][wait]) for wait in waits}
        alerts["receivers"][0]["webhook_configs"][0]["url"] = webhook
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(alerts))

        self._log = (folder / "monitoring.log").open("wb")
        self._processes = [
            self._start(
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ),
            self._start(
                "prometheus-alertmanager",
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{alerts_port}",
                "--cluster.listen-address=",
            ),
        ]

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(timeout=120)
        self._log.close()

    def ask(self, path: str, **parameters: object) -> Any:
        """What Prometheus answers; an error of a query is raised."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    def value(self, expr: str) -> float:
        """Sum of what *expr* is now; 0 if it is nothing or nobody answers yet."""
        try:
            return sum(
                float(sample["value"][1]) for sample in self.ask("query", query=expr)["result"]
            )
        except OSError:
            return 0.0

    def samples(self, expr: str, begin: int, end: int) -> list[dict[str, str]]:
        """Value of each series at each second from the first at which there is one."""
        answer = self.ask("query_range", query=expr, start=begin, end=end, step=1)
        moments: list[dict[str, str]] = [{} for _ in range(begin, end + 1)]
        for series in answer["result"]:
            for moment, value in series["values"]:
                moments[int(moment) - begin][str(series["metric"])] = value
        return list(dropwhile(lambda values: not values, moments))

    def wait_until_it_scrapes(self) -> None:
        """Wait until Prometheus has looked for the daemon once."""
        wait_until(lambda: self.value("count(up)"), "Prometheus to scrape")


class Storm:
    """What is left of the storm: who was told, and what Prometheus knows from *begin* to *end*.

    Seconds; `rate_interval` is what rates were asked over.
    """

    rate_interval = RATE_INTERVAL

    def __init__(self, monitoring: Monitoring, receiver: Receiver, begin: float) -> None:
        self.monitoring, self.receiver = monitoring, receiver
        self.begin, self.end = int(begin), int(time.time())


def worker_of(agent: str, daemon: Any) -> int:
    """Process id of the agent's newest worker."""
    specs = daemon.home.rglob("spec.json")
    folders = [spec.parent for spec in specs if json.loads(spec.read_text())["agent"] == agent]
    newest = max(folders, key=lambda folder: folder.stat().st_mtime)
    events = EventTail(newest / "events.ndjson").read()
    return next(event.pid for event in events if isinstance(event, Started))


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the quick agent, the storm agent, and one that cannot be loaded."""
    folder = tmp_path_factory.mktemp("plugins")
    for name, entry in {
        "quick": "quick_agent:QuickAgent",
        "storm": "storm_agent:StormAgent",
        "broken": "no_such_module:Agent",
    }.items():
        source = AGENTS / f"{name}_agent.py"
        if source.exists():
            shutil.copy(source, folder)
        metadata = folder / f"{name}_agent-1.0.dist-info"
        metadata.mkdir()
        head = f"Metadata-Version: 2.1\nName: {name}-agent\nVersion: 1.0\n"
        (metadata / "METADATA").write_text(head)
        (metadata / "entry_points.txt").write_text(f"[genesis.agents]\n{name} = {entry}\n")
    return folder


@pytest.fixture(scope="module")
def storm(
    tmp_path_factory: pytest.TempPathFactory, daemon_class: type, plugins: Path
) -> Iterator[Storm]:
    """A storm from its beginning to its end, with everything else that an operator may meet."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed: apt-get install them")
    start_server()  # it imports while the programs start
    folder = tmp_path_factory.mktemp("monitoring")
    daemon = daemon_class(folder / "daemon", python_path=plugins)
    daemon.configure(
        GENESIS_DEVICE="cpu",
        GENESIS_CPU_HALF="true",
        GENESIS_BASELINE_EVERY_RUNS=0,
        GENESIS_SLOTS=2,
        FP16_GROWTH_INTERVAL=1,  # the loss scale tries its luck after every good step
        GENESIS_STATS_INTERVAL_STEPS=7,  # not in step with every 2nd overflow and 20th NaN
        GENESIS_BASELINE_INTERVAL_STEPS=25,
        GENESIS_TELEMETRY_INTERVAL_STEPS=25,
        GENESIS_GUARD_WINDOW_STEPS=1500,
        GENESIS_GUARD_LOSS_DRIFT=0.9,  # relative, and a long storm brings the loss of quick near 0
        GENESIS_AGENTS__STORM__SCHEDULE='"every 2s"',
        GENESIS_AGENTS__STORM__SETTINGS__EPOCHS=150,
        GENESIS_AGENTS__STORM__SETTINGS__PAUSE_SECONDS=0.004,
        GENESIS_AGENTS__QUICK__SCHEDULE='"every 1s"',
        GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS=1_000_000,
        GENESIS_AGENTS__QUICK__SETTINGS__PAUSE_SECONDS=0.05,
        GENESIS_AGENTS__QUICK__PRECISION="bf16",
    )
    receiver = Receiver()
    serving = threading.Thread(target=receiver.serve_forever, args=(0.1,))
    serving.start()
    monitoring = Monitoring(folder, daemon.port, receiver.url)
    value = monitoring.value

    def told(alert: str, agent: str | None = None) -> None:
        daemon.wait_for(lambda: receiver.received(alert, agent), f"to cause {alert}")

    def seen(expr: str) -> None:
        daemon.wait_for(lambda: value(expr) > 0, f"to be seen by {expr}")

    try:
        begin = time.time()
        monitoring.wait_until_it_scrapes()  # in vain: there is no daemon yet
        daemon.start()
        saved = "genesis_last_checkpoint_bytes"
        daemon.wait_for(lambda: daemon.metrics().value(saved, agent="storm") > 0, "to save")
        os.kill(worker_of("storm", daemon), signal.SIGKILL)
        told("GenesisOverflowStorm", "storm")
        daemon.configure(ENABLE_FP16_TRAINING="treu")
        told("GenesisConfigReloadFailed")
        daemon.configure(ENABLE_FP16_TRAINING="false")
        seen('genesis_precision_rollbacks_total{agent="quick", reason="flag"}')
        daemon.configure(ENABLE_FP16_TRAINING="true")
        seen('genesis_run_resumes_total{agent="storm"}')
        seen('genesis_runs_total{agent="storm", result="succeeded"}')
        seen('genesis_guard_trips_total{agent="storm"}')
        told("GenesisGuardTripped", "storm")
        # Telemetry takes at most 0.9 % of the time of the steps, so it may begin late.
        seen('count(genesis_update_stagnation_ratio{agent="storm"} >= 0)')
        seen(f"absent(increase(genesis_run_resumes_total[{RATE_INTERVAL}s]) > 0)")
        seen(f"timestamp(up) > {time.time() + 1}")  # what came last has been scraped twice
        yield Storm(monitoring, receiver, begin)
    finally:
        monitoring.stop()
        receiver.shutdown()
        receiver.server_close()
        serving.join(timeout=60)
        daemon.clean_up()
