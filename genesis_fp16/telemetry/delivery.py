"""Sends batches of one signal to the receiver, and waits longer and longer while it is away."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, TypeVar

import requests

FIRST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
# The receiver will never take such a batch; other errors are its own, or of the configuration.
_NEVER_ACCEPTED = (400, 413, 415, 422)

Batch = TypeVar("Batch")
OnNotice = Callable[..., None]


class Fate(Enum):
    """What became of a batch."""

    SENT = "sent"
    REFUSED = "refused"  # the receiver will never take it
    WAITS = "waits"  # the receiver is away, slow or misconfigured


class Delivery(Generic[Batch]):
    """Sends one signal, and says when the receiver goes away and comes back.

    Args:
        signal: Its name in notices.
        make: Makes the SDK's exporter, given the session of its requests.
        notice: Receives an event and its fields.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        signal: str,
        make: Callable[[requests.Session], Any],
        notice: OnNotice,
        clock: Callable[[], float],
    ) -> None:
        self._signal, self._notice, self._clock = signal, notice, clock
        self._away_since, self._next_at, self._delay = math.nan, 0.0, FIRST_SECONDS
        self._session = _Session()
        self._exporter = make(self._session)

    @property
    def is_due(self) -> bool:
        """Whether the receiver may be asked again."""
        return self._clock() >= self._next_at

    def send(self, batch: Batch) -> Fate:
        """Send *batch*; waits for the receiver as long as OTEL_EXPORTER_OTLP_TIMEOUT says."""
        session = self._session
        session.asked, session.status = False, None
        result = self._exporter.export(batch)
        if result.name == "SUCCESS":
            self._came_back()
            return Fate.SENT
        if not session.asked:  # the exporter could not write it in the protocol's form
            self._notice("telemetry_refused", signal=self._signal, remedy="it is left out")
            return Fate.REFUSED
        if session.status in _NEVER_ACCEPTED:
            self._came_back()
            remedy = "it is left out; ask the receiver's log why"
            self._notice(
                "telemetry_refused", signal=self._signal, status=session.status, remedy=remedy
            )
            return Fate.REFUSED
        if math.isnan(self._away_since):
            self._away_since = self._clock()
            self._notice(
                "telemetry_not_delivered",
                signal=self._signal,
                status="no answer" if session.status is None else session.status,
                remedy="it waits and is sent later; see OTEL_EXPORTER_OTLP_ENDPOINT and _HEADERS",
            )
        self._next_at = self._clock() + self._delay
        self._delay = min(2 * self._delay, LONGEST_SECONDS)
        return Fate.WAITS

    def close(self) -> None:
        """Close its connections."""
        self._exporter.shutdown()

    def _came_back(self) -> None:
        if not math.isnan(self._away_since):
            seconds = round(self._clock() - self._away_since)
            self._notice("telemetry_delivered_again", signal=self._signal, away_seconds=seconds)
        self._away_since, self._next_at, self._delay = math.nan, 0.0, FIRST_SECONDS


class _Session(requests.Session):
    """Tells whether the receiver was *asked*, and the last *status* that it answered."""

    asked: bool = False
    status: int | None = None

    def send(  # the library's signature
        self,
        request: requests.PreparedRequest,
        **options: Any,  # noqa: ANN401
    ) -> requests.Response:
        self.asked = True
        response = super().send(request, **options)
        self.status = response.status_code
        return response
