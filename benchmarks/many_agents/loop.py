"""What the daemon's loop costs with 1,000 agents, without processes around it.

Serves in this process, with the daemon's own loop, store and listener. The agents are registered
without a probe, and no worker starts: queued runs wait. It prints the size and the CPU time of a
scrape, the CPU use and memory of an idle daemon, and the longest round while every agent is due.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path

import psutil

from genesis_fp16.daemon.daemon import Daemon
from genesis_fp16.daemon.http import start_http
from genesis_fp16.daemon.run_log import open_run_logger
from genesis_fp16.daemon.run_loop import TICK_SECONDS, open_store
from genesis_fp16.metrics import Metrics
from genesis_fp16.plugins.probe import Plugin
from genesis_fp16.plugins.watch import PluginWatch
from genesis_fp16.settings import Settings
from infrastructure.agent_contract import Schedule

SCRAPES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What was measured with so many *agents*.

    Attributes:
        scrape_bytes, scrape_cpu_seconds: Of ``/metrics`` while no agent has run: size, and median
            CPU time, the client's included.
        idle_cpu_share: CPU time divided by wall time while nothing is due.
        resident_bytes: Memory of the process then.
        storm_rounds, longest_round_seconds: Rounds until every agent's run is recorded, and the
            longest of them.
        queued_round_seconds: Median round that looks into the store while all these runs wait.
    """

    agents: int
    scrape_bytes: int
    scrape_cpu_seconds: float
    idle_cpu_share: float
    resident_bytes: int
    storm_rounds: int
    longest_round_seconds: float
    queued_round_seconds: float

    def __str__(self) -> str:
        return "\n".join(
            (
                f"agents                           {self.agents:>10,}",
                f"scrape, bytes                    {self.scrape_bytes:>10,}",
                f"scrape, CPU seconds              {self.scrape_cpu_seconds:>10.3f}",
                f"idle, share of one core          {self.idle_cpu_share:>10.2%}",
                f"idle, resident MiB               {self.resident_bytes / 2**20:>10.0f}",
                f"all due, rounds                  {self.storm_rounds:>10,}",
                f"all due, longest round, seconds  {self.longest_round_seconds:>10.3f}",
                f"all queued, round, seconds       {self.queued_round_seconds:>10.3f}",
            )
        )


class _Registered(PluginWatch):
    """Agents that need no probe; the device stays unknown, so every run waits in the queue."""

    def __init__(self, settings: Settings, plugins: Sequence[Plugin]) -> None:
        super().__init__(settings)
        self.left = deque(plugins)

    def take(self) -> Plugin | None:
        """See `PluginWatch`."""
        return self.left.popleft() if self.left else None


def measure(agents: int, idle_seconds: float) -> Costs:
    """Measure a daemon with so many agents, first idle, then with all of them due together."""
    with _serving(agents, Schedule.parse("every 1d"), catch_up=False) as (daemon, port):
        _rounds(daemon)
        scrapes = [_scrape(port) for _ in range(SCRAPES)]
        gc.collect()
        idle = _idle_share(daemon, idle_seconds)
        resident = psutil.Process().memory_info().rss
    with _serving(agents, Schedule.parse("every 1d"), catch_up=True) as (daemon, _port):
        storm = _rounds(daemon)
        queued = [_round(daemon, ahead_seconds=10.0 * place) for place in range(1, 11)]
    return Costs(
        agents=agents,
        scrape_bytes=scrapes[0][0],
        scrape_cpu_seconds=statistics.median(seconds for _, seconds in scrapes),
        idle_cpu_share=idle,
        resident_bytes=resident,
        storm_rounds=len(storm),
        longest_round_seconds=max(storm),
        queued_round_seconds=statistics.median(queued),
    )


@contextmanager
def _serving(agents: int, schedule: Schedule, *, catch_up: bool) -> Iterator[tuple[Daemon, int]]:
    """A started daemon, and the port of its metrics."""
    schedule = replace(schedule, catch_up="latest" if catch_up else "none")
    plugins = [
        Plugin(
            name=f"agent-{number:04}",
            entry_point="nowhere:Agent",
            distribution="many-agents",
            version="1.0",
            state="ready",
            schedule=schedule,
        )
        for number in range(agents)
    ]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="genesis-many-")))
        settings = Settings(home=folder, env_file=folder / ".env", metrics_port=0)
        settings.env_file.write_text(f"GENESIS_HOME={folder}\nGENESIS_METRICS_PORT=0\n")
        store = stack.enter_context(closing(open_store(settings)))
        run_logger = stack.enter_context(closing(open_run_logger(store)))
        metrics = Metrics()
        server = start_http(settings, metrics, lambda: (True, "measured"))
        stack.callback(server.stop)
        watch = _Registered(settings, plugins)
        daemon = Daemon(settings, store, watch, metrics, run_logger)
        daemon.start()
        yield daemon, server.server_port


def _rounds(daemon: Daemon) -> list[float]:
    """Seconds of each round until a round has nothing to record."""
    seconds = [_round(daemon)]
    while daemon.has_scheduled_work() or (
        isinstance(daemon.watch, _Registered) and daemon.watch.left
    ):
        seconds.append(_round(daemon))
    return seconds


def _round(daemon: Daemon, *, ahead_seconds: float = 0.0) -> float:
    began = time.perf_counter()
    daemon.round(time.monotonic() + ahead_seconds, reload=False)
    return time.perf_counter() - began


def _idle_share(daemon: Daemon, seconds: float) -> float:
    began, cpu = time.monotonic(), time.process_time()
    while (now := time.monotonic()) < began + seconds:
        daemon.round(now, reload=False)
        time.sleep(TICK_SECONDS)
    return (time.process_time() - cpu) / (time.monotonic() - began)


def _scrape(port: int) -> tuple[int, float]:
    """Bytes, and seconds of CPU time of this process."""
    cpu = time.process_time()
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/metrics")
        size = len(connection.getresponse().read())
    return size, time.process_time() - cpu
