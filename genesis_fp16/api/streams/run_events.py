"""The events of a run as its workers append them, over all its attempts, from any place on."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from typing import NamedTuple

from anyio import to_thread

from genesis_fp16.api import views
from genesis_fp16.api.problems import RefusalError
from genesis_fp16.api.readings import Readings
from genesis_fp16.api.readings.run_files import event_id
from genesis_fp16.api.streams.server_sent import HEARTBEAT, HEARTBEAT_SECONDS, server_sent
from genesis_fp16.daemon import operator
from genesis_fp16.domain.attempt import Attempt, events_path
from genesis_fp16.domain.run import RunState
from infrastructure.events import EventTail

POLL_SECONDS = 0.5
BITE_SECONDS = 0.05  # of reading, before what was read is sent
_PLACE = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")


class Place(NamedTuple):
    """Where a reader of the run is: in which attempt, and at which offset of its events."""

    attempt: int = 0
    offset: int = 0


def parse_place(text: str | None) -> Place:
    """The place that an event's id names; the beginning for none.

    Raises:
        RefusalError: It is not an id of such an event.
    """
    if not text:
        return Place()
    match = _PLACE.fullmatch(text)
    if match is None:
        raise RefusalError(400, "Last-Event-ID must be the id of an event of this stream")
    return Place(int(match[1]), int(match[2]))


async def follow_run(readings: Readings, run_id: str, place: Place) -> AsyncGenerator[bytes, None]:
    """Yield the events after *place*, then new ones; ``state`` at each change, ``end`` at last."""
    follower, sent_at = _Follower(readings, run_id, place), 0.0
    while not follower.ended:
        events = await to_thread.run_sync(follower.read)
        now = time.monotonic()
        if not events and now - sent_at >= HEARTBEAT_SECONDS:
            events = [HEARTBEAT]
        for event in events:
            sent_at = now
            yield event
        if not (follower.behind or follower.ended):
            await asyncio.sleep(POLL_SECONDS)


class _Follower:
    """Reads what has happened in a run since the last look.

    Attributes:
        behind: Whether more waits to be read.
        ended: Whether the run has ended and everything has been read.
    """

    def __init__(self, readings: Readings, run_id: str, place: Place) -> None:
        self._readings, self._run_id, self._place = readings, run_id, place
        self._state: RunState | None = None
        self._trouble = ""
        self.behind = self.ended = False

    def read(self) -> list[bytes]:
        """Some of the events that have come; the run's state is read before them.

        So all events precede the last state.
        """
        run = operator.find_run(self._readings.store, self._run_id)
        view = views.RunView.model_validate(run)
        messages: list[bytes] = []
        if run.state is not self._state:
            self._state = run.state
            messages.append(server_sent("state", view.model_dump_json()))
        self.behind = False
        for attempt in self._readings.store.attempts(self._run_id):
            if attempt.number >= self._place.attempt and not self.behind:
                messages += self._read_attempt(attempt)
        if run.finished and not self.behind:
            self.ended = True
            messages.append(server_sent("end", view.model_dump_json()))
        return messages

    def _read_attempt(self, attempt: Attempt) -> list[bytes]:
        offset = self._place.offset if attempt.number == self._place.attempt else 0
        tail = EventTail(events_path(self._readings.home, attempt), offset)
        messages = []
        try:
            for event in tail.read(time.monotonic() + BITE_SECONDS):
                place = event_id(attempt.number, tail.offset)
                messages.append(server_sent(event.kind, event.model_dump_json(), place))
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                messages.append(
                    server_sent("trouble", views.Trouble(detail=str(error)).model_dump_json())
                )
        self._place, self.behind = Place(attempt.number, tail.offset), tail.behind
        return messages
