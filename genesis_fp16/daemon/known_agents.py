"""The installed agents as commands see them: found by the serving daemon, or probed here."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.plugins.probe import Plugin, probe_agents
from genesis_fp16.plugins.probe.parent import probe_key, unprobed
from genesis_fp16.plugins.probe.results_file import read_results
from genesis_fp16.plugins.scan import Scan, scan_installed
from genesis_fp16.settings import Settings
from genesis_fp16.store.daemon_status import DaemonStatus, find_daemon

RESCAN_SECONDS = 15.0  # in which many agents are probed, and after which few are worth the wait
_POLL_SECONDS = 0.2
_REPORT_SECONDS = 5.0


class RescanError(GenesisError, RuntimeError):
    """The daemon could not be asked to look at the installed agents again, or did not answer."""

    exit_code = os.EX_UNAVAILABLE


def watching_daemon(settings: Settings) -> DaemonStatus | None:
    """The daemon that serves the home and watches the installed agents; else None."""
    daemon = find_daemon(settings.home.absolute())
    return daemon if daemon is not None and daemon.scanned_at is not None else None


def known_agents(
    settings: Settings,
    *,
    only: str | None = None,
    again: bool = False,
    scan: Callable[[Path], Scan] = scan_installed,
) -> list[Plugin]:
    """Installed agents in alphabetical order, in the state that the daemon has found them in.

    If no daemon serves, they are probed here, but for those whose earlier result still holds; with
    *again*, all are probed. With *only*, just the agent of that name is looked for.
    Beside a daemon, *scan* tells what is installed.
    """
    results = read_results(settings.home.absolute())
    daemon = watching_daemon(settings)
    if daemon is None:
        return probe_agents(settings, {} if again else results, only=only)
    plugins = []
    for agent in scan(settings.home.absolute()).agents:
        name, plugin = agent.point.name, unprobed(agent, settings)
        if only not in (None, name):
            continue
        if plugin.state == "pending":
            reason = "the daemon has not yet probed it as it is installed and configured now"
            plugin = replace(plugin, reason=reason)
            if name in results and results[name].key == probe_key(agent, settings):
                plugin = results[name].plugin
            if name in daemon.probing:
                plugin = _being_probed(plugin, daemon.probing[name])
        plugins.append(plugin)
    return plugins


def _being_probed(plugin: Plugin, since: float) -> Plugin:
    seconds = max(0.0, time.time() - since)
    before = f"; before: {plugin.reason}" if plugin.state == "quarantined" else ""
    return replace(plugin, state="pending", reason=f"probing since {seconds:.0f} s{before}")


def rescan(settings: Settings, report: Callable[[str], None]) -> bool:
    """Have the daemon, if one serves, look at the installed agents again.

    It probes again what has changed and what is quarantined. While waiting, *report* is called
    with a line every few seconds.

    Returns:
        Whether that has ended; False after `RESCAN_SECONDS`, while the daemon goes on.

    Raises:
        RescanError: The daemon runs on another machine, belongs to another user, or has ended.
    """
    daemon = watching_daemon(settings)
    if daemon is None or daemon.pid is None:
        return True
    if daemon.host != socket.gethostname():
        raise RescanError(f"the daemon runs elsewhere ({daemon}): send it SIGHUP there")
    asked_at = time.time()
    try:
        os.kill(daemon.pid, signal.SIGHUP)
    except OSError as error:
        raise RescanError(
            f"the daemon ({daemon}) cannot be asked: {error.strerror}; run this command as its user"
        ) from error
    report_at = time.monotonic() + _REPORT_SECONDS
    give_up = time.monotonic() + RESCAN_SECONDS
    while (now := watching_daemon(settings)) is not None and now.pid == daemon.pid:
        if (now.scanned_at or 0.0) >= asked_at:
            return True
        if time.monotonic() >= give_up:
            return False
        if time.monotonic() >= report_at:
            report_at += _REPORT_SECONDS
            agents = ", ".join(sorted(now.probing)) or "agents"
            report(f"the daemon ({daemon}) is still probing {agents}")
        time.sleep(_POLL_SECONDS)
    raise RescanError(f"the daemon ({daemon}) has ended: start it again")
