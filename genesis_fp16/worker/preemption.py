"""Notices that this machine will be taken away: a file that appears, or a URL that says so.

Clouds announce the end of a spot instance at a URL of the machine, seconds to minutes before: AWS
answers 404 until then, Google ``FALSE``, Azure a list of events. docs/how-to/executors.md has them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

LOOK_SECONDS = 2.0
ANSWER_SECONDS = 2.0
_HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}  # Google's and Azure's ask for them
_TOKEN_PATH, _TOKEN_SECONDS = "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"  # noqa: S105  # the name of a header
_ENDINGS = ("Preempt", "Terminate", "Redeploy")  # of Azure's events; a reboot is none

OnNotice = Callable[[str], None]


def watch(file: Path | None, url: str | None, on_notice: OnNotice) -> None:
    """Call *on_notice* once, from a thread, when *file* exists or *url* announces the end."""
    if file is not None or url is not None:
        arguments = (file, url, on_notice)
        threading.Thread(target=_watch, args=arguments, name="preemption", daemon=True).start()


def _watch(file: Path | None, url: str | None, on_notice: OnNotice) -> None:
    token = ""
    while True:
        if file is not None and file.exists():
            on_notice(f"preempted: {file} exists")
            return
        if url is not None:
            status, text = _ask(url, {**_HEADERS, **({_TOKEN: token} if token else {})})
            if status == 401:  # AWS asks for a token, which lasts for hours
                parts = urlsplit(url)
                place = f"{parts.scheme}://{parts.netloc}{_TOKEN_PATH}"
                _, token = _ask(place, {_TOKEN_SECONDS: "21600"}, "PUT")
            elif status == 200 and announces_end(text):
                on_notice(f"preempted: {url} says {' '.join(text.split())[:200]}")
                return
        time.sleep(LOOK_SECONDS)


def announces_end(text: str) -> bool:
    """Whether the body of an answer of a metadata service announces the end of the machine."""
    if text.strip().lower() in ("", "false", "none"):
        return False
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return True
    if isinstance(found, dict) and isinstance(found.get("Events"), list):
        events = (event for event in found["Events"] if isinstance(event, dict))
        return any(event.get("EventType") in _ENDINGS for event in events)
    return bool(found)


def _ask(url: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
    """Status and body; status 0 without an answer."""
    request = Request(url, headers=headers, method=method)  # noqa: S310  # the operator's URL
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=ANSWER_SECONDS) as answer:
            return answer.status, answer.read(1 << 16).decode(errors="replace")
    except HTTPError as refusal:
        with refusal:
            return refusal.code, ""
    except (OSError, ValueError):
        return 0, ""
