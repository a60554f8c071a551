"""Sends batches of one signal to the receiver, and waits longer and longer while it is away."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, TypeVar

import requests

from genesis_fp16.domain.redaction import visible, without_userinfo
from genesis_fp16.telemetry.environment import endpoint_variable

LONGEST_ANSWER = 1 << 20  # bytes; the protocol's answers are short
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
        self._refused: object = None  # the last refusal that was told
        self._session = _Session()
        self._exporter = make(self._session)

    @property
    def is_due(self) -> bool:
        """Whether the receiver may be asked again."""
        return self._clock() >= self._next_at

    def send(self, batch: Batch) -> Fate:
        """Send *batch*; waits for the receiver as long as OTEL_EXPORTER_OTLP_TIMEOUT says."""
        session = self._session
        session.asked, session.status, session.error = False, None, ""
        result = self._exporter.export(batch)
        if result.name == "SUCCESS":
            self._came_back()
            self._refused = None
            return Fate.SENT
        if not session.asked:  # the exporter could not write it in the protocol's form
            self._tell_refusal("it is left out")
            return Fate.REFUSED
        if session.status in _NEVER_ACCEPTED:
            self._came_back()
            self._tell_refusal("it is left out; ask the receiver's log why", status=session.status)
            return Fate.REFUSED
        if math.isnan(self._away_since):
            self._away_since = self._clock()
            self._notice(
                "telemetry_not_delivered",
                signal=self._signal,
                status="no answer" if session.status is None else session.status,
                endpoint=visible(without_userinfo(session.endpoint)),
                error=session.error,
                remedy=f"it waits and is sent later; let {endpoint_variable(self._signal)} be "
                "the receiver's URL, such as http://collector:4318; see OTEL_EXPORTER_OTLP_HEADERS",
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

    def _tell_refusal(self, remedy: str, **fields: object) -> None:
        """Once in a row: the line of a notice would be refused, too."""
        if self._refused != fields:
            self._refused = fields
            self._notice("telemetry_refused", signal=self._signal, **fields, remedy=remedy)


class _Session(requests.Session):
    """Tells of the last request whether it was *asked* for, its *status* and its *error*."""

    asked: bool = False
    status: int | None = None
    endpoint: str = ""
    error: str = ""

    def request(  # the library's signature
        self,
        method: str,
        url: str | bytes,
        *arguments: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> requests.Response:
        self.asked, self.endpoint = True, str(url)
        try:
            return super().request(method, url, *arguments, **options)
        except Exception as error:
            self.error = visible(without_userinfo(str(error)))[:300]
            raise

    def send(  # the library's signature
        self,
        request: requests.PreparedRequest,
        **options: Any,  # noqa: ANN401
    ) -> requests.Response:
        seconds = options.get("timeout")
        deadline = time.monotonic() + (seconds if isinstance(seconds, int | float) else math.inf)
        response = super().send(request, **{**options, "stream": True})
        self.status = response.status_code
        if 300 <= response.status_code < 400:
            response.close()
            place = response.headers.get("Location", "nowhere")
            raise requests.RequestException(f"it redirects to {place}, which is not followed")
        _read_to_end(response, deadline)
        return response


def _read_to_end(response: requests.Response, deadline: float) -> None:
    """Free the connection for the next request; what the answer says is not used."""
    size = 0
    try:
        while part := response.raw.read1(1 << 16, decode_content=False):
            size += len(part)
            if size > LONGEST_ANSWER or time.monotonic() > deadline:
                raise requests.RequestException(
                    f"its answer is too long or too slow: it had not ended after {size} bytes"
                )
    except BaseException:
        response.close()
        raise
    response.raw.release_conn()
