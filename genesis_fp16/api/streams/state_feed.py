"""Changes of states, found by one look at the store every half second for all who listen."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress

import structlog
from anyio import to_thread
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from genesis_fp16.api import views
from genesis_fp16.api.readings import Readings
from genesis_fp16.api.streams.server_sent import HEARTBEAT, HEARTBEAT_SECONDS, server_sent
from genesis_fp16.domain.run import Run
from genesis_fp16.store import StoreError
from genesis_fp16.store.decisions import Change

POLL_SECONDS = 0.5
KEPT = 1000  # changes, for clients that connect again
LINGER_SECONDS = 60.0  # for which it goes on after the last listener has left
_AUDIT_READ = 50

log = structlog.get_logger()


class StateFeed:
    """Tells listeners of changes: ``run``, ``guard``, ``change`` (by hand) and ``daemon``.

    It begins with ``hello`` after the first look: no change after that is left out.
    The id of an event names the feed, which begins with the process, and the change. A
    listener that comes back with an id that is not kept gets ``reset``: it must read everything.
    """

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._name = secrets.token_hex(4)
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._last = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._listeners, self._left_at = 0, 0.0
        self._looked = asyncio.Event()  # once: what differs from then on is a change
        self._runs: dict[str, Run] = {}
        self._audit: list[Change] = []
        self._guard_entry = 0
        self._daemon: views.HealthView | None = None

    async def listen(self, after: str | None) -> AsyncGenerator[bytes, None]:
        """Yield changes as they happen; those after the id *after* first, if they are kept."""
        self._listeners += 1
        try:
            if self._task is None or self._task.done():
                self._restart()
            while not await _happens(self._looked):
                yield HEARTBEAT
            seen = self._last
            if after:
                name, _, number = after.partition("-")
                known = name == self._name and number.isdecimal() and len(number) < 18
                seen = int(number) if known else -1
                oldest = self._kept[0][0] if self._kept else self._last + 1
                if not oldest - 1 <= seen <= self._last:
                    seen = self._last
                    yield server_sent("reset", "{}", f"{self._name}-{seen}")
            else:
                yield server_sent("hello", "{}", f"{self._name}-{seen}")
            while True:
                news = self._news
                for entry, event in list(self._kept):
                    if entry > seen:
                        seen = entry
                        yield event
                if not await _happens(news):
                    yield HEARTBEAT
        finally:
            self._listeners -= 1
            self._left_at = time.monotonic()

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def _restart(self) -> None:
        """Look again, after a time in which nobody did: what changed meanwhile is not known."""
        self._name, self._looked = secrets.token_hex(4), asyncio.Event()
        self._kept.clear()
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        failed = False
        while self._listeners or time.monotonic() - self._left_at < LINGER_SECONDS:
            try:
                changes = await to_thread.run_sync(self._look)
            except (SQLAlchemyError, StoreError) as error:
                if not failed:
                    log.error("api_feed_failed", error=type(error).__name__, remedy="it tries on")
                failed = True
            else:
                failed = False
                if self._looked.is_set():
                    self._tell(changes)
                self._looked.set()
            await asyncio.sleep(POLL_SECONDS)

    def _tell(self, changes: list[tuple[str, BaseModel]]) -> None:
        for kind, view in changes:
            self._last += 1
            data = view.model_dump_json()
            event = server_sent(kind, data, f"{self._name}-{self._last}")
            self._kept.append((self._last, event))
        if changes:
            self._news.set()
            self._news = asyncio.Event()

    def _look(self) -> list[tuple[str, BaseModel]]:
        """What has changed since the last look; at the first, everything."""
        store = self._readings.store
        changes: list[tuple[str, BaseModel]] = []
        runs = {run.id: run for run in store.unfinished_runs.read()}
        for run_id in {**self._runs, **runs}:
            run = runs.get(run_id) or store.run(run_id)
            if run is not None and _shown(run) != _shown(self._runs.get(run_id)):
                changes.append(("run", views.RunView.model_validate(run)))
        self._runs = runs
        self._guard_entry, decisions = store.guard.since(self._guard_entry)
        changes += [
            ("guard", views.GuardDecision.model_validate(decision)) for decision in decisions
        ]
        audit = store.overrides.audit(_AUDIT_READ)
        new = [change for change in audit if change not in self._audit]
        changes += [("change", views.ChangeView.model_validate(change)) for change in reversed(new)]
        self._audit = audit
        health = self._readings.health().model_copy(update={"queued": 0, "active": 0})
        if health != self._daemon:
            changes.append(("daemon", self._readings.health()))
        self._daemon = health
        return changes


async def _happens(event: asyncio.Event) -> bool:
    """Whether *event* happens before the next heartbeat is due."""
    try:
        await asyncio.wait_for(event.wait(), HEARTBEAT_SECONDS)
    except TimeoutError:
        return False
    return True


def _shown(run: Run | None) -> tuple[object, ...] | None:
    return None if run is None else (run.state, run.cancel_requested, run.available_at)
