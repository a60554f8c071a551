"""What the requests of one search have spent, and whether another one may be made."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from agents.se_darwin.llm.options import LLMOptions

CHARACTERS_PER_TOKEN = 3
"""Estimate for code, where a server does not count its tokens; it counts too many."""
_MILLION = 1_000_000


@dataclass(kw_only=True, slots=True)
class Spending:
    """Attributes:
    options: What may be spent.
    requests: Requests that were sent, failed ones included.
    input_tokens: Tokens of the prompts.
    output_tokens: Tokens of the answers.
    is_estimated: Whether a part of the tokens is an estimate.
    answers: Answers that arrived.
    dropped: Number of those without usable code, by reason.
    problem: Why no further request is made; empty if one may be.
    """

    options: LLMOptions
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    is_estimated: bool = False
    answers: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    problem: str = ""
    _began: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float:
        """Seconds that requests may still take."""
        return self._began + self.options.max_seconds - time.monotonic()

    @property
    def tokens_left(self) -> int:
        """Tokens that may still be spent."""
        return self.options.max_tokens - self.input_tokens - self.output_tokens

    @property
    def cost(self) -> float | None:
        """What was spent, in the currency of the prices; None without prices."""
        return self._cost(self.input_tokens, self.output_tokens)

    def answers_affordable(self, prompt: str, wanted: int) -> int:
        """Return how many answers to *prompt* may be asked for, at most *wanted*.

        Each may take all the tokens that an answer may have. If none is affordable, `problem` says
        which part of the budget is spent.
        """
        options, prompt_tokens = self.options, len(prompt) // CHARACTERS_PER_TOKEN + 1
        if self.requests >= options.max_requests:
            self.problem = "all requests are made"
        elif self.seconds_left <= 0.0:
            self.problem = "the time is up"
        else:
            count = (self.tokens_left - prompt_tokens) // options.max_answer_tokens
            count = max(0, min(wanted, count))
            while count and not self._is_payable(prompt_tokens, count):
                count -= 1
            if count:
                return count
            is_payable = self._is_payable(prompt_tokens, 1)
            self.problem = "the tokens are spent" if is_payable else "the money is spent"
        return 0

    def count(self, prompt: str, texts: list[str], used: tuple[int, int] | None) -> None:
        """Count the tokens of a request: those the server counted, or an estimate."""
        if used is None:
            self.is_estimated = True
            used = (
                len(prompt) // CHARACTERS_PER_TOKEN,
                sum(map(len, texts)) // CHARACTERS_PER_TOKEN,
            )
        self.input_tokens += max(0, used[0])
        self.output_tokens += max(0, used[1])

    def summary(self) -> str:
        """Return what was spent, in one line."""
        about = "about " if self.is_estimated else ""
        parts = [
            f"{self.requests} requests to {self.options.model} at {self.options.host}",
            f"{about}{self.input_tokens} + {self.output_tokens} tokens",
        ]
        if self.cost is not None:
            parts.append(f"a cost of {self.cost:.4g}")
        parts.append(f"{self.answers} answers")
        parts += [f"{count} {reason}" for reason, count in sorted(self.dropped.items())]
        parts += [self.problem] if self.problem else []
        return ", ".join(parts)

    def _is_payable(self, prompt_tokens: int, answers: int) -> bool:
        limit = self.options.max_cost
        output = answers * self.options.max_answer_tokens
        more = self._cost(prompt_tokens, output)
        return limit is None or more is None or (self.cost or 0.0) + more <= limit

    def _cost(self, input_tokens: int, output_tokens: int) -> float | None:
        prices = self.options.input_price, self.options.output_price
        if None in prices:
            return None
        input_price, output_price = (price or 0.0 for price in prices)
        return (input_tokens * input_price + output_tokens * output_price) / _MILLION
