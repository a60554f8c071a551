"""Finding out what there is to run and on what: plugins and hardware, probed side by side."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import psutil

from genesis_fp16.plugins.probe import Hardware, Plugin, probe_agents, probe_hardware
from genesis_fp16.settings import Settings
from genesis_fp16.system.signals import Signals

_LOOK_SECONDS = 0.1


class StoppedEarlyError(Exception):
    """A signal asked to stop before there was anything to stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What the probes found.

    Attributes:
        plugins: All installed, usable or not.
        hardware: Of the device that the settings name.
    """

    plugins: list[Plugin]
    hardware: Hardware

    @property
    def entry_points(self) -> dict[str, str]:
        """Agent to entry point, of those that may run."""
        return {
            plugin.name: plugin.entry_point for plugin in self.plugins if plugin.state == "ready"
        }


def look_around(settings: Settings, signals: Signals) -> Findings:
    """Probe plugins and hardware.

    Raises:
        HardwareProbeError: There is no such device.
        StoppedEarlyError: A signal came; the probes were ended.
    """
    with ThreadPoolExecutor(2, thread_name_prefix="startup") as pool:
        plugins = pool.submit(probe_agents, settings)
        hardware = pool.submit(probe_hardware, settings)
        while not (plugins.done() and hardware.done()):
            if signals.stops:
                _kill_children()
            time.sleep(_LOOK_SECONDS)
    if signals.stops:
        raise StoppedEarlyError
    return Findings(plugins=plugins.result(), hardware=hardware.result())


def _kill_children() -> None:
    """End the probes: no worker has been started yet, so all our children are probes."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            child.kill()
