"""The probe: a child process that loads one agent, or asks torch about the hardware."""

from genesis_fp16.plugins.probe.parent import (
    Hardware,
    HardwareProbeError,
    Plugin,
    ProbeResult,
    probe_agents,
    probe_hardware,
)
from genesis_fp16.plugins.probe.process import ProbeProcesses, ProbesClosedError

__all__ = [
    "Hardware",
    "HardwareProbeError",
    "Plugin",
    "ProbeProcesses",
    "ProbeResult",
    "ProbesClosedError",
    "probe_agents",
    "probe_hardware",
]
