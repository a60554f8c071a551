"""Requests to the Kubernetes API server: JSON over HTTPS, and errors that say what to do."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import genesis_fp16
from genesis_fp16.executors.kubernetes.credentials import Credentials
from genesis_fp16.executors.remote import EngineError
from genesis_fp16.executors.remote.deadline import cut_after

REQUEST_SECONDS = 10.0  # for one whole request, however slowly the server answers
LONGEST_ANSWER = 64 << 20  # bytes
# A restarted server answers 403 until it has read its roles. A person can renew a token (401) or
# grant a verb while runs wait.
_TEMPORARY = (401, 403, 408, 409, 410, 425, 429)
_QUOTA = "exceeded quota"  # a 403 that ends when other pods end


class ApiError(EngineError):
    """The API server refused a request, or did not answer it.

    Attributes:
        status: HTTP status; 0 if there was no usable answer.
    """

    def __init__(self, message: str, *, status: int, temporary: bool) -> None:
        super().__init__(message, temporary=temporary)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An answer of the API server.

    Attributes:
        body: The JSON object.
        date: The server's clock as HTTP writes it; may be empty.
        warnings: Warnings of the server about the request.
    """

    body: Mapping[str, Any]
    date: str = ""
    warnings: tuple[str, ...] = ()


class KubernetesApi:
    """Sends one request at a time; keeps no connection between requests.

    Args:
        credentials: Server and sign-in.
        seconds: Longest time for one request.
    """

    def __init__(self, credentials: Credentials, seconds: float = REQUEST_SECONDS) -> None:
        self.credentials = credentials
        self._seconds = seconds

    @property
    def address(self) -> str:
        """Address of the API server."""
        return f"https://{self.credentials.host}:{self.credentials.port}"

    def get(self, path: str, **query: str) -> Answer:
        """Read an object or a list.

        Raises:
            ApiError: See `send`; the same for the other methods.
        """
        return self.send("GET", path, query)

    def post(self, path: str, body: Mapping[str, Any], **query: str) -> Answer:
        """Create an object."""
        return self.send("POST", path, query, body)

    def put(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Replace an object."""
        return self.send("PUT", path, {}, body)

    def delete(self, path: str, options: Mapping[str, Any], **query: str) -> Answer:
        """Delete an object or a collection."""
        return self.send("DELETE", path, query, options)

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Send one request and read the whole answer.

        Raises:
            ApiError: No answer in time, none that is JSON, or one that is not a success.
            EngineError: The credentials cannot be read.
        """
        headers = {"Accept": "application/json", "User-Agent": _USER_AGENT}
        if token := self.credentials.bearer():
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        target = self.credentials.prefix + path + (f"?{urlencode(query)}" if query else "")
        connection = http.client.HTTPSConnection(
            self.credentials.host,
            self.credentials.port,
            timeout=self._seconds,
            context=self.credentials.tls,
        )
        is_late = False
        try:
            connection.connect()
            with cut_after(connection, self._seconds) as late:
                try:
                    connection.request(method, target, json.dumps(body) if body else None, headers)
                    response = connection.getresponse()
                    content = response.read(LONGEST_ANSWER)
                finally:
                    is_late = late.is_set()
        except (OSError, http.client.HTTPException, ValueError) as error:
            is_late = is_late or isinstance(error, TimeoutError)
            raise self._unreachable(error, is_late=is_late) from error
        finally:
            connection.close()
        return self._parse(method, path, response, content, is_late=is_late)

    def _parse(
        self,
        method: str,
        path: str,
        response: http.client.HTTPResponse,
        content: bytes,
        *,
        is_late: bool,
    ) -> Answer:
        try:
            body = json.loads(content) if content else {}
        except ValueError:
            body = None
        is_success = 200 <= response.status < 300
        if is_success and isinstance(body, dict):
            warnings = tuple(response.headers.get_all("Warning") or ())
            return Answer(body=body, date=response.headers.get("Date") or "", warnings=warnings)
        if is_success:
            cause = "the answer was cut off" if is_late else "its answer is not a JSON object"
            raise self._unreachable(ValueError(cause), is_late=is_late)
        message = body.get("message") if isinstance(body, dict) else None
        raise self._refused(method, path, response, str(message or response.reason))

    def _unreachable(self, error: Exception, *, is_late: bool) -> ApiError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ApiError(
                f"{self.address} has a certificate that {self.credentials.source} does not trust "
                f"({error.verify_message}); correct its certificate authority",
                status=0,
                temporary=False,
            )
        cause = f"no answer within {self._seconds:g} s" if is_late else str(error) or repr(error)
        return ApiError(
            f"the Kubernetes API server {self.address} does not answer: {cause}",
            status=0,
            temporary=True,
        )

    def _refused(
        self, method: str, path: str, response: http.client.HTTPResponse, message: str
    ) -> ApiError:
        status = response.status
        temporary = status in _TEMPORARY or status >= 500
        remedy = ""
        if status == 401:
            remedy = f"; renew the token or the certificate of {self.credentials.source}"
        elif status == 403 and _QUOTA not in message:
            remedy = (
                "; grant this verb in the Role of the daemon's service account, see "
                "deploy/kubernetes/components/kubernetes-executor/role.yaml"
            )
        return ApiError(
            f"the Kubernetes API server {self.address} refused {method} {path} with {status}: "
            f"{message}{remedy}",
            status=status,
            temporary=temporary,
        )


_USER_AGENT = f"genesis-fp16/{genesis_fp16.__version__}"
