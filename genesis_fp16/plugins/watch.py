"""Watches what is installed while a daemon serves, and probes it in background threads."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from genesis_fp16.plugins.discovery import UNREADABLE_REMEDY
from genesis_fp16.plugins.probe.parent import (
    PROBES_AT_ONCE,
    Hardware,
    HardwareProbeError,
    Plugin,
    ProbeResult,
    probe_agent,
    probe_hardware,
    probe_key,
    scan_in_child,
    unprobed,
)
from genesis_fp16.plugins.probe.process import ProbeProcesses, ProbesClosedError
from genesis_fp16.plugins.probe.results_file import read_results, write_results
from genesis_fp16.plugins.scan import FoundAgent, Mark, Scan, marks_of
from genesis_fp16.settings import Settings

POLL_SECONDS = 2.0
POLL_MOST_SECONDS = 60.0  # while files keep changing without any change of an agent
SAVE_SECONDS = 2.0
REMOVAL_GRACE_SECONDS = 30.0  # an upgrade removes the old distribution before it writes the new
SLOW_SECONDS = 3.0
RETRY_SECONDS, RETRY_MOST_SECONDS = 60.0, 3600.0
_STEP_SECONDS = 0.5
_HARDWARE = ""  # names the probe of the device among those of agents

log = structlog.get_logger()


@dataclass(slots=True)
class _Retry:
    """How many probes in a row had no answer, and when the next begins, in monotonic seconds."""

    at: float
    failures: int


class PluginWatch:
    """Knows which agents are installed and usable; never blocks its caller.

    Results of probes come one by one, `take` hands them over. A result is remembered in the
    home and used again until the agent's files, version or settings change; a quarantined agent
    is also probed again when anything is installed or removed. A probe that hung or crashed is
    tried again after 1 minute, then after twice as long each time, up to an hour.

    Args:
        clock: Monotonic seconds.

    Attributes:
        hardware: The device; None until it is known.
        hardware_error: Why it cannot be used, if its probe has answered so; else None.
        scanned_at: Unix time at which the last completed scan began; 0 before the first. A scan is
            complete once all its probes have ended and their results are saved.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.hardware: Hardware | None = None
        self.hardware_error: HardwareProbeError | None = None
        self.scanned_at = 0.0
        self._settings, self._clock = settings, clock
        self._home = settings.home.absolute()
        self._processes = ProbeProcesses()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()  # guards what follows
        self._closed = self._rescan = self._reconfigured = False
        self._agents: dict[str, FoundAgent] = {}
        self._results: dict[str, ProbeResult] = {}
        self._current: dict[str, Plugin] = {}
        self._news: deque[Plugin] = deque()
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._under_way: dict[str, float] = {}  # to the start of its probe, in Unix time
        self._retries: dict[str, _Retry] = {}
        self._missing: dict[str, float] = {}  # agent to when it was missed, in monotonic seconds
        self._scan = Scan()
        self._scan_began: float | None = None  # Unix time, until its probes have ended
        self._ended_scan: float | None = None  # its beginning, until the results are saved
        self._first_scan_at: float | None = None
        self._save_at: float | None = None

    def start(self, *, probe_device: bool = True) -> None:
        """Begin to watch, in threads of its own; *probe_device* to ask torch for `hardware`."""
        if probe_device:
            self._waiting[_HARDWARE] = None
        steps = [self._watch, *[self._probe_next] * PROBES_AT_ONCE]
        for number, step in enumerate(steps):
            thread = threading.Thread(target=step, name=f"plugins-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Kill the probes under way and end the threads; what was found is saved."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._processes.close()
        for thread in self._threads:
            thread.join()

    def configure(self, settings: Settings) -> None:
        """Have agents probed again whose own settings have changed, or who are now enabled."""
        with self._changed:
            self._reconfigured |= settings.agents != self._settings.agents
            self._settings = settings
            self._changed.notify_all()

    def rescan(self) -> None:
        """Look at once, and probe every quarantined agent again."""
        with self._changed:
            self._rescan = True
            self._changed.notify_all()

    def check_hardware(self) -> None:
        """Check that nothing is known against the device that the settings name.

        Raises:
            HardwareProbeError: It cannot be used.
        """
        if self.hardware_error is not None:
            raise self.hardware_error

    def take(self) -> Plugin | None:
        """The next agent whose state has changed, or None."""
        with self._changed:
            return self._news.popleft() if self._news else None

    @property
    def names(self) -> list[str]:
        """Names of the installed agents."""
        return sorted(self._agents)

    @property
    def pending(self) -> int:
        """Number of agents whose probe has not ended."""
        with self._changed:
            return len(self._unprobed())

    @property
    def slow_probes(self) -> dict[str, float]:
        """Agents whose probe has taken `SLOW_SECONDS` or more, to its start in Unix time."""
        late = time.time() - SLOW_SECONDS
        with self._changed:
            return {k: began for k, began in self._under_way.items() if k and began <= late}

    def absent(self, agent: str) -> str:
        """Why no run of *agent* can start; empty if it is installed, or that is not known yet."""
        since = self._missing.get(agent, self._first_scan_at)
        if agent in self._agents or since is None or self._clock() < since + REMOVAL_GRACE_SECONDS:
            return ""
        return f"the agent {agent} is not installed where the daemon runs"

    def _watch(self) -> None:
        """Scan now and whenever something has changed; retry, remove and save."""
        self._results = dict(read_results(self._home))
        candidate: list[Mark] | None = None
        look_at, pause = self._clock(), POLL_SECONDS
        while not self._closed:
            with self._changed:
                by_hand, asked = self._rescan, self._rescan or self._reconfigured
                self._rescan = self._reconfigured = False
            if asked or self._clock() >= look_at:
                marks = self._marks()
                at_rest = marks is not None and marks == candidate  # an installer has ended
                if asked or at_rest or not self._scan.folders:
                    marks, changed = None, self._look(by_hand=by_hand)
                    pause = POLL_SECONDS if changed else min(2.0 * pause, POLL_MOST_SECONDS)
                elif marks is None:
                    pause = POLL_SECONDS
                candidate, look_at = marks, self._clock() + pause
            with self._changed:
                self._finish_removals()
                self._retry()
            self._save(self._clock())
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._rescan or self._reconfigured or self._ended_scan,
                    _STEP_SECONDS,
                )
        self._save(math.inf)

    def _marks(self) -> list[Mark] | None:
        """Marks of what is watched, if they differ from those of the last scan; else None."""
        with self._changed:
            expected = list(self._scan.folders)
            watched = {
                agent.module
                for name, agent in self._agents.items()
                if agent.loose or self._current[name].state == "quarantined"
            }
            for module in watched:
                expected += self._scan.modules[module]
        marks = marks_of(path for path, *_ in expected)
        return None if marks == expected else marks

    def _look(self, *, by_hand: bool) -> bool:
        """Read what is installed and act on it; return whether it has changed."""
        began = time.time()
        try:
            scan = scan_in_child(self._processes, self._home)
        except ProbesClosedError:
            return False
        except OSError as error:
            remedy = "the daemon retries by itself"
            log.error("plugins_not_read", error=str(error), remedy=remedy)
            return False
        with self._changed:
            if by_hand or self._first_scan_at is None:
                self._first_scan_at = -math.inf if by_hand else self._clock()
            earlier, self._scan, self._scan_began = self._scan, scan, began
            agents: dict[str, FoundAgent] = {}
            for agent in scan.agents:  # of two with one name, the problem of each names both
                agents.setdefault(agent.point.name, agent)
            before, self._agents = self._agents, agents
            for name in before.keys() - self._agents.keys():
                self._lose(name, before[name])
            for name, agent in self._agents.items():
                self._missing.pop(name, None)
                self._consider(name, agent, by_hand=by_hand)
            if by_hand:
                self._missing = dict.fromkeys(self._missing, -math.inf)
            self._settle_scan()
            self._changed.notify_all()
        for what in scan.unreadable:
            if what not in earlier.unreadable:
                log.error("distribution_unreadable", error=what, remedy=UNREADABLE_REMEDY)
        return (scan.agents, scan.environment) != (earlier.agents, earlier.environment)

    def _lose(self, name: str, before: FoundAgent) -> None:
        """Keep an agent that is no longer installed from starting; it may come back."""
        self._missing[name] = self._clock()
        self._waiting.pop(name, None)
        self._retries.pop(name, None)
        what = "distribution" if before.point.definition is None else "file"
        reason = f"its {what} is missing; after {REMOVAL_GRACE_SECONDS:g} s it is removed"
        self._publish(replace(self._current[name], state="pending", reason=reason, detail=""))

    def _finish_removals(self) -> None:
        for name, since in self._missing.items():
            if name in self._current and self._clock() >= since + REMOVAL_GRACE_SECONDS:
                reason = "it was uninstalled, or its file removed"
                self._news.append(replace(self._current.pop(name), state="removed", reason=reason))
                self._results.pop(name, None)
                self._save_at = self._clock()

    def _consider(self, name: str, agent: FoundAgent, *, by_hand: bool) -> None:
        """Use what is known of *agent*, or have it probed."""
        plugin, result = unprobed(agent, self._settings), self._results.get(name)
        if plugin.state != "pending":
            self._waiting.pop(name, None)
            self._publish(plugin)
            return
        key, environment = probe_key(agent, self._settings), self._scan.environment
        if result is not None and not (by_hand and result.plugin.state != "ready"):
            retried = name in self._retries and result.same(key, environment)
            if retried or result.holds_for(key, environment):
                self._publish(result.plugin)
                return
        self._retries.pop(name, None)
        self._waiting[name] = None
        self._current.setdefault(name, plugin)

    def _publish(self, plugin: Plugin) -> None:
        if self._current.get(plugin.name) != plugin:
            self._current[plugin.name] = plugin
            self._news.append(plugin)

    def _probe_next(self) -> None:
        """Probe the waiting agents, and the device, one after the other."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next() is not None)
                if self._closed or (name := self._next()) is None:
                    return
                del self._waiting[name]
                self._under_way[name] = time.time()
                agent, environment = self._agents.get(name), self._scan.environment
                settings = self._settings
            try:
                if agent is None:
                    self._probe_hardware()
                else:
                    plugin = self._probe(agent, settings)
                    self._settle(ProbeResult.of(plugin, agent, settings, environment))
            except ProbesClosedError:
                return
            with self._changed:
                del self._under_way[name]
                self._settle_scan()

    def _next(self) -> str | None:
        return next((name for name in self._waiting if name not in self._under_way), None)

    def _probe(self, agent: FoundAgent, settings: Settings) -> Plugin:
        plugin = unprobed(agent, settings)
        try:
            return probe_agent(plugin, agent, settings, self._processes)
        except ProbesClosedError:
            raise
        except Exception as error:  # of any kind: the other agents are probed
            log.exception("probe_failed", agent=plugin.name)
            reason = f"the daemon failed to probe it: {error!r}; see its log"
            return replace(plugin, state="quarantined", reason=reason, answered=False)

    def _probe_hardware(self) -> None:
        try:
            hardware = probe_hardware(self._settings, self._processes)
        except HardwareProbeError as error:
            if error.final:
                self.hardware_error = error
                return
            with self._changed:
                seconds = self._retry_later(_HARDWARE)
            log.error("hardware_unknown", error=str(error), retry_after_seconds=seconds)
        else:
            self.hardware = hardware
            with self._changed:
                self._retries.pop(_HARDWARE, None)

    def _settle(self, result: ProbeResult) -> None:
        """Record what a probe found, unless the agent has changed or gone meanwhile."""
        plugin, name = result.plugin, result.plugin.name
        with self._changed:
            agent = self._agents.get(name)
            if agent is None or name in self._waiting:
                return
            if probe_key(agent, self._settings) != result.key:
                self._waiting[name] = None
                return
            self._results[name] = result
            if plugin.answered:
                self._retries.pop(name, None)
            else:
                self._retry_later(name)
            self._publish(plugin)
            if self._save_at is None:
                self._save_at = self._clock() + SAVE_SECONDS

    def _settle_scan(self) -> None:
        """Count the scan as ended if no probe of it is left."""
        if self._scan_began is not None and not self._unprobed():
            self._ended_scan, self._scan_began = self._scan_began, None
            self._save_at = self._clock()
            self._changed.notify_all()

    def _unprobed(self) -> set[str]:
        return (self._waiting.keys() | self._under_way.keys()) - {_HARDWARE}

    def _retry_later(self, name: str) -> float:
        """Have *name* probed again; return in how many seconds."""
        failures = self._retries[name].failures + 1 if name in self._retries else 1
        seconds = min(RETRY_SECONDS * 2.0 ** (failures - 1), RETRY_MOST_SECONDS)
        self._retries[name] = _Retry(self._clock() + seconds, failures)
        return seconds

    def _retry(self) -> None:
        for name, retry in self._retries.items():
            if self._clock() >= retry.at and name not in self._under_way:
                retry.at = math.inf  # until its next failure
                self._waiting[name] = None
                self._changed.notify_all()

    def _save(self, now: float) -> None:
        """Write the results, if some are new and it is time."""
        with self._changed:
            if self._save_at is None or now < self._save_at:
                return
            self._save_at = None
            ended, self._ended_scan = self._ended_scan, None
            results = [self._results[name] for name in self._agents if name in self._results]
        try:
            write_results(self._home, results)
        except OSError as error:
            log.warning("plugins_file_not_written", error=str(error), effect="probed at next start")
        if ended is not None:
            self.scanned_at = ended
