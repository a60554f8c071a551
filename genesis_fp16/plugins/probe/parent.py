"""The parent's side of the probe: what to ask it, and what its answer means.

An agent that fails is quarantined with the reason; the others are not affected.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, ValidationError

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.schedule import next_due
from genesis_fp16.plugins.discovery import InstalledEntryPoint
from genesis_fp16.plugins.loading import one_line
from genesis_fp16.plugins.probe.messages import ProbeAnswer, ProbeRequest
from genesis_fp16.plugins.probe.process import ProbeProcesses
from genesis_fp16.plugins.scan import FoundAgent, Scan, hash_of, scan_installed
from genesis_fp16.settings import AGENTS_PREFIX, Settings
from infrastructure.agent_contract import Schedule
from infrastructure.events.plain_text import LONGEST, plain

PROBES_AT_ONCE = 2  # each imports torch: more at a time make each other miss the deadline
SCAN_SECONDS = 120.0  # in which the metadata of everything installed must be read
_MORE_TIME = "raise GENESIS_PROBE_TIMEOUT_SECONDS if the machine is busy"

PluginState = Literal["ready", "quarantined", "disabled", "pending", "removed"]


class HardwareProbeError(GenesisError, RuntimeError):
    """Torch could not describe the device.

    Attributes:
        final: Whether the probe answered, so that another would say the same.
    """

    exit_code = os.EX_CONFIG

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugin:
    """One installed agent.

    Attributes:
        name: Name of the entry point; the agent's identity.
        entry_point: ``module:attribute``.
        distribution, version: Distribution that installed it; of a configured agent, its file and
            the beginning of the hash of its content.
        state: ``ready``; ``quarantined`` (see *reason*); ``disabled`` by the operator or by
            default, or because its extra is not installed; ``pending`` until it has been probed, or
            while its distribution is missing for a moment; ``removed`` when its distribution was
            uninstalled.
        reason: Why it is not ready, in one line with the remedy.
        detail: Traceback or last output of its probe, if there is one.
        schedule: The agent's own; the operator's setting wins.
        settings_schema: JSON schema of its settings; None if it takes none.
        answered: False if its probe hung or crashed; another may succeed.
    """

    name: str
    entry_point: str
    distribution: str
    version: str
    state: PluginState = "quarantined"
    reason: str = ""
    detail: str = ""
    schedule: Schedule | None = None
    settings_schema: dict[str, JsonValue] | None = None
    answered: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """The device as torch describes it.

    Attributes:
        device: ``cpu``, ``cuda`` or another of torch's names.
        fp16, bf16: Whether it computes them natively.
        torch_version: Version of torch that workers use.
    """

    device: str
    fp16: bool
    bf16: bool
    torch_version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResult:
    """What the probe of an agent found, and for what that holds.

    Attributes:
        plugin: The agent.
        key: Hash of its files, versions and settings.
        environment: Hash of everything installed, which may mend an agent that is quarantined.
    """

    plugin: Plugin
    key: str
    environment: str

    @classmethod
    def of(
        cls, plugin: Plugin, agent: FoundAgent, settings: Settings, environment: str
    ) -> ProbeResult:
        """What was found of *agent*; the end of a long traceback is kept."""
        detail = plugin.detail[-LONGEST:]
        return cls(
            plugin=replace(plugin, detail=detail),
            key=probe_key(agent, settings),
            environment=environment,
        )

    def same(self, key: str, environment: str) -> bool:
        """Whether neither the agent nor anything that may mend it has changed."""
        return self.key == key and self.environment == environment

    def holds_for(self, key: str, environment: str) -> bool:
        """Whether another probe would find the same."""
        if self.plugin.state == "ready":
            return self.key == key
        return self.plugin.answered and self.same(key, environment)


def probe_agents(
    settings: Settings,
    known: Mapping[str, ProbeResult],
    *,
    only: str | None = None,
    processes: ProbeProcesses | None = None,
) -> list[Plugin]:
    """Find the installed agents and probe each; in alphabetical order.

    Blocks until the last probe has answered or met its deadline.

    Args:
        known: Earlier results by name; an agent whose result still holds is not probed.
        only: Name of the only agent to find; None for all.
        processes: Starts the probes; by default new ones, which end with an interrupt.

    Raises:
        ProbesClosedError: *processes* was closed.
    """
    processes = processes or ProbeProcesses()
    scan = scan_installed(settings.home.absolute())
    agents = [agent for agent in scan.agents if only in (None, agent.point.name)]

    def examine(agent: FoundAgent) -> Plugin:
        plugin, result = unprobed(agent, settings), known.get(agent.point.name)
        if plugin.state != "pending":
            return plugin
        if result is not None and result.holds_for(probe_key(agent, settings), scan.environment):
            return result.plugin
        return probe_agent(plugin, agent, settings, processes)

    with ThreadPoolExecutor(PROBES_AT_ONCE) as pool:
        try:
            return list(pool.map(examine, agents))
        except BaseException:  # an interrupt: otherwise the pool waits for all
            processes.close()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def unprobed(agent: FoundAgent, settings: Settings) -> Plugin:
    """The agent as far as it is known without a probe; ``pending`` if it needs one."""
    plugin = Plugin(
        name=agent.point.name,
        entry_point=agent.point.target,
        distribution=agent.point.distribution,
        version=agent.point.version,
        state="pending",
        reason="its probe has not ended yet",
    )
    if agent.problem:
        return replace(plugin, state="quarantined", reason=agent.problem)
    if reason := _why_disabled(agent.point, settings):
        return replace(plugin, state="disabled", reason=reason)
    return plugin


def _why_disabled(point: InstalledEntryPoint, settings: Settings) -> str:
    """Why the agent is not loaded, and how to turn it on; empty if it is to be loaded."""
    chosen = settings.for_agent(point.name).enabled
    if chosen is False:
        return "disabled by the operator"
    if chosen is None and point.optional:
        variable = f"{AGENTS_PREFIX}{point.name}__enabled".replace("-", "_").upper()
        install = point.missing.rpartition(": ")[2]
        install = f"run {install}, " if install else ""
        return f"off by default; to turn it on, {install}set {variable}=true in the settings file"
    return f"needs {point.missing}" if point.missing else ""


def probe_key(agent: FoundAgent, settings: Settings) -> str:
    """Hash of what decides the outcome of the agent's probe."""
    return hash_of([agent.fingerprint, settings.for_agent(agent.point.name).settings])


def probe_agent(
    plugin: Plugin, agent: FoundAgent, settings: Settings, processes: ProbeProcesses
) -> Plugin:
    """Load *agent* in a child process; return *plugin* with its state.

    Raises:
        ProbesClosedError: *processes* was closed.
    """
    agent_settings = settings.for_agent(plugin.name).settings
    request = ProbeRequest(
        root=agent.point.root, definition=agent.point.definition, settings=agent_settings
    ).model_dump_json()
    arguments = [plugin.entry_point, "--name", plugin.name]
    failed = replace(plugin, state="quarantined", answered=False)
    try:
        child = processes.run(arguments, request, settings.probe_timeout_seconds)
    except OSError as error:
        return replace(failed, reason=one_line(f"its probe could not be started: {error}"))
    try:
        answer = ProbeAnswer.model_validate_json(child.answer)
    except ValidationError:
        remedy = f"{_MORE_TIME}, or import less in the agent"
        reason = one_line(child.failure(settings.probe_timeout_seconds, remedy, agent.module))
        return replace(failed, reason=reason, detail=f"{child.output}{plain(child.trace, LONGEST)}")
    problem = answer.reason
    if answer.schedule is not None:
        try:
            next_due(answer.schedule, time.time())
        except ValueError as error:
            problem = problem or one_line(f"schedule() is invalid: {error}")
    return replace(
        plugin,
        state="quarantined" if problem else "ready",
        reason=problem,
        detail=answer.detail,
        schedule=answer.schedule,
        settings_schema=answer.settings_schema,
    )


def probe_hardware(settings: Settings, processes: ProbeProcesses | None = None) -> Hardware:
    """Have torch describe, in a child process, the device that the settings name.

    Raises:
        HardwareProbeError: There is no such device, or torch cannot be imported.
        ProbesClosedError: *processes* was closed.
    """
    deadline = settings.probe_timeout_seconds
    try:
        arguments = ["--hardware", "--device", settings.device]
        child = (processes or ProbeProcesses()).run(arguments, "", deadline)
    except OSError as error:
        raise HardwareProbeError(f"its probe could not be started: {error}", final=False) from error
    try:
        return Hardware(**json.loads(child.answer))
    except (ValueError, TypeError):
        if child.status is None or child.status < 0 or child.timed_out:
            message = f"the probe of the device {child.failure(deadline, _MORE_TIME)}"
            raise HardwareProbeError(one_line(message), final=False) from None
        last = child.output.strip().rpartition("\n")[2] or child.failure(deadline, _MORE_TIME)
        raise HardwareProbeError(one_line(last), final=True) from None


def scan_in_child(processes: ProbeProcesses, home: Path) -> Scan:
    """Read in a child process what is installed or configured; see `genesis_fp16.plugins.scan`.

    Raises:
        OSError: The child could not be started, or failed; the message says how.
        ProbesClosedError: *processes* was closed.
    """
    child = processes.run(["--scan", str(home)], "", SCAN_SECONDS)
    try:
        return Scan.model_validate_json(child.answer)
    except ValidationError:
        remedy = "check that the disk with the Python environment answers"
        last = child.output.strip().rpartition("\n")[2] or child.failure(SCAN_SECONDS, remedy)
        raise OSError(one_line(f"reading what is installed failed: {last}")) from None
