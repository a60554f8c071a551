"""Probes one agent and the hardware side by side, for a run in the foreground."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from genesis_fp16.plugins.probe import (
    Hardware,
    Plugin,
    ProbeProcesses,
    probe_agents,
    probe_hardware,
)
from genesis_fp16.plugins.probe.results_file import read_results
from genesis_fp16.settings import Settings
from genesis_fp16.system.signals import Signals

_POLL_SECONDS = 0.1


class StoppedEarlyError(Exception):
    """A signal asked the process to stop while it was still probing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResults:
    """Plugins and hardware known before the first round; none by default.

    Attributes:
        plugins: Plugins, usable or not.
        hardware: The device that the settings name; None if it is not known yet.
    """

    plugins: Sequence[Plugin] = ()
    hardware: Hardware | None = None

    @property
    def entry_points(self) -> dict[str, str]:
        """Agent to entry point, of the agents that may run."""
        return {
            plugin.name: plugin.entry_point for plugin in self.plugins if plugin.state == "ready"
        }


def probe_environment(settings: Settings, agent: str, signals: Signals) -> ProbeResults:
    """Probe *agent*, unless an earlier result holds, and the hardware.

    Raises:
        HardwareProbeError: The device does not exist.
        StoppedEarlyError: A signal came; the probes were ended.
    """
    processes = ProbeProcesses()
    with ThreadPoolExecutor(2, thread_name_prefix="startup") as pool:
        known = read_results(settings.home.absolute())
        plugins = pool.submit(probe_agents, settings, known, only=agent, processes=processes)
        hardware = pool.submit(probe_hardware, settings, processes)
        try:
            while not (plugins.done() and hardware.done()) and not signals.stop_count:
                time.sleep(_POLL_SECONDS)
        finally:
            if signals.stop_count:
                processes.close()
    if signals.stop_count:
        raise StoppedEarlyError
    return ProbeResults(plugins=plugins.result(), hardware=hardware.result())
