"""The proposer: asks the model in rounds, with what was learned from the last one."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import JsonValue, ValidationError

from agents.se_darwin.llm.answers import find_code
from agents.se_darwin.llm.key import read_key
from agents.se_darwin.llm.masking import Masking
from agents.se_darwin.llm.options import LLMOptions, problems_of
from agents.se_darwin.llm.prompt import SYSTEM, write_prompt
from agents.se_darwin.llm.spending import Spending
from infrastructure.agent_contract.proposer import ProposalRequest, ProposedFunction
from infrastructure.events.plain_text import plain

if TYPE_CHECKING:
    from agents.se_darwin.llm.endpoint import Answers, Endpoint, EndpointError

_LEAST_WAIT, _MOST_WAIT = 1.0, 30.0  # seconds between requests after an error
_POLL_SECONDS = 0.05
_MOST_REPEATS = 2  # requests one after the other without a new answer


class LLMProposer:
    """Proposes what a language model answers.

    Args:
        options: Fields of `LLMOptions`.

    Raises:
        ValueError: They are wrong, the key cannot be read, or the extra ``llm`` is not installed.
    """

    def __init__(self, options: Mapping[str, JsonValue]) -> None:
        try:
            self.options = LLMOptions.model_validate(dict(options))
        except ValidationError as error:
            raise ValueError(problems_of(error)) from None
        self._key = read_key(self.options)
        self._masking = Masking()
        self._spending = Spending(options=self.options)
        self._models: set[str] = set()
        self._known: set[str] = set()
        self._repeats = 0
        self._endpoint: Endpoint | None = None

    def preview(self, request: ProposalRequest) -> str:
        """See `infrastructure.agent_contract.proposer.Proposer`."""
        prompt = write_prompt(request, self._masking)
        return (
            f"to {self.options.model} at {self.options.url}, {self.options.budget()}; "
            f"{len(self._masking)} strings masked\n\n[system]\n{SYSTEM}\n\n[user]\n{prompt}\n"
        )

    def propose(self, request: ProposalRequest) -> Iterator[ProposedFunction]:
        """See `infrastructure.agent_contract.proposer.Proposer`; one request that is answered."""
        prompt = write_prompt(request, self._masking)
        while not (self._spending.problem or request.is_cancelled()):
            wanted = min(self.options.samples, max(1, request.candidates))
            count = self._spending.answers_affordable(SYSTEM + prompt, wanted)
            if not count:
                return
            found = list(self._codes(prompt, count, request))
            if found:
                self._repeats = self._repeats + 1 if self._known.issuperset(found) else 0
                self._known.update(found)
            if self._repeats == _MOST_REPEATS:
                self._spending.problem = "the model repeats its answers"
            yield from (ProposedFunction(code=code) for code in found)
            if found or self._spending.problem:
                return

    def summary(self) -> str:
        """See `infrastructure.agent_contract.proposer.Proposer`."""
        others = sorted(self._models - {self.options.model})
        answered = f", answered by {', '.join(others)}" if others else ""
        masked = f", {len(self._masking)} strings masked" if len(self._masking) else ""
        return f"{self._spending.summary()}{answered}{masked}"

    def _codes(self, prompt: str, count: int, request: ProposalRequest) -> Iterator[str]:
        from agents.se_darwin.llm.endpoint import EndpointError

        spending, options = self._spending, self.options
        temperature = options.temperatures[spending.requests % len(options.temperatures)]
        seconds = min(spending.seconds_left, options.request_seconds, request.seconds)
        began = time.monotonic()
        self._audit(prompt, event="sent", answers=count, temperature=temperature)
        spending.requests += 1
        try:
            answers = self._opened().ask(
                SYSTEM,
                prompt,
                answers=count,
                temperature=temperature,
                seconds=max(0.1, seconds),
                is_cancelled=request.is_cancelled,
            )
        except EndpointError as error:
            if error.was_sent:
                spending.count(SYSTEM + prompt, [], None)
            self._audit(prompt, event="failed", seconds=time.monotonic() - began, error=str(error))
            self._note(error, request)
            return
        spending.count(SYSTEM + prompt, answers.texts, answers.used)
        self._audit(
            prompt,
            event="answered",
            seconds=time.monotonic() - began,
            model=plain(answers.model, 200),
            answers=len(answers.texts),
            tokens=list(answers.used or ()),
        )
        yield from self._read(answers, request.function)

    def _read(self, answers: Answers, function: str) -> Iterator[str]:
        if answers.model:
            self._models.add(plain(answers.model, 200))
        for text, finished in zip(answers.texts, answers.finished, strict=True):
            self._spending.answers += 1
            if finished in ("", "length"):
                self._spending.dropped["cut off"] += 1
            elif not text.strip():
                self._spending.dropped["empty"] += 1
            elif code := find_code(text, function):
                yield self._masking.unmask(code)
            else:
                self._spending.dropped["without the function"] += 1

    def _note(self, error: EndpointError, request: ProposalRequest) -> None:
        """Wait after an error, or end the proposer."""
        if error.is_final:
            self._spending.problem = str(error)
            return
        self._spending.dropped[f"failed ({str(error)[:80]})"] += 1
        if request.is_cancelled():  # for another function of the file the next request may be made
            return
        wait, left = error.retry_seconds, self._spending.seconds_left
        if wait is not None and wait > min(left, request.seconds):
            self._spending.problem = f"the server asks to wait {wait:.0f} s"
            return
        if wait is None:
            wait = min(_MOST_WAIT, _LEAST_WAIT * 2 ** (self._spending.requests - 1), max(0.0, left))
        ends = time.monotonic() + wait
        while time.monotonic() < ends and not request.is_cancelled():
            time.sleep(_POLL_SECONDS)

    def _opened(self) -> Endpoint:
        from agents.se_darwin.llm.endpoint import Endpoint

        if self._endpoint is None:
            self._endpoint = Endpoint(self.options, self._key)
        return self._endpoint

    def _audit(self, prompt: str, **facts: JsonValue) -> None:
        """Append a line on a request to the audit file; without it nothing is sent.

        Raises:
            OSError: It cannot be written.
        """
        if self.options.audit_file is None:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "url": self.options.url,
            "asked_model": self.options.model,
            "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
            "prompt_characters": len(prompt),
            "masked": len(self._masking),
            **facts,
        }
        self.options.audit_file.parent.mkdir(parents=True, exist_ok=True)
        with self.options.audit_file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def make_proposer(options: Mapping[str, JsonValue]) -> LLMProposer:
    """Return the proposer of the entry point ``llm``.

    Raises:
        ValueError: *options* are wrong, or the extra ``llm`` is not installed.
    """
    try:
        import openai  # noqa: F401 - told now, not in the thread of the first request
    except ImportError:
        raise ValueError("it needs the extra llm: pip install genesis-fp16[llm]") from None
    return LLMProposer(options)
