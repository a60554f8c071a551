"""Looks at everything the daemon needs and says what to do about what is wrong. Changes nothing."""

from __future__ import annotations

import difflib
import http.client
import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

import genesis_fp16
from genesis_fp16.cli.output import moment
from genesis_fp16.cli.settings import named_in_vain
from genesis_fp16.plugins import ShadowedPackageError, check_not_shadowed
from genesis_fp16.plugins.agent_folder import read_preflight
from genesis_fp16.plugins.probe import HardwareProbeError, Plugin, probe_agents, probe_hardware
from genesis_fp16.settings import Settings, SettingsError, hot_fields, load_settings, variable_name
from genesis_fp16.store import StoreError
from genesis_fp16.store.database import (
    HEAD_REVISION,
    check_not_lost,
    database_exists,
    database_url,
    open_database,
)
from genesis_fp16.store.failure import failure, shown
from genesis_fp16.store.serving import STARTING, serving
from genesis_fp16.store.unreadable_rows import unreadable_rows

LITTLE_DISK_BYTES = 2**30
NO_DISK_BYTES = 100 * 2**20
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        check: Its name.
        verdict: ``fail`` keeps the daemon, or part of its work, from running.
        found: What there is.
        remedy: What to do; empty if nothing.
    """

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def examine(load: Callable[[], Settings] = load_settings) -> list[Finding]:
    """Run every check; those that need settings only if these are sound.

    Args:
        load: Reads the settings.
    """
    findings = [check_versions(), check_library()]
    try:
        settings = load()
    except SettingsError as error:
        return findings + [Finding("settings", "fail", problem) for problem in error.problems]
    findings += check_settings(settings)
    findings += [check_home(settings), check_disk(settings), check_database(settings)]
    findings += [check_lock(settings), *check_followed(settings)]
    findings += [check_port(settings), check_device(settings)]
    plugins = probe_agents(settings)
    findings += check_plugins(settings, plugins)
    findings += check_measured(settings, [plugin.name for plugin in plugins])
    return findings


def check_versions() -> Finding:
    """What is installed."""
    found = f"genesis-fp16 {genesis_fp16.__version__}, Python {platform.python_version()}"
    return Finding("versions", "ok", found)


def check_library() -> Finding:
    """Whether workers will train with our library."""
    try:
        check_not_shadowed()
    except ShadowedPackageError as error:
        what, _, remedy = str(error).partition("; ")
        return Finding("library", "fail", what, remedy)
    return Finding("library", "ok", "infrastructure.training is the one installed with us")


def check_settings(settings: Settings) -> Iterator[Finding]:
    """Whether hot settings can be changed live."""
    path = settings.env_file
    if why := named_in_vain(settings):
        what, _, remedy = why.partition("; ")
        yield Finding("settings", "fail", what, remedy)
    else:
        read = "read" if path.exists() else "is missing"
        yield Finding("settings", "ok", f"sound; {path} {read}")
    hot = hot_fields(Settings)
    fixed = [variable_name(name) for name in hot if settings.source_of(name) == "environment"]
    for name in dict.fromkeys([*settings.shadowed, *fixed]):
        vain = f"outranks {path}" if name in settings.shadowed else "cannot be changed live"
        yield Finding(
            "settings",
            "warn",
            f"{name} is set in the environment and {vain}",
            f"unset it (no EnvironmentFile=, no env_file) and set it in {path}",
        )


def check_home(settings: Settings) -> Finding:
    """Whether GENESIS_HOME can be written."""
    home, existing = settings.home.absolute(), _existing(settings.home)
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Finding("home", "ok", f"{home} " + ("is writable" if existing == home else "is new"))
    return Finding(
        "home", "fail", f"{home} cannot be written", "make it writable, or set GENESIS_HOME"
    )


def check_disk(settings: Settings) -> Finding:
    """Whether there is room for checkpoints."""
    free = shutil.disk_usage(_existing(settings.home)).free
    found = f"{free / 2**30:.1f} GiB free"
    if free >= LITTLE_DISK_BYTES:
        return Finding("disk", "ok", found)
    verdict: Verdict = "warn" if free >= NO_DISK_BYTES else "fail"
    remedy = f"free space below {settings.home.absolute()}, or move GENESIS_HOME"
    return Finding("disk", verdict, found, remedy)


def _existing(home: Path) -> Path:
    """*home*, or the nearest folder above it that exists."""
    return next(path for path in (home.absolute(), *home.absolute().parents) if path.exists())


def check_database(settings: Settings) -> Finding:
    """Whether the database answers, and its schema revision; migrates nothing."""
    url = database_url(settings)
    name = shown(url)
    try:
        check_not_lost(settings)
        if not database_exists(settings):
            return Finding("database", "ok", f"{name} will be created")
        engine = create_engine(url)
        with engine.connect() as connection:
            revision = connection.scalar(text("SELECT version_num FROM alembic_version"))
        engine.dispose()
        if revision == HEAD_REVISION:
            return _rows_found(settings)
    except (StoreError, SQLAlchemyError, ModuleNotFoundError) as error:
        told = error if isinstance(error, StoreError) else failure(url, error)
        what, _, remedy = str(told).partition("; ")
        return Finding("database", "fail", what, remedy)
    return Finding(
        "database",
        "warn",
        f"{name} has revision {revision}, this release wants {HEAD_REVISION}",
        "the next start migrates an older one; a newer one needs the newer release",
    )


def _rows_found(settings: Settings) -> Finding:
    """Whether every row of a database of this release can be read."""
    url = database_url(settings)
    engine = open_database(url)
    unreadable = unreadable_rows(engine)
    engine.dispose()
    found = f"{shown(url)} at revision {HEAD_REVISION}"
    if not unreadable:
        return Finding("database", "ok", found)
    counts = ", ".join(f"{count} of {table}" for table, count in unreadable.items())
    remedy = "correct or delete what row_unreadable names in the log, or clear the override"
    return Finding("database", "warn", f"{found}; rows that cannot be read: {counts}", remedy)


def check_lock(settings: Settings) -> Finding:
    """Whether a daemon serves this home, and whether that is well."""
    daemon = serving(settings.home.absolute())
    if daemon is None:
        return Finding("lock", "ok", "no daemon serves")
    what, _, remedy = daemon.trouble.partition("; ")
    found = f"served by a daemon ({daemon})"
    if daemon.trouble in ("", STARTING):
        return Finding("lock", "ok", f"{found}{', which is starting' if what else ''}")
    return Finding("lock", "fail", f"{found}, which is not ready: {what}", remedy or "see its log")


def check_followed(settings: Settings) -> Iterator[Finding]:
    """Whether the daemon that serves follows the hot settings that are read here."""
    daemon = serving(settings.home.absolute())
    if daemon is None:
        return
    remedy = f"the daemon follows {daemon.env_file}: see that GENESIS_ENV_FILE names it here too"
    if daemon.refused:
        remedy = f"mend {daemon.env_file}"
        found = f"the daemon keeps what it had, since it refused {daemon.env_file}: "
        yield Finding("followed", "warn", found + " ".join(daemon.refused.split()), remedy)
    fixed = {name for name, source in daemon.sources.items() if source == "environment"}
    for name in sorted(fixed):
        found = f"{name} is set in the daemon's environment and cannot be changed live"
        mend = f"unset it there, set it in {daemon.env_file} and restart the daemon"
        yield Finding("followed", "warn", found, mend)
    followed = daemon.in_force(settings)
    for name, change in (followed.differences(settings) if followed is not None else {}).items():
        if name not in fixed:
            found = f"{name}: the daemon's -> read here is {change}"
            yield Finding("followed", "warn", found, remedy)


def check_port(settings: Settings) -> Finding:
    """Whether the metrics port is free, or served by our daemon."""
    host, port = settings.metrics_host, settings.metrics_port
    shown = f"{host}:{port}"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        return Finding("metrics port", "ok", f"{shown} is free")
    except OSError as error:
        if serving(settings.home.absolute()) is not None and _answers(host, port):
            return Finding("metrics port", "ok", f"{shown} is served by our daemon")
        return Finding(
            "metrics port",
            "fail",
            f"{shown}: {error.strerror or error}",
            "set GENESIS_METRICS_HOST and GENESIS_METRICS_PORT to a free address",
        )


def _answers(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=5.0)
    try:
        connection.request("GET", "/healthz")
        return b"the loop ticked" in connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def check_device(settings: Settings) -> Finding:
    """What torch says of the device, asked in a child process."""
    try:
        hardware = probe_hardware(settings)
    except HardwareProbeError as error:
        return Finding("device", "fail", str(error), "install torch for this machine")
    found = f"{hardware.device}, torch {hardware.torch_version}, fp16={hardware.fp16}"
    found = f"{found} bf16={hardware.bf16}"
    if hardware.device != "cpu":
        return Finding("device", "ok", found)
    if _NVIDIA_DRIVER.exists() and settings.device == "auto":
        remedy = "install a CUDA build of torch that matches the driver"
        return Finding("device", "warn", f"{found}, though a GPU driver is here", remedy)
    effect = "runs on it all the same, slowly" if settings.cpu_half else "resolves to FP32"
    return Finding("device", "ok", f"{found}; half precision {effect}")


def check_plugins(settings: Settings, plugins: list[Plugin]) -> Iterator[Finding]:
    """Which agents are usable, and settings of agents that are not installed."""
    for plugin in plugins:
        verdict: Verdict = "warn" if plugin.state == "quarantined" else "ok"
        said = f"{plugin.name} is {plugin.state}"
        yield Finding("plugin", verdict, f"{said}: {plugin.reason}" if plugin.reason else said)
    if not any(plugin.state == "ready" for plugin in plugins):
        yield Finding("plugin", "fail", "no agent is ready", "install or mend one")
    ready = [plugin.name for plugin in plugins if plugin.state == "ready"]
    for name in settings.canaries:
        if name not in ready:
            some = set(ready).intersection(settings.canaries)
            found = f"GENESIS_CANARY_AGENTS names {name}, which is no agent that is ready"
            effect = "" if some else "; so every agent stays in FP32"
            close = difflib.get_close_matches(name, ready, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(ready)}"
            yield Finding("canary", "warn" if some else "fail", found + effect, remedy)
    keys = {plugin.name.replace("-", "_") for plugin in plugins}
    for key in settings.agents.keys() - keys:
        close = difflib.get_close_matches(key, keys, n=1)
        remedy = f"did you mean {close[0].upper()}?" if close else "install it, or delete them"
        found = f"settings of {key.upper()}, an agent that is not installed"
        yield Finding("plugin", "warn", found, remedy)


def check_measured(settings: Settings, agents: Iterable[str]) -> Iterator[Finding]:
    """What each agent's last pre-flight measurement recommends, where there was one."""
    for agent in agents:
        report = read_preflight(settings.home.absolute() / "agents" / agent)
        if report is None:
            continue
        found = f"{agent} measured best in {report.verdict} on {report.device_name}, "
        found += f"{moment(report.measured_at)}: {'; '.join(report.reasons)}"
        wish = settings.for_agent(agent).precision or settings.precision
        key = agent.replace("-", "_").upper()
        remedy = f"set GENESIS_AGENTS__{key}__PRECISION=auto, or {report.verdict}"
        settled = wish in ("auto", report.verdict)
        yield Finding("precision", "ok", found, "" if settled else remedy)
