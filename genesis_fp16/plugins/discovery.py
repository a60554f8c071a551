"""Which agents are installed, and which of them can be used: found by metadata, never imported.

Each is loaded once in a child process with a deadline (`genesis_fp16.plugins.probe`). One that
fails is quarantined with the reason; the others are not affected.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from pydantic import JsonValue, ValidationError

import genesis_fp16
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.schedule import next_due
from genesis_fp16.plugins.probe import ProbeAnswer, ProbeRequest, one_line
from genesis_fp16.settings.settings import Settings
from infrastructure.agent_contract import Schedule
from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.events.plain_text import plain

ENTRY_POINT_GROUP = "genesis.agents"
PROBES_AT_ONCE = 2  # each imports torch: more at a time make each other miss the deadline
_GRACE_SECONDS = 5.0  # the probe ends itself at its deadline; this is for one that cannot
_OUTPUT_BYTES = 16384
_LONGEST_NAME = 64  # characters shown of a wrong name: more would ruin every table

PluginState = Literal["ready", "quarantined", "disabled"]


class ShadowedPackageError(GenesisError, ImportError):
    """Another package of the same name hides our training library."""

    exit_code = os.EX_CONFIG

    def __init__(self, expected: Path, found: str) -> None:
        super().__init__(
            f"infrastructure.training is shadowed: expected below {expected}, found {found}; "
            "unset PYTHONPATH, or install genesis-fp16 into an environment of its own"
        )


class UnknownAgentError(GenesisError, LookupError):
    """No agent of this name is installed."""

    exit_code = 2  # as for any other wrong word on the command line

    def __init__(self, agent: str, installed: Iterable[str]) -> None:
        known = ", ".join(sorted(installed)) or "none"
        super().__init__(f"no agent {agent!r} is installed; there are {known}")


class HardwareProbeError(GenesisError, RuntimeError):
    """Torch could not say what the device is."""

    exit_code = os.EX_CONFIG


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugin:
    """One installed agent.

    Attributes:
        name: Of the entry point; the agent's identity.
        entry_point: ``module:attribute``.
        distribution, version: What installed it.
        state: ``ready``; ``quarantined`` (see *reason*); ``disabled`` by the operator.
        reason: Why it is not ready, in one line with the remedy.
        detail: The traceback or last output of its probe, where there is one.
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
    """What torch says of the device.

    Attributes:
        device: Such as ``cpu`` or ``cuda``.
        fp16, bf16: Whether it computes them natively.
        torch_version: Of the torch that workers use.
    """

    device: str
    fp16: bool
    bf16: bool
    torch_version: str


def check_not_shadowed() -> None:
    """Make sure that workers will train with our library; imports nothing heavy.

    Raises:
        ShadowedPackageError: ``infrastructure.training`` is not the one installed with us.
    """
    expected = Path(genesis_fp16.__file__).resolve().parents[1]
    try:
        spec = find_spec("infrastructure.training")
    except ImportError as error:
        raise ShadowedPackageError(expected, str(error)) from error
    found = spec.origin if spec is not None else None
    if found is None or not Path(found).resolve().is_relative_to(expected):
        raise ShadowedPackageError(expected, found or "nothing")


def agent_entry_points() -> dict[str, str]:
    """``module:attribute`` of the installed agents by name, whatever state they are in."""
    return {plugin.name: plugin.entry_point for plugin, _ in _discover()}


def entry_point_of(agent: str) -> str:
    """``module:attribute`` of the installed agent of that name, whatever state it is in.

    Raises:
        UnknownAgentError: There is none.
    """
    installed = agent_entry_points()
    if agent not in installed:
        raise UnknownAgentError(agent, installed)
    return installed[agent]


def load_plugins(settings: Settings) -> list[Plugin]:
    """Find the installed agents and probe each, by name in alphabetical order.

    Blocks until the last probe has answered or met its deadline.
    """
    candidates = sorted(_discover(), key=lambda found: found[0].name)
    names = [plugin.name for plugin, _ in candidates]

    def judge(candidate: tuple[Plugin, Path | None]) -> Plugin:
        plugin, root = candidate
        if names.count(plugin.name) > 1:
            owners = sorted(p.distribution for p, _ in candidates if p.name == plugin.name)
            return replace(
                plugin,
                reason=f"{' and '.join(owners)} both register an agent named {plugin.name!r}: "
                "uninstall one of them",
            )
        if plugin.reason:
            return plugin
        if not settings.for_agent(plugin.name).enabled:
            return replace(plugin, state="disabled", reason="disabled by the operator")
        return _probe(plugin, root, settings)

    with ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="probe") as pool:
        return list(pool.map(judge, candidates))


def probe_hardware(settings: Settings) -> Hardware:
    """Ask torch, in a child process, about the device that the settings name.

    Raises:
        HardwareProbeError: There is no such device, or torch cannot be imported.
    """
    child = _run_probe(["--hardware", "--device", settings.device], "", settings)
    try:
        return Hardware(**json.loads(child.answer))
    except (ValueError, TypeError):
        last = child.output.strip().rpartition("\n")[2]
        raise HardwareProbeError(one_line(last or child.fate(settings))) from None


def _discover() -> Iterator[tuple[Plugin, Path | None]]:
    """Yield each agent's descriptor and the folder that its module must come from."""
    for point in entry_points(group=ENTRY_POINT_GROUP):
        reason, name = "", plain(point.name, _LONGEST_NAME)
        if not AGENT_NAME.fullmatch(point.name):
            reason = f"{name!r} is no name for an agent: it must match {AGENT_NAME.pattern}"
        plugin = Plugin(
            name=name,
            entry_point=point.value.partition("[")[0].strip(),
            distribution=point.dist.name if point.dist else "unknown",
            version=point.dist.version if point.dist else "unknown",
            reason=reason,
        )
        yield plugin, _root_of(point.dist) if point.dist else None


def _root_of(distribution: Distribution) -> Path:
    """Folder below which the distribution's modules lie: its sources where it is editable."""
    with suppress(ValueError, KeyError, TypeError):  # no such file, or not of that form
        origin = json.loads(distribution.read_text("direct_url.json") or "")
        if origin["dir_info"]["editable"]:
            return Path(unquote(urlsplit(origin["url"]).path))
    return Path(str(distribution.locate_file("")))


@dataclass(frozen=True, slots=True)
class _Ended:
    """What a probe left behind; *status* is None if it met its deadline."""

    status: int | None
    answer: str
    output: str

    def fate(self, settings: Settings) -> str:
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


def _probe(plugin: Plugin, root: Path | None, settings: Settings) -> Plugin:
    request = ProbeRequest(root=root, settings=settings.for_agent(plugin.name).settings)
    arguments = [plugin.entry_point, "--name", plugin.name]
    child = _run_probe(arguments, request.model_dump_json(), settings)
    try:
        answer = ProbeAnswer.model_validate_json(child.answer)
        if answer.schedule is not None:
            next_due(answer.schedule, time.time())
    except ValidationError:
        return replace(plugin, reason=child.fate(settings), detail=child.output)
    except ValueError as error:  # from next_due: ValidationError is a ValueError too
        return replace(plugin, reason=one_line(f"schedule() cannot be kept: {error}"))
    return replace(
        plugin,
        state="quarantined" if answer.reason else "ready",
        reason=answer.reason,
        detail=answer.detail,
        schedule=answer.schedule,
        settings_schema=answer.settings_schema,
    )


def _run_probe(arguments: list[str], request: str, settings: Settings) -> _Ended:
    """Run the probe in a process group of its own and leave nothing of that group alive."""
    deadline = settings.probe_timeout_seconds
    with (
        tempfile.TemporaryFile() as asked,
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as output,
    ):
        asked.write(request.encode())
        asked.seek(0)
        command = [sys.executable, "-P", "-m", "genesis_fp16.plugins.probe", *arguments]
        command += ["--answer", str(answer.fileno()), "--deadline", str(deadline)]
        child = subprocess.Popen(
            command,
            stdin=asked,
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
