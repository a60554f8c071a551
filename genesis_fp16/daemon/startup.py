"""What is installed and on what it can run: plugins and hardware, probed side by side."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil

from genesis_fp16.plugins.probe import Hardware, Plugin, probe_agents, probe_hardware
from genesis_fp16.settings import Settings
from genesis_fp16.system.processes import kill
from genesis_fp16.system.signals import Signals

_POLL_SECONDS = 0.1


class StoppedEarlyError(Exception):
    """A signal asked the process to stop while it was still probing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResults:
    """Plugins and hardware.

    Attributes:
        plugins: All installed plugins, usable or not.
        hardware: The device that the settings name.
    """

    plugins: list[Plugin]
    hardware: Hardware

    @property
    def entry_points(self) -> dict[str, str]:
        """Agent to entry point, of the agents that may run."""
        return {
            plugin.name: plugin.entry_point for plugin in self.plugins if plugin.state == "ready"
        }


def probe_environment(settings: Settings, signals: Signals) -> ProbeResults:
    """Probe plugins and hardware.

    Raises:
        HardwareProbeError: The device does not exist.
        StoppedEarlyError: A signal came; the probes were ended.
    """
    with ThreadPoolExecutor(2, thread_name_prefix="startup") as pool:
        plugins = pool.submit(probe_agents, settings)
        hardware = pool.submit(probe_hardware, settings)
        while not (plugins.done() and hardware.done()):
            if signals.stop_count:
                kill(psutil.Process().children())  # all are probes: no worker has started yet
            time.sleep(_POLL_SECONDS)
    if signals.stop_count:
        raise StoppedEarlyError
    return ProbeResults(plugins=plugins.result(), hardware=hardware.result())
