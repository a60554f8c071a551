"""Sessions of browsers, and how often a client may fail to sign in."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from genesis_fp16.system.tokens import NamedToken, Tokens

SESSION_COOKIE = "genesis_session"
SESSION_SECONDS = 12 * 3600.0
MAX_SESSIONS = 256
FAILURES, FAILURE_SECONDS = 5, 60.0  # of one client within this time
ALL_FAILURES = 100  # of all clients together
_MAX_CLIENTS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A browser that has signed in.

    Attributes:
        csrf: What its forms and scripts must send along with a change.
        expires_at: In monotonic seconds.
    """

    id: str
    csrf: str
    token: NamedToken
    expires_at: float


class Sessions:
    """Sessions in memory, the newest `MAX_SESSIONS`: they end with the process.

    A session ends with its token, too.
    """

    def __init__(self, tokens: Tokens, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens, self._clock = tokens, clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def begin(self, token: NamedToken) -> Session:
        """Begin a session for one who has shown *token*."""
        session = Session(
            id=secrets.token_urlsafe(32),
            csrf=secrets.token_urlsafe(32),
            token=token,
            expires_at=self._clock() + SESSION_SECONDS,
        )
        self._sessions[session.id] = session
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def find(self, session_id: str) -> Session | None:
        """The session with this id, unless it has ended."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        if session.expires_at <= self._clock() or session.token not in self._tokens.in_force():
            self.end(session)
            return None
        return session

    def end(self, session: Session) -> None:
        """End *session*: its cookie is worth nothing from now on."""
        self._sessions.pop(session.id, None)


def csrf_matches(session: Session, offered: str) -> bool:
    """Whether *offered* is the session's; takes the same time for any."""
    return hmac.compare_digest(session.csrf.encode(), offered.encode(errors="surrogateescape"))


class FailedSignIns:
    """Makes a client wait that has failed too often, and all clients if they have together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_client: OrderedDict[str, deque[float]] = OrderedDict()
        self._all: deque[float] = deque(maxlen=ALL_FAILURES)

    def add(self, client: str) -> None:
        """Count a failure of *client*."""
        now = self._clock()
        self._by_client.setdefault(client, deque(maxlen=FAILURES)).append(now)
        self._by_client.move_to_end(client)
        while len(self._by_client) > _MAX_CLIENTS:
            self._by_client.popitem(last=False)
        self._all.append(now)

    def wait_seconds(self, client: str) -> float:
        """Seconds for which *client* must not try; 0 if it may."""
        now = self._clock()
        of_client: deque[float] = self._by_client.get(client, deque())
        full = [
            failures[0] + FAILURE_SECONDS - now
            for failures, most in ((of_client, FAILURES), (self._all, ALL_FAILURES))
            if len(failures) == most
        ]
        return max([0.0, *full])
