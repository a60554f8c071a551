"""Asks the predictor for callers, and sends reports to it in a thread."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from genesis_client.breaker import Breaker
from genesis_client.exchange import Answer, Connections, UnavailableError
from genesis_client.place import Place
from genesis_client.spool import BATCHED, Batch, Spool

SEND_SECONDS, PROBE_SECONDS = 10.0, 1.0  # for a request of the thread
LINGER_SECONDS = 0.02  # between a report and its request, which carries others, too
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 30.0
LOOK_SECONDS = 30.0  # between two looks at what other processes have left
MOST_FAULTS = 20  # answers 500 to the same report, before it is given up
MOST_EARLY = 10  # answers in a row that a decision is unknown which another process may still send
MOST_RETRY_SECONDS = 300.0
MOST_TEXT = 300  # characters of the predictor's words
FINAL = (400, 409, 413, 415, 422)  # a repetition would be answered in the same way
T = TypeVar("T")


class Status(NamedTuple):
    """State of an agent's reports in this process.

    Attributes:
        waiting_bytes: Size of the reports that wait in file and memory of this process.
        sent: Reports that the predictor has taken.
        refused: Reports that it will never take, such as those of a wrong type.
        dropped: Reports for which the spool had no room.
        damaged: Lines of the spool with a wrong checksum.
        problem: Why the predictor is not asked now, or empty.
        refusal: Why it has refused the last report, or empty.
    """

    waiting_bytes: int
    sent: int
    refused: int
    dropped: int
    damaged: int
    problem: str
    refusal: str


class Sender:
    """Connection of one agent in one process.

    Args:
        agent: Its name.
        place: Where the predictor listens.
        spool: Where reports wait.
    """

    def __init__(self, agent: str, place: Place, spool: Spool) -> None:
        self._agent = agent
        self._path = f"/api/agents/{agent}/"
        self._spool = spool
        self._connections = Connections(place)
        self._breaker = Breaker()
        self._condition = threading.Condition()  # for the thread's state, down to _problem
        self._thread: threading.Thread | None = None
        self._stopping = self._forced = self._in_pass = False
        self._passes = 0
        self._due = math.inf  # time at which to send what waits
        self._look_at = 0.0  # time at which to look for abandoned files
        self._pause = 0.0
        self._problem = ""
        self._faults = self._early = self._sent = self._refused = 0
        self._refusal = self._warning = self._logged = ""

    @property
    def status(self) -> Status:
        """Counts of this process."""
        return Status(
            waiting_bytes=self._spool.waiting_bytes,
            sent=self._sent,
            refused=self._refused,
            dropped=self._spool.dropped,
            damaged=self._spool.damaged,
            problem=self._breaker.reason or self._problem,
            refusal=self._refusal,
        )

    def ask(self, tail: str, body: bytes, until: float, read: Callable[[dict[str, Any]], T]) -> T:
        """Ask the predictor and return what *read* makes of its JSON.

        Args:
            tail: End of the path.
            body: JSON.
            until: Time of `time.monotonic` at which to give up.
            read: Returns the result; raises `UnavailableError` if the JSON is not an answer.

        Raises:
            UnavailableError: There is no usable answer.
        """
        if reason := self._breaker.reason:
            self._wake()
            raise UnavailableError(reason)
        try:
            answer = self._connections.ask("POST", self._path + tail, body, until)
            if answer.status == 200:
                result = read(_read_object(answer))
                self._breaker.succeeded()
                return result
        except UnavailableError as error:
            self._failed(error)
            raise
        refusal = UnavailableError(_problem(answer)[0])
        if answer.status >= 500 or answer.status == 429:
            self._failed(refusal)
        raise refusal

    def report(self, tail: str, report: bytes) -> bool:
        """Hand a report over to the thread; False if it was dropped."""
        kept = self._spool.append(tail, report)
        if not kept:
            self._warning = "reports are dropped: the spool is full"
        self._wake(report=True)
        return kept

    def flush(self, seconds: float) -> bool:
        """Try now to send what waits in this process; True if all of it was taken or refused."""
        if not self._spool.waiting_bytes:
            return True
        self._wake(force=True)
        with self._condition:
            wanted = self._passes + 1 + self._in_pass
            self._condition.wait_for(
                lambda: not self._spool.waiting_bytes or self._passes >= wanted, seconds
            )
        return not self._spool.waiting_bytes

    def stop(self) -> None:
        """Let the thread send what waits, if it can, and end."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
            if self._thread is None:
                self._close()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def forget(self) -> None:
        """Close what a forked child has inherited from its parent."""
        self._connections.close()
        self._spool.forget()

    def _wake(self, *, report: bool = False, force: bool = False) -> None:
        """Start the thread, if it does not run, and tell it that there is something to do."""
        with self._condition:
            if report and self._due == math.inf:
                self._due = time.monotonic() + LINGER_SECONDS
                self._condition.notify_all()
            if force:
                self._forced = True
                self._condition.notify_all()
            if self._thread is None:
                self._stopping = False
                self._thread = threading.Thread(
                    target=self._run, name=f"genesis-client-{self._agent}", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter ends: the reports wait on disk
                    self._thread = None

    def _run(self) -> None:
        while self._wait():
            self._log()
            try:
                if self._breaker.reason:
                    self._probe()
                self._send_all()
                self._pause, self._problem = 0.0, ""
            except (UnavailableError, OSError) as error:
                self._pause = min(max(2 * self._pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
                retry_after = error.retry_after if isinstance(error, UnavailableError) else 0.0
                with self._condition:
                    self._problem = str(error)
                    self._due = time.monotonic() + max(self._pause, retry_after)
        self._log()
        self._close()

    def _close(self) -> None:
        self._spool.close()
        self._connections.close()

    def _wait(self) -> bool:
        """Wait until there is something to do; False if the thread must end."""
        with self._condition:
            self._passes += self._in_pass
            self._in_pass = False
            self._condition.notify_all()
            while True:
                problem = self._breaker.reason or self._problem
                if self._stopping and (problem or self._due == math.inf):
                    self._thread = None
                    return False
                if self._breaker.reason:
                    seconds = self._breaker.seconds_to_probe
                else:
                    seconds = min(self._due, self._look_at) - time.monotonic()
                if seconds <= 0 or self._forced or self._stopping:
                    self._due, self._forced, self._in_pass = math.inf, False, True
                    return True
                self._condition.wait(seconds)

    def _probe(self) -> None:
        self._connections.resolve()
        until = time.monotonic() + PROBE_SECONDS
        try:
            answer = self._connections.ask("GET", "/readyz", b"", until)
            if answer.status != 200:
                raise UnavailableError(_problem(answer)[0])
        except UnavailableError as error:
            self._failed(error)
            raise
        self._breaker.probed()
        self._logged = ""

    def _send_all(self) -> None:
        if self._early:
            self._send_abandoned()
        while (batch := self._spool.head()) is not None:
            self._send(batch)
            self._spool.done()
        if time.monotonic() >= self._look_at:
            self._send_abandoned()

    def _send_abandoned(self) -> None:
        for file in self._spool.abandoned():
            while (batch := file.next_batch()) is not None:
                self._send(batch)
            file.empty_if_read()
        self._look_at = time.monotonic() + LOOK_SECONDS

    def _send(self, batch: Batch) -> None:
        """Send reports; leave out those that the predictor will never take."""
        tail, reports = batch
        body = reports[0]
        if tail in BATCHED:
            body = b'{"%s":[%s]}' % (tail.encode("ascii"), b",".join(reports))
        try:
            until = time.monotonic() + SEND_SECONDS
            answer = self._connections.ask("POST", self._path + tail, body, until)
        except UnavailableError as error:
            self._failed(error)
            raise
        if answer.status == 200:
            self._sent += len(reports)
            self._faults = self._early = 0
            return
        problem, field = _problem(answer)
        self._faults += answer.status == 500
        unknown_decision = answer.status == 404 and field == "decision"
        if unknown_decision and self._early < MOST_EARLY and self._spool.others_wait():
            self._early += 1  # the choice to which this outcome belongs may be among theirs
            raise UnavailableError(problem)
        if answer.status not in FINAL and not unknown_decision and self._faults < MOST_FAULTS:
            raise UnavailableError(problem, retry_after=_retry_after(answer))
        if len(reports) > 1:
            middle = len(reports) // 2
            self._send(Batch(tail, reports[:middle]))
            self._send(Batch(tail, reports[middle:]))
            return
        self._faults = 0
        self._refused += 1
        self._refusal = problem
        self._warning = f"the predictor refuses a report: {problem}"

    def _failed(self, error: UnavailableError) -> None:
        if self._breaker.failed(str(error), at_once=error.at_once):
            self._warning = f"actions are taken in the agent's own order: {error}"
            self._wake()

    def _log(self) -> None:
        """Log the last warning, unless it was logged before; the import takes milliseconds."""
        if self._warning not in ("", self._logged):
            import logging

            self._logged = self._warning
            logging.getLogger("genesis_client").warning("agent %s: %s", self._agent, self._logged)


def _read_object(answer: Answer) -> dict[str, Any]:
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UnavailableError("the answer is not a JSON object")
    return document


def _problem(answer: Answer) -> tuple[str, str]:
    """Return what a problem document says, with the status, and the field at fault or empty."""
    try:
        document = _read_object(answer)
    except UnavailableError:
        return f"status {answer.status}", ""
    field = str(document.get("field") or "")[:MOST_TEXT]
    words = str(document.get("detail") or document.get("title") or "")[:MOST_TEXT]
    place = f"{field}: " if field and field not in words else ""
    return f"status {answer.status}: {place}{words}", field


def _retry_after(answer: Answer) -> float:
    text = answer.headers.get("retry-after", "")
    return min(float(text), MOST_RETRY_SECONDS) if text.isascii() and text.isdigit() else 0.0
