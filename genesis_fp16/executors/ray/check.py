"""What is looked at before the first run is lost to a Ray cluster."""

from __future__ import annotations

import json
import time
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from genesis_fp16.executors.ray.connection import IS_IT_RAY, Answer, Connection, RefusedError
from genesis_fp16.executors.ray.machines import largest_of, machines_of, written
from genesis_fp16.executors.remote import EngineError, Finding

CLOCK_SECONDS = 5.0  # tolerated between this machine and the head, whose answers show seconds
FIRST_VERSION = (2, 52)  # the first with token authentication


def check_cluster(address: str, token_file: Path | None) -> list[Finding]:
    """Whether the cluster answers, its version, token, clock and machines."""
    try:
        with Connection(address, token_file) as ray:
            answer = ray.ask("GET", "/api/version")
            return [
                _version(address, answer),
                _protection(address, token_file),
                _clock(answer),
                _machines(ray),
            ]
    except EngineError as error:
        return [Finding.of_error(error)]


def _version(address: str, answer: Answer) -> Finding:
    try:
        version = str(json.loads(answer.text)["ray_version"])
        known = tuple(int(part) for part in version.split(".")[:2])
    except (ValueError, LookupError, TypeError):
        return Finding(ok=False, what=f"{address} is not Ray's dashboard", remedy=IS_IT_RAY)
    what = f"Ray {version} answers at {address}"
    if known < FIRST_VERSION:
        return Finding(ok=False, what=what, remedy="upgrade it to 2.52 or newer")
    return Finding(ok=True, what=what)


def _protection(address: str, token_file: Path | None) -> Finding:
    """Whether the cluster asks for a token, and whether others can read ours on its way."""
    try:
        with Connection(address, None) as stranger:
            stranger.ask("GET", "/api/version")
    except RefusedError as error:
        if error.status != 401:
            raise
        what = "Ray asks for a token and accepts ours"
        if urlsplit(address).scheme == "http" and not _is_loopback(address):
            what += "; it travels unencrypted, so use https or a network that is trusted"
        return Finding(ok=True, what=what)
    if token_file is None:
        what = "Ray asks for no token: who reaches its address can run commands on its machines"
        return Finding(ok=True, what=what)
    return Finding(
        ok=False,
        what=f"Ray asks for no token, although GENESIS_RAY_TOKEN_FILE is {token_file}",
        remedy="start every node of it with RAY_AUTH_MODE=token and the same token",
    )


def _clock(answer: Answer) -> Finding:
    try:
        seconds = abs(parsedate_to_datetime(answer.date).timestamp() - time.time())
    except ValueError:
        return Finding(ok=True, what="the head's clock is unknown: its answer has no date")
    what = f"the head's clock differs by {seconds:.0f} s from this machine's"
    if seconds > CLOCK_SECONDS:
        return Finding(ok=False, what=what, remedy="synchronise the clocks of all machines")
    return Finding(ok=True, what=what)


def _machines(ray: Connection) -> Finding:
    machines = machines_of(ray)
    what = f"machines of Ray: {len(machines)}"
    if not machines:
        return Finding(ok=False, what=what, remedy="start some with `ray start`")
    return Finding(ok=True, what=f"{what}, with up to {written(largest_of(machines))}")


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
