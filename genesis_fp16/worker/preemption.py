"""Notices that this machine will be taken away: a file that appears, or a URL that says so.

Clouds announce the end of a spot instance at a URL of the machine, seconds to minutes before: AWS
answers 404 until then, Google ``FALSE``, Azure a list of events. docs/how-to/executors.md has them.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from queue import SimpleQueue
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

LOOK_SECONDS = 2.0
ANSWER_SECONDS = 2.0
LONGEST_ANSWER = 1 << 16  # bytes
_HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}  # Google's and Azure's ask for them
_TOKEN_PATH, _TOKEN_SECONDS = "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"  # noqa: S105  # the name of a header
_ENDINGS = ("Preempt", "Terminate", "Redeploy")  # of Azure's events; a reboot is none

OnNotice = Callable[[str], None]
log = logging.getLogger(__name__)


def watch(file: Path | None, url: str | None, on_notice: OnNotice) -> None:
    """Call *on_notice* once, from a thread, when *file* exists or *url* announces the end.

    Each has a thread of its own: a service that is slow does not hold the look at the file.
    """
    notices: SimpleQueue[str] = SimpleQueue()
    looks: list[tuple[str, Callable[[], str]]] = []
    if file is not None:
        looks.append(("preemption-file", partial(_look_at_file, file)))
    if url is not None:
        looks.append(("preemption-url", _Service(url).ask))
    if not looks:
        return
    looks.append(("preemption", notices.get))
    for name, look in looks:
        receive = on_notice if name == "preemption" else notices.put
        threading.Thread(target=_watch, args=(look, receive), name=name, daemon=True).start()


def _watch(look: Callable[[], str], receive: OnNotice) -> None:
    while not (notice := look()):
        time.sleep(LOOK_SECONDS)
    receive(notice)


def _look_at_file(file: Path) -> str:
    with suppress(OSError, ValueError):
        return f"preempted: {file} exists" if file.exists() else ""
    return ""


class _Service:
    """Asks *url*; says once if the answer is not one that a cloud gives."""

    def __init__(self, url: str) -> None:
        self._url, self._token, self._told = url, "", False

    def ask(self) -> str:
        token = {_TOKEN: self._token} if self._token else {}
        status, text = _ask(self._url, {**_HEADERS, **token})
        if status == 401:  # AWS asks for a token, which lasts for hours
            parts = urlsplit(self._url)
            place = f"{parts.scheme}://{parts.netloc}{_TOKEN_PATH}"
            status, text = _ask(place, {_TOKEN_SECONDS: "21600"}, "PUT")
            self._token = text.strip() if status == 200 else ""
        elif status == 200:
            known = announces_end(text)
            said = " ".join(text.split())[:200]
            if known:
                return f"preempted: {self._url} says {said}"
            if known is None and not self._told:
                self._told = True
                remedy = "see GENESIS_PREEMPTION_URL in docs/how-to/executors.md"
                log.warning(
                    "%s does not answer as a metadata service: it says %r; %s",
                    self._url,
                    said,
                    remedy,
                )
        return ""


def announces_end(text: str) -> bool | None:
    """Whether a metadata service's answer announces the end; None for any other text."""
    words = text.strip().lower()
    if words in ("", "false", "none", "true"):
        return words == "true"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("Events"), list):
        events = (event for event in found["Events"] if isinstance(event, dict))
        return any(event.get("EventType") in _ENDINGS for event in events)
    return True if isinstance(found.get("action"), str) and "time" in found else None


def _ask(url: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
    """Status and body; status 0 without a whole answer in time."""
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        request = Request(url, headers=headers, method=method)  # noqa: S310  # the operator's URL
        with build_opener(ProxyHandler({})).open(request, timeout=ANSWER_SECONDS) as answer:
            body = b""
            while part := answer.read1(LONGEST_ANSWER):
                body += part
                if len(body) > LONGEST_ANSWER or time.monotonic() > deadline:
                    return 0, ""
            return answer.status, body.decode(errors="replace")
    except HTTPError as refusal:
        with refusal:
            return refusal.code, ""
    except (OSError, ValueError, HTTPException):
        return 0, ""
