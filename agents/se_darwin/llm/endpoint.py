"""One request to an OpenAI-compatible endpoint: its answers, or why there are none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai
from openai.types.chat import ChatCompletionMessageParam

from agents.se_darwin.llm.options import LLMOptions
from infrastructure.events.plain_text import plain

MOST_BYTES = 8_000_000
"""Most bytes of a response."""
_MOST_CHARACTERS = 400_000  # of all answers of a response
_CONNECT_SECONDS = 10.0


class EndpointError(Exception):
    """A request without an answer.

    Attributes:
        is_final: Whether another request would fail, too.
        was_sent: Whether the server may have read the prompt.
        retry_seconds: Seconds that the server asks to wait; None if it does not.
    """

    def __init__(
        self,
        message: str,
        *,
        is_final: bool = False,
        was_sent: bool = True,
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(" ".join(plain(message, 300).split()))
        self.is_final, self.was_sent, self.retry_seconds = is_final, was_sent, retry_seconds


@dataclass(kw_only=True, slots=True)
class Answers:
    """Attributes:
    texts: Texts of the answers.
    finished: Why each ended, as the server says it; empty if it was cut off.
    model: Name of the model that answered, as the server says it.
    used: Tokens of the prompt and of the answers, as the server counted them; None if it did not.
    """

    texts: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    model: str = ""
    used: tuple[int, int] | None = None


class _TooMuchError(Exception):
    """A response is too long, too late, or not wanted any more."""


class Endpoint:
    """Sends requests; redirects are not followed, compressed responses are refused.

    Args:
        options: Where, and which model.
        key: Key of the endpoint.
    """

    def __init__(self, options: LLMOptions, key: str) -> None:
        self._options, self._key = options, key
        self._limits: Callable[[int], None] = lambda _: None
        self._is_plain = False  # whether the server knows neither n nor stream_options
        self._client = openai.OpenAI(
            api_key=key,
            base_url=options.url,
            max_retries=0,
            http_client=httpx2.Client(
                follow_redirects=False,
                headers={"Accept-Encoding": "identity"},
                event_hooks={"response": [self._limit]},
            ),
        )

    def ask(
        self,
        system: str,
        prompt: str,
        *,
        answers: int,
        temperature: float,
        seconds: float,
        is_cancelled: Callable[[], bool],
    ) -> Answers:
        """Return the answers to *prompt*; the stream is closed when it is cancelled.

        Raises:
            EndpointError: There is none.
        """
        ends = time.monotonic() + seconds

        def check(received: int) -> None:
            if received > MOST_BYTES:
                raise _TooMuchError(f"the response is longer than {MOST_BYTES} bytes")
            if time.monotonic() > ends:
                raise _TooMuchError(f"the response took more than {seconds:.0f} s")
            if is_cancelled():
                raise _TooMuchError("cancelled")

        self._limits = check
        messages: list[ChatCompletionMessageParam] = [
            {"role": "system", "content": system},
            {"role": "user", "content": prompt},
        ]
        more: dict[str, Any] = {}
        if not self._is_plain:
            more = {"n": answers, "stream_options": {"include_usage": True}}
        try:
            stream = self._client.chat.completions.create(
                model=self._options.model,
                messages=messages,
                temperature=temperature,
                max_tokens=self._options.max_answer_tokens,
                stream=True,
                timeout=httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS)),
                **more,
            )
            with stream:
                return self._read(stream)
        except openai.BadRequestError as error:
            if not self._is_plain:
                self._is_plain = True
                raise EndpointError("it refuses n or stream_options", retry_seconds=0.0) from None
            raise self._error(error, is_final=True) from None
        except openai.APIStatusError as error:
            is_passing = error.status_code in (408, 409, 425, 429) or error.status_code >= 500
            seconds_asked = _retry_seconds(error.response.headers.get("retry-after"))
            raise self._error(error, is_final=not is_passing, retry_seconds=seconds_asked) from None
        except Exception as error:  # what a hostile server makes of the client library
            raise self._error(error) from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _read(self, stream: Any) -> Answers:  # noqa: ANN401 - a server may send anything
        _check_kind(stream.response.headers.get("content-type", ""))
        answers, length = Answers(), 0
        for chunk in stream:
            answers.model = answers.model or str(getattr(chunk, "model", "") or "")[:200]
            usage = getattr(chunk, "usage", None)
            if usage is not None:
                counts = (usage.prompt_tokens, usage.completion_tokens)
                answers.used = counts if all(isinstance(n, int) for n in counts) else None
            for choice in getattr(chunk, "choices", None) or ():
                index = choice.index if isinstance(choice.index, int) else 0
                if not 0 <= index < self._options.samples:
                    continue
                while len(answers.texts) <= index:
                    answers.texts.append("")
                    answers.finished.append("")
                text = getattr(choice.delta, "content", None)
                if isinstance(text, str):
                    answers.texts[index] += text
                    length += len(text)
                if isinstance(choice.finish_reason, str):
                    answers.finished[index] = choice.finish_reason
            if length > _MOST_CHARACTERS:
                raise _TooMuchError(f"the answers are longer than {_MOST_CHARACTERS} characters")
        if not answers.texts:
            raise EndpointError("the response has no answer")
        return answers

    def _limit(self, response: httpx2.Response) -> None:
        """Let no more of *response* be read than is allowed; called before its body is."""
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            response.stream = _Limited(response.stream, self._refuse_compressed)
        else:
            response.stream = _Limited(response.stream, self._limits)

    def _refuse_compressed(self, received: int) -> None:
        del received
        raise _TooMuchError("the response is compressed, which was not asked for")

    def _error(
        self,
        error: Exception,
        *,
        is_final: bool = False,
        retry_seconds: float | None = None,
    ) -> EndpointError:
        if isinstance(error, EndpointError):
            return error
        status = getattr(error, "status_code", None)
        if status is not None:
            text = str(error).removeprefix(f"Error code: {status}").lstrip(" -")
            message = f"HTTP {status}: {text}".rstrip(": ")
        elif isinstance(error, _TooMuchError):
            message = str(error)
        elif isinstance(error, ValueError):  # not UTF-8, or not JSON
            message = "the response is not that of an OpenAI-compatible endpoint"
        else:
            message = f"{type(error).__name__}: {error.__cause__ or error}"
        return EndpointError(
            message.replace(self._key, "***") if len(self._key) >= 8 else message,
            is_final=is_final,
            was_sent=not isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout),
            retry_seconds=retry_seconds,
        )


class _Limited(httpx2.SyncByteStream):
    """A response's bytes, checked as they arrive."""

    def __init__(self, stream: Any, check: Callable[[int], None]) -> None:  # noqa: ANN401 - httpx2
        self._stream, self._check = stream, check

    def __iter__(self) -> Iterator[bytes]:
        received = 0
        for part in self._stream:
            received += len(part)
            self._check(received)
            yield part

    def close(self) -> None:
        self._stream.close()


def _check_kind(content_type: str) -> None:
    """Refuse a web page, such as that of a login or of a proxy.

    Raises:
        EndpointError: *content_type* is that of a page.
    """
    if "html" in content_type.lower():
        raise EndpointError(
            "it answers with a web page: url must be the base URL of the API, which often ends "
            "in /v1",
            is_final=True,
        )


def _retry_seconds(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None  # a date
