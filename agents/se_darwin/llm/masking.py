"""Mask strings that look like secrets in what is sent, and put them back into answers."""

from __future__ import annotations

import math
import re
from collections import Counter

_KNOWN = re.compile(
    r"""
      -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | \b(?:AKIA|ASIA|AROA)[0-9A-Z]{16}\b                      # Amazon
    | \b(?:sk|pk|rk)[-_](?:[A-Za-z]+[-_])*[A-Za-z0-9]{16,}\b  # OpenAI, Stripe, ...
    | \bgh[pousr]_[A-Za-z0-9]{20,}\b | \bgithub_pat_\w{20,}\b
    | \bglpat-[\w-]{16,} | \bxox[abprs]-[\w-]{10,} | \bhf_[A-Za-z0-9]{20,}\b
    | \bAIza[\w-]{30,} | \bya29\.[\w-]{20,} | \bnpm_[A-Za-z0-9]{30,}\b | \bpypi-[\w-]{40,}
    | \beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*                        # a JSON web token
    | (?<=://)[^\s/:@'"]+:[^\s/@'"]+(?=@)                     # user and password of a URL
    | (?<=[Bb]earer\ )[\w.~+/-]{8,}=* | (?<=[Bb]asic\ )[A-Za-z0-9+/]{8,}=*
    """,
    re.VERBOSE | re.DOTALL,
)
_NAMED = re.compile(
    r"""(?i)\w*(?:passw(?:or)?d|passphrase|secret|token|api_?key|credential|private_?key)\w*["']?\]?
    \s*(?::\s*\w+\s*)?[=:]\s*[rbuf]{0,2}(["'])(?P<value>[^"'\n]{4,})\1""",
    re.VERBOSE,
)
_LONG = re.compile(r"(?<=[\"'])[A-Za-z0-9+/_=-]{24,}(?=[\"'])")
_MARK = re.compile(r"MASKED_\d+")
_RANDOM_BITS = 3.7  # of entropy per character; words and identifiers have less


class Masking:
    """Replaces secrets of one search by numbered marks."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def mask(self, text: str) -> str:
        """Return *text* with a mark in the place of each string that looks like a secret."""
        text = _KNOWN.sub(lambda match: self._mark(match[0]), text)
        text = _NAMED.sub(self._named, text)
        return _LONG.sub(lambda match: self._long(match[0]), text)

    def unmask(self, text: str) -> str:
        """Return *text* with the secrets in the place of their marks."""
        secrets = {mark: secret for secret, mark in self._marks.items()}
        return _MARK.sub(lambda match: secrets.get(match[0], match[0]), text)

    def _named(self, match: re.Match[str]) -> str:
        start, end = match.span("value")
        whole, offset = match[0], match.start()
        value = match["value"]
        if value in self._marks.values():
            return whole
        return f"{whole[: start - offset]}{self._mark(value)}{whole[end - offset :]}"

    def _long(self, text: str) -> str:
        counts = Counter(text)
        bits = -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
        is_mixed = any(c.isdigit() for c in text) and any(c.isalpha() for c in text)
        is_hex = len(text) >= 32 and set(text.lower()) <= set("0123456789abcdef")
        return self._mark(text) if is_mixed and (bits >= _RANDOM_BITS or is_hex) else text

    def _mark(self, secret: str) -> str:
        return self._marks.setdefault(secret, f"MASKED_{len(self._marks) + 1}")
