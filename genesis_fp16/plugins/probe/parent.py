"""The parent's side of the probe: start it, limit its time, read its answer.

An agent that fails is quarantined with the reason; the others are not affected.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import JsonValue, ValidationError

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.schedule import next_due
from genesis_fp16.plugins.discovery import (
    AGENTS_GROUP,
    InstalledEntryPoint,
    installed_entry_points,
    registration_error,
)
from genesis_fp16.plugins.loading import one_line
from genesis_fp16.plugins.probe.messages import ProbeAnswer, ProbeRequest
from genesis_fp16.settings import Settings
from infrastructure.agent_contract import Schedule
from infrastructure.events.plain_text import plain

PROBES_AT_ONCE = 2  # each imports torch: more at a time make each other miss the deadline
_GRACE_SECONDS = 5.0  # the probe ends itself at its deadline; this is for one that cannot
_OUTPUT_BYTES = 16384

PluginState = Literal["ready", "quarantined", "disabled"]


class HardwareProbeError(GenesisError, RuntimeError):
    """Torch could not describe the device."""

    exit_code = os.EX_CONFIG


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugin:
    """One installed agent.

    Attributes:
        name: Name of the entry point; the agent's identity.
        entry_point: ``module:attribute``.
        distribution, version: Distribution that installed it.
        state: ``ready``; ``quarantined`` (see *reason*); ``disabled`` by the operator.
        reason: Why it is not ready, in one line with the remedy.
        detail: Traceback or last output of its probe, if there is one.
        schedule: The agent's own; the operator's setting wins.
        settings_schema: JSON schema of its settings; None if it takes none.
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


def probe_agents(settings: Settings) -> list[Plugin]:
    """Find the installed agents and probe each; in alphabetical order.

    Blocks until the last probe has answered or met its deadline.
    """
    points = installed_entry_points(AGENTS_GROUP)

    def examine(point: InstalledEntryPoint) -> Plugin:
        plugin = Plugin(
            name=point.name,
            entry_point=point.target,
            distribution=point.distribution,
            version=point.version,
        )
        if reason := registration_error(point, points, "agent"):
            return replace(plugin, reason=reason)
        if not settings.for_agent(point.name).enabled:
            return replace(plugin, state="disabled", reason="disabled by the operator")
        return _probe(plugin, point, settings)

    with ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="probe") as pool:
        return list(pool.map(examine, points))


def probe_hardware(settings: Settings) -> Hardware:
    """Have torch describe, in a child process, the device that the settings name.

    Raises:
        HardwareProbeError: There is no such device, or torch cannot be imported.
    """
    child = _run_probe(["--hardware", "--device", settings.device], "", settings)
    try:
        return Hardware(**json.loads(child.answer))
    except (ValueError, TypeError):
        last = child.output.strip().rpartition("\n")[2]
        raise HardwareProbeError(one_line(last or child.failure(settings))) from None


@dataclass(frozen=True, slots=True)
class _Ended:
    """Exit status and output of a probe; *status* is None if it was killed at its deadline."""

    status: int | None
    answer: str
    output: str

    def failure(self, settings: Settings) -> str:
        """Why there is no answer."""
        if self.status is None or (self.status == 1 and "Timeout (" in self.output):
            return (
                f"did not load within {settings.probe_timeout_seconds:g} s: do less at import, or "
                "raise GENESIS_PROBE_TIMEOUT_SECONDS"
            )
        if self.status < 0:
            known = {each.value: each.name for each in signal.Signals}
            killer = known.get(-self.status, f"signal {-self.status}")
            return f"crashed while loading: killed by {killer}"
        return f"ended its process with status {self.status} while loading"


def _probe(plugin: Plugin, point: InstalledEntryPoint, settings: Settings) -> Plugin:
    request = ProbeRequest(root=point.root, settings=settings.for_agent(plugin.name).settings)
    arguments = [plugin.entry_point, "--name", plugin.name]
    child = _run_probe(arguments, request.model_dump_json(), settings)
    try:
        answer = ProbeAnswer.model_validate_json(child.answer)
        if answer.schedule is not None:
            next_due(answer.schedule, time.time())
    except ValidationError:
        return replace(plugin, reason=child.failure(settings), detail=child.output)
    except ValueError as error:  # from next_due: ValidationError is a ValueError too
        return replace(plugin, reason=one_line(f"schedule() is invalid: {error}"))
    return replace(
        plugin,
        state="quarantined" if answer.reason else "ready",
        reason=answer.reason,
        detail=answer.detail,
        schedule=answer.schedule,
        settings_schema=answer.settings_schema,
    )


def _run_probe(arguments: list[str], request: str, settings: Settings) -> _Ended:
    """Run the probe in its own process group and kill that group afterwards."""
    deadline = settings.probe_timeout_seconds
    with (
        tempfile.TemporaryFile() as requests,
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as output,
    ):
        requests.write(request.encode())
        requests.seek(0)
        command = [sys.executable, "-P", "-m", "genesis_fp16.plugins.probe", *arguments]
        command += ["--answer", str(answer.fileno()), "--deadline", str(deadline)]
        child = subprocess.Popen(
            command,
            stdin=requests,
            stdout=output,
            stderr=output,
            pass_fds=(answer.fileno(),),
            start_new_session=True,
        )
        status = None
        with suppress(subprocess.TimeoutExpired):
            status = child.wait(deadline + _GRACE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
        printed = plain(output.read().decode(errors="replace"), _OUTPUT_BYTES)
        answer.seek(0)
        return _Ended(status, answer.read().decode(errors="replace"), printed)
