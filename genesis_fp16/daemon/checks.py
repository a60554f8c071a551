"""The checks of ``genesis-fp16 doctor``: each names a problem and its remedy; all only read."""

from __future__ import annotations

import difflib
import grp
import http.client
import os
import platform
import shutil
import socket
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

import genesis_fp16
from genesis_fp16.daemon.api_tokens import TokenError, open_tokens
from genesis_fp16.daemon.known_agents import known_agents
from genesis_fp16.daemon.prediction import check_predictor_tokens
from genesis_fp16.daemon.telemetry import INSTALL_EXPORTER, missing_exporter
from genesis_fp16.domain.moments import moment
from genesis_fp16.executors.check import check_executor
from genesis_fp16.executors.choice import NO_USE_OF_URL, REMEDY_OF_URL
from genesis_fp16.plugins import ShadowedPackageError, check_not_shadowed
from genesis_fp16.plugins.agent_folder import read_preflight
from genesis_fp16.plugins.commands import plugin_commands
from genesis_fp16.plugins.discovery import (
    AGENTS_GROUP,
    UNREADABLE_REMEDY,
    installed_entry_points,
)
from genesis_fp16.plugins.installed_files import OF_ITS_OWN, changed_files, neighbours
from genesis_fp16.plugins.probe import HardwareProbeError, Plugin, probe_hardware
from genesis_fp16.settings import Settings, SettingsError, hot_fields, load_settings, variable_name
from genesis_fp16.store import StoreError
from genesis_fp16.store.daemon_status import STARTING, find_daemon
from genesis_fp16.store.database import (
    HEAD_REVISION,
    check_not_lost,
    database_exists,
    database_url,
    open_database,
)
from genesis_fp16.store.errors import display_name, store_error
from genesis_fp16.store.home import ForeignHomeError, refuse_foreign_folder
from genesis_fp16.store.unreadable_rows import count_unreadable_rows
from genesis_fp16.system.permissions import open_to_others

LITTLE_DISK_BYTES = 2**30
NO_DISK_BYTES = 100 * 2**20
MOST_PATHS = 5  # listed in a line
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Attributes:
        verdict: ``fail`` keeps the daemon, or part of its work, from running.
        remedy: What to do; empty if nothing.
    """

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def run_checks(
    load: Callable[[], Settings] = load_settings, built_in: Collection[str] = ()
) -> list[CheckResult]:
    """Run every check; those that need settings only if these are valid.

    The program's own commands are *built_in*.
    """
    results = [check_versions(), check_library(), *check_files(), *check_metadata()]
    results += check_commands(built_in)
    try:
        settings = load()
    except SettingsError as error:
        return results + [CheckResult("settings", "fail", problem) for problem in error.problems]
    results += check_settings(settings)
    results += [check_home(settings), *check_access(settings), check_disk(settings)]
    results += [check_database(settings)]
    results += [check_lock(settings), *check_daemon_settings(settings)]
    results += [
        check_port(settings),
        check_api(settings),
        check_predictor(settings),
        check_telemetry(settings),
        check_device(settings),
        *check_engine(settings),
    ]
    plugins = known_agents(settings)
    results += check_plugins(settings, plugins)
    results += check_preflight(settings, [plugin.name for plugin in plugins])
    return results


def check_versions() -> CheckResult:
    """Versions of the program and of Python."""
    versions = f"genesis-fp16 {genesis_fp16.__version__}, Python {platform.python_version()}"
    return CheckResult("versions", "ok", versions)


def check_library() -> CheckResult:
    """Whether ``infrastructure.training`` is the one installed with us."""
    try:
        check_not_shadowed()
    except ShadowedPackageError as error:
        what, _, remedy = str(error).partition("; ")
        return CheckResult("library", "fail", what, remedy)
    return CheckResult("library", "ok", "infrastructure.training is the one installed with us")


def check_files() -> Iterator[CheckResult]:
    """Whether our installed files are the recorded ones, and who else has packages of our names."""
    changed = changed_files()
    by_owner: dict[str, list[str]] = {}
    for file in changed:
        by_owner.setdefault(file.neighbour, []).append(file.path)
    for neighbour, paths in by_owner.items():
        listed = ", ".join(paths[:MOST_PATHS]) + (", ..." if len(paths) > MOST_PATHS else "")
        what = f"{len(paths)} of our installed files changed or missing: {listed}"
        remedy = "install genesis-fp16 again"
        if neighbour:
            what = f"{neighbour} overwrote {len(paths)} of our files: {listed}"
            remedy = f"{OF_ITS_OWN}, and install {neighbour.split()[0]} again"
        yield CheckResult("files", "fail", what, remedy)
    for neighbour, place in neighbours():
        what = (
            f"{neighbour} has a package of our name, {place}: here each hides or damages the other"
        )
        yield CheckResult("files", "warn", what, OF_ITS_OWN)
    if not changed:
        yield CheckResult("files", "ok", "the installed files are those of the distribution")


def check_metadata() -> Iterator[CheckResult]:
    """Which distributions have metadata that cannot be read."""
    unreadable: list[str] = []
    installed_entry_points(AGENTS_GROUP, unreadable)
    for what in unreadable:
        yield CheckResult("metadata", "fail", what, UNREADABLE_REMEDY)


def check_commands(built_in: Collection[str]) -> Iterator[CheckResult]:
    """Whether the metadata of each plugin's command is usable; imports none."""
    for command in plugin_commands(built_in):
        source = f"{command.point.name} of {command.point.distribution} {command.point.version}"
        what, _, remedy = command.problem.partition("; ")
        if command.problem:
            yield CheckResult("command", "warn", f"{source} cannot be used: {what}", remedy)
        else:
            yield CheckResult("command", "ok", f"{source} is installed")


def check_settings(settings: Settings) -> Iterator[CheckResult]:
    """Whether hot settings can be changed live, and which settings are ignored."""
    path = settings.env_file
    read = "read" if path.exists() else "is missing"
    yield CheckResult("settings", "ok", f"valid; {path} {read}")
    hot = hot_fields(Settings)
    fixed = [variable_name(name) for name in hot if settings.source_of(name) == "environment"]
    for name in dict.fromkeys([*settings.shadowed, *fixed]):
        effect = f"outranks {path}" if name in settings.shadowed else "cannot be changed live"
        yield CheckResult(
            "settings",
            "warn",
            f"{name} is set in the environment and {effect}",
            f"unset it (no EnvironmentFile=, no env_file) and set it in {path}",
        )
    for warning in (*settings.removed.values(), *settings.unknown.values()):
        what, _, remedy = warning.partition("; ")
        yield CheckResult("settings", "warn", what, remedy)


def check_home(settings: Settings) -> CheckResult:
    """Whether GENESIS_HOME is a home, or may become one, and can be written."""
    home, existing = settings.home.absolute(), _existing(settings.home)
    try:
        refuse_foreign_folder(home)
    except ForeignHomeError as error:
        what, _, remedy = str(error).partition("; ")
        return CheckResult("home", "fail", what, remedy)
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return CheckResult(
            "home", "ok", f"{home} " + ("is writable" if existing == home else "is new")
        )
    return CheckResult(
        "home", "fail", f"{home} cannot be written", "make it writable, or set GENESIS_HOME"
    )


def check_access(settings: Settings) -> Iterator[CheckResult]:
    """Whether other users of the machine are kept from secrets and from the rollback switch."""
    home, env_file, is_too_open = settings.home.absolute(), settings.env_file.absolute(), False
    for path, what, command in _too_open(settings):
        is_too_open = True
        yield CheckResult("access", "warn", f"other users {what} {path}", f"{command} {path}")
    if not is_too_open and (home.exists() or env_file.exists()):
        closed = "other users can neither read secrets nor change the settings file"
        yield CheckResult("access", "ok", closed)


def _too_open(settings: Settings) -> Iterator[tuple[Path, str, str]]:
    """Path, what other users can do with it, and the command that ends it."""
    home, env_file = settings.home.absolute(), settings.env_file.absolute()
    with suppress(OSError, ForeignHomeError):
        refuse_foreign_folder(home)
        for path in open_to_others(home):
            yield path, "can read or enter", "chmod -R go-rwx" if path == home else "chmod o-rwx"
    with suppress(OSError):
        mode = env_file.stat().st_mode
        if mode & stat.S_IROTH and settings.has_secrets_in_file:
            yield env_file, "can read the secrets in", "chmod o-rwx"
        if mode & stat.S_IWOTH:
            yield env_file, "can change the rollback switch in", "chmod o-w"
        mode = env_file.parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            yield env_file.parent, "can replace the settings file in", "chmod o-w"
    url = database_url(settings)
    if url.get_backend_name() == "sqlite" and url.database:
        database = Path(url.database).absolute()
        with suppress(OSError):
            if home not in database.parents and database.stat().st_mode & 0o006:
                yield database, "can read or change the database", "chmod o-rw"


def check_disk(settings: Settings) -> CheckResult:
    """Whether there is enough free disk space for checkpoints."""
    free = shutil.disk_usage(_existing(settings.home)).free
    space = f"{free / 2**30:.1f} GiB free"
    if free >= LITTLE_DISK_BYTES:
        return CheckResult("disk", "ok", space)
    verdict: Verdict = "warn" if free >= NO_DISK_BYTES else "fail"
    remedy = f"free space below {settings.home.absolute()}, or move GENESIS_HOME"
    return CheckResult("disk", verdict, space, remedy)


def _existing(home: Path) -> Path:
    """*home*, or the nearest folder above it that exists."""
    return next(path for path in (home.absolute(), *home.absolute().parents) if path.exists())


def check_database(settings: Settings) -> CheckResult:
    """Whether the database answers, and its schema revision; migrates nothing."""
    url = database_url(settings)
    name = display_name(url)
    try:
        check_not_lost(settings)
        if not database_exists(settings):
            return CheckResult("database", "ok", f"{name} will be created")
        engine = create_engine(url)
        with engine.connect() as connection:
            revision = connection.scalar(text("SELECT version_num FROM alembic_version"))
        engine.dispose()
        if revision == HEAD_REVISION:
            return _check_rows(settings)
    except (StoreError, SQLAlchemyError, ModuleNotFoundError) as error:
        failed = error if isinstance(error, StoreError) else store_error(url, error)
        what, _, remedy = str(failed).partition("; ")
        return CheckResult("database", "fail", what, remedy)
    revisions = f"{name} has schema revision {revision}, this release has {HEAD_REVISION}"
    if revision is not None and revision > HEAD_REVISION:
        remedy = "install the release that wrote it, or a newer one: this one does not start"
        return CheckResult("database", "fail", revisions, remedy)
    return CheckResult("database", "warn", revisions, "the next start migrates it")


def _check_rows(settings: Settings) -> CheckResult:
    """Whether every row of a database of this release can be read."""
    url = database_url(settings)
    engine = open_database(url)
    unreadable = count_unreadable_rows(engine)
    engine.dispose()
    database = f"{display_name(url)} at revision {HEAD_REVISION}"
    if not unreadable:
        return CheckResult("database", "ok", database)
    counts = ", ".join(f"{count} of {table}" for table, count in unreadable.items())
    remedy = "correct or delete what row_unreadable names in the log, or clear the override"
    return CheckResult(
        "database", "warn", f"{database}; rows that cannot be read: {counts}", remedy
    )


def check_lock(settings: Settings) -> CheckResult:
    """Whether a daemon serves this home, and whether it is ready."""
    daemon = find_daemon(settings.home.absolute())
    if daemon is None:
        return CheckResult("lock", "ok", "no daemon serves")
    what, _, remedy = daemon.trouble.partition("; ")
    holder = f"served by a daemon ({daemon})"
    if daemon.trouble in ("", STARTING):
        return CheckResult("lock", "ok", f"{holder}{', which is starting' if what else ''}")
    return CheckResult(
        "lock", "fail", f"{holder}, which is not ready: {what}", remedy or "see its log"
    )


def check_daemon_settings(settings: Settings) -> Iterator[CheckResult]:
    """Whether the hot settings read here are the ones that the running daemon uses."""
    daemon = find_daemon(settings.home.absolute())
    if daemon is None:
        return
    remedy = f"the daemon reads {daemon.env_file}: let GENESIS_ENV_FILE name that file here too"
    if daemon.refused:
        remedy = f"correct {daemon.env_file}"
        problem = f"the daemon refused {daemon.env_file} and keeps its previous settings: "
        yield CheckResult("followed", "warn", problem + " ".join(daemon.refused.split()), remedy)
    fixed = {name for name, source in daemon.sources.items() if source == "environment"}
    for name in sorted(fixed):
        problem = f"{name} is set in the daemon's environment and cannot be changed live"
        unset = f"unset it there, set it in {daemon.env_file} and restart the daemon"
        yield CheckResult("followed", "warn", problem, unset)
    followed = daemon.settings_in_force(settings)
    for name, change in (followed.differences(settings) if followed is not None else {}).items():
        if name not in fixed:
            problem = f"{name} differs (the daemon's -> read here): {change}"
            yield CheckResult("followed", "warn", problem, remedy)


def check_port(settings: Settings) -> CheckResult:
    """Whether the metrics port is free, or served by our daemon."""
    host, port = settings.metrics_host, settings.metrics_port
    shown = f"{host}:{port}"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        return CheckResult("metrics port", "ok", f"{shown} is free")
    except OSError as error:
        if find_daemon(settings.home.absolute()) is not None and _answers(host, port):
            return CheckResult("metrics port", "ok", f"{shown} is served by our daemon")
        return CheckResult(
            "metrics port",
            "fail",
            f"{shown}: {error.strerror or error}",
            "set GENESIS_METRICS_HOST and GENESIS_METRICS_PORT to a free address",
        )


def check_api(settings: Settings) -> CheckResult:
    """Whether the control API may listen as the settings ask, and who could read its tokens."""
    host, port, file = settings.api_host, settings.api_port, settings.api_token_file
    if port is None:
        observed = "on its Unix socket alone" if settings.api_socket else "off"
        observed = f"{observed}; GENESIS_API_PORT opens the page, to which alerts link"
        return CheckResult("control api", "ok", observed)
    try:
        count = len(open_tokens(settings).in_force())
    except TokenError as error:
        what, _, remedy = str(error).partition(": ")
        return CheckResult("control api", "fail", what, remedy)
    verdict: Verdict = "ok"
    observed, remedy = f"on {host}:{port}, {count} token{'' if count == 1 else 's'}", ""
    if not count:
        observed, verdict = f"{host}:{port} without a token", "fail"
        remedy = "set GENESIS_API_TOKEN or GENESIS_API_TOKEN_FILE"
    elif file is not None and file.stat().st_mode & 0o077:
        observed, verdict = f"other users can read the tokens in {file}", "warn"
        remedy = f"chmod 600 {file}"
    elif host not in ("localhost", "127.0.0.1", "::1"):
        observed, verdict = f"{observed}, without encryption", "warn"
        remedy = "put a proxy with TLS before it, or listen on loopback"
    return CheckResult("control api", verdict, observed, remedy)


def check_predictor(settings: Settings) -> CheckResult:
    """Whether running agents may ask as the settings say: token on TCP, group of the socket."""
    name, group, home = "predictor", settings.predict_group, settings.home.absolute()
    if not settings.predictor:
        return CheckResult(name, "ok", "off")
    try:
        check_predictor_tokens(settings)
    except TokenError as error:
        what, _, remedy = str(error).partition(": ")
        return CheckResult(name, "fail", what, remedy)
    if group:
        remedy = f"chgrp {group} {home}; chmod 710 {home}"
        try:
            status, wanted = home.stat(), grp.getgrnam(group).gr_gid
        except KeyError:
            remedy = "name an existing group in GENESIS_PREDICT_GROUP"
            return CheckResult(name, "fail", f"the group {group} does not exist", remedy)
        except OSError:
            return CheckResult(name, "ok", f"for the group {group}; {home} does not exist yet")
        if status.st_gid != wanted or not status.st_mode & stat.S_IXGRP:
            return CheckResult(name, "warn", f"the group {group} may not enter {home}", remedy)
    observed = "on its Unix socket"
    if settings.predict_port is not None:
        observed += f" and on {settings.predict_host}:{settings.predict_port}"
    return CheckResult(name, "ok", observed)


def check_telemetry(settings: Settings) -> CheckResult:
    """Whether the exporter is installed if the settings want it."""
    if not settings.otel:
        return CheckResult("telemetry", "ok", "off")
    missing = missing_exporter()
    if missing:
        found = f"GENESIS_OTEL=true, but {missing} is not installed: nothing is exported"
        return CheckResult("telemetry", "warn", found, INSTALL_EXPORTER)
    return CheckResult("telemetry", "ok", "exports over OTLP, as the daemon's OTEL_* variables say")


def _answers(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=5.0)
    try:
        connection.request("GET", "/metrics")
        return b"genesis_build_info" in connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def check_device(settings: Settings) -> CheckResult:
    """The device as torch describes it in a child process."""
    try:
        hardware = probe_hardware(settings)
    except HardwareProbeError as error:
        return CheckResult("device", "fail", str(error), "install torch for this machine")
    device = f"{hardware.device}, torch {hardware.torch_version}, fp16={hardware.fp16}"
    device = f"{device} bf16={hardware.bf16}"
    if hardware.device != "cpu":
        return CheckResult("device", "ok", device)
    if _NVIDIA_DRIVER.exists() and settings.device == "auto":
        remedy = "install a CUDA build of torch that matches the driver"
        return CheckResult("device", "warn", f"{device}, though a GPU driver is installed", remedy)
    effect = "runs on it, slowly" if settings.cpu_half else "resolves to FP32"
    return CheckResult("device", "ok", f"{device}; half precision {effect}")


def check_engine(settings: Settings) -> Iterator[CheckResult]:
    """Whether the engine that the settings name takes jobs; submits none."""
    for finding in check_executor(settings):
        verdict: Verdict = "ok" if finding.ok else "fail"
        yield CheckResult("executor", verdict, finding.what, finding.remedy)
    if settings.executor == "local" and settings.shared_url is not None:
        yield CheckResult("executor", "warn", NO_USE_OF_URL, REMEDY_OF_URL)
    if settings.executor != "local":
        not_tried = "no job was tried: a machine of the cluster may lack the home or the packages"
        yield CheckResult("executor", "ok", not_tried, "genesis-fp16 executors check")


def check_plugins(settings: Settings, plugins: list[Plugin]) -> Iterator[CheckResult]:
    """Which agents are usable, and which settings name an agent that is not installed."""
    for plugin in plugins:
        verdict: Verdict = "warn" if plugin.state == "quarantined" else "ok"
        state = f"{plugin.name} is {plugin.state}"
        state += f": {plugin.reason}" if plugin.reason else ""
        yield CheckResult("plugin", verdict, state)
    if not any(plugin.state in ("ready", "pending") for plugin in plugins):
        yield CheckResult(
            "plugin", "fail", "no agent is ready", "install one, or repair one of those named above"
        )
    ready = [plugin.name for plugin in plugins if plugin.state == "ready"]
    for name in settings.canaries:
        if name not in ready:
            some = set(ready).intersection(settings.canaries)
            problem = f"GENESIS_CANARY_AGENTS names {name}, but no such agent is ready"
            effect = "" if some else "; every agent stays in FP32"
            close = difflib.get_close_matches(name, ready, n=1)
            remedy = (
                f"did you mean {close[0]}?" if close else f"ready are {', '.join(ready) or 'none'}"
            )
            yield CheckResult("canary", "warn" if some else "fail", problem + effect, remedy)
    keys = {plugin.name.replace("-", "_") for plugin in plugins}
    for key in settings.agents.keys() - keys:
        close = difflib.get_close_matches(key, keys, n=1)
        remedy = (
            f"did you mean {close[0].upper()}?" if close else "install it, or delete these settings"
        )
        problem = f"settings of {key.upper()}, an agent that is not installed"
        yield CheckResult("plugin", "warn", problem, remedy)


def check_preflight(settings: Settings, agents: Iterable[str]) -> Iterator[CheckResult]:
    """Whether each agent's precision is the one that its last pre-flight measured as best."""
    for agent in agents:
        report = read_preflight(settings.home.absolute() / "agents" / agent)
        if report is None:
            continue
        measured = f"{agent} measured best in {report.verdict} on {report.device_name}, "
        measured += f"{moment(report.measured_at)}: {'; '.join(report.reasons)}"
        requested = settings.for_agent(agent).precision or settings.precision
        key = agent.replace("-", "_").upper()
        remedy = f"set GENESIS_AGENTS__{key}__PRECISION=auto, or {report.verdict}"
        settled = requested in ("auto", report.verdict)
        yield CheckResult("precision", "ok", measured, "" if settled else remedy)
