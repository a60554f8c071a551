"""Requests to the dashboard of a Ray cluster, which serves Ray's Jobs API."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from genesis_fp16.executors.remote import EngineError
from genesis_fp16.executors.remote.deadline import cut_after

REQUEST_SECONDS = 20.0  # a head that starts its first job takes seconds to answer
ANSWER_BYTES = 16 * 2**20
IS_IT_RAY = "start the cluster, or set GENESIS_RAY_ADDRESS to the URL of its dashboard"


class RefusedError(EngineError):
    """The cluster answered one request with an error.

    Attributes:
        status: Of HTTP; 200 if only the content of the answer is wrong.
        said: What Ray wrote, for its programs and not for a person.
    """

    def __init__(
        self, message: str, *, temporary: bool = True, status: int = 200, said: str = ""
    ) -> None:
        super().__init__(message, temporary=temporary)
        self.status, self.said = status, said


class Answer(BaseModel):
    """An answer that reports success, or that a job does not exist.

    Attributes:
        status: 200, or 404 if Ray has no such job.
        date: The head's clock, as HTTP writes it; may be empty.
    """

    status: int
    text: str
    date: str


class Connection:
    """A connection to the dashboard of a cluster.

    It follows no redirection and uses no proxy, so that the token reaches nobody else.

    Args:
        address: URL of the dashboard.
        token_file: File of the token to send; None to send none.
        seconds: Time for connecting, and again for a whole request with its answer.

    Attributes:
        address: URL of the dashboard.

    Raises:
        EngineError: The token cannot be read.
    """

    def __init__(
        self, address: str, token_file: Path | None, seconds: float = REQUEST_SECONDS
    ) -> None:
        self.address, self._token_file, self._seconds = address, token_file, seconds
        self._headers = {"Content-Type": "application/json"}
        if token_file is not None:
            self._headers["Authorization"] = f"Bearer {_read_token(token_file)}"
        url = urlsplit(address)
        self._path, host = url.path.rstrip("/"), url.hostname or ""
        self._http: HTTPConnection
        if url.scheme == "https":
            context = ssl.create_default_context()
            self._http = HTTPSConnection(host, url.port, timeout=seconds, context=context)
        else:
            self._http = HTTPConnection(host, url.port, timeout=seconds)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """Send one request; the answer may be that the job does not exist.

        Raises:
            EngineError: The cluster did not answer; `RefusedError` if it answered with an error.
        """
        content = None if body is None else json.dumps(body)
        is_late = False
        try:
            if self._http.sock is None:
                self._http.connect()
            with cut_after(self._http, self._seconds) as late:
                try:
                    self._http.request(method, self._path + path, content, self._headers)
                    response = self._http.getresponse()
                    text = response.read(ANSWER_BYTES).decode(errors="replace")
                finally:
                    is_late = late.is_set()
        except (OSError, HTTPException) as error:
            is_late = is_late or isinstance(error, TimeoutError)
            raise self._silence(str(error) or type(error).__name__, is_late=is_late) from error
        if is_late:  # the answer may be incomplete
            raise self._silence("", is_late=True)
        answer = Answer(status=response.status, text=text, date=response.getheader("Date") or "")
        if answer.status == 200 or _is_no_job(answer):
            return answer
        raise self._refusal(answer)

    def _silence(self, cause: str, *, is_late: bool) -> EngineError:
        self._http.close()
        cause = f"no whole answer within {self._seconds:g} s" if is_late else cause
        message = f"Ray at {self.address} does not answer ({cause}); {IS_IT_RAY}"
        return EngineError(message, temporary=True)

    def unreadable(self, what: str) -> RefusedError:
        """The error for an answer whose content has an unknown shape."""
        message = f"Ray at {self.address} describes {what} in an unknown way; {IS_IT_RAY}"
        return RefusedError(message)

    def _refusal(self, answer: Answer) -> RefusedError:
        where, status = f"Ray at {self.address}", answer.status
        if status == 401:
            message = f"{where} asks for a token; name its file in GENESIS_RAY_TOKEN_FILE"
        elif status == 403:
            message = (
                f"{where} refused the token in {self._token_file}; write the one of the cluster "
                "to that file (`ray get-auth-token` prints it there)"
            )
        else:
            message = f"{where} answered {status} ({_last_line(answer.text)}); "
            message += "look into the head's dashboard.log" if status >= 500 else IS_IT_RAY
        refused_for_good = status == 400 or "status code 400" in answer.text
        return RefusedError(
            message, temporary=not refused_for_good, status=status, said=answer.text
        )


def _is_no_job(answer: Answer) -> bool:
    """Whether Ray says that it has no such job; any other page may be missing, too."""
    return answer.status == 404 and answer.text.startswith("Job ") and "exist" in answer.text


def _last_line(text: str) -> str:
    """The last line of an error page, which is a traceback; at most 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" .")]
    return lines[-1][:300] if lines else ""


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "it is not text"
        raise EngineError(
            f"the token of Ray cannot be read from {path} ({cause}); make it a file with the "
            "cluster's token that the daemon's user can read",
            temporary=True,
        ) from error
    if not token or not (token.isascii() and token.isprintable()) or " " in token:
        remedy = "write the cluster's token to it, in one line (`ray get-auth-token` prints it)"
        raise EngineError(f"{path} contains no token of Ray; {remedy}", temporary=True)
    return token
