"""Mask strings that look like secrets in what is sent, and put them back into answers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from keyword import iskeyword

_KNOWN = re.compile(
    r"""
      -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | \b(?:AKIA|ASIA|AROA)[0-9A-Z]{16}\b                      # Amazon
    | \b(?:sk|pk|rk)[-_](?:[A-Za-z]+[-_])*[A-Za-z0-9]{16,}\b  # OpenAI, Stripe, ...
    | \bgh[pousr]_[A-Za-z0-9]{20,}\b | \bgithub_pat_\w{20,}\b
    | \bglpat-[\w-]{16,} | \bxox[abprs]-[\w-]{10,} | \bhf_[A-Za-z0-9]{20,}\b
    | \bAIza[\w-]{30,} | \bya29\.[\w-]{20,} | \bnpm_[A-Za-z0-9]{30,}\b | \bpypi-[\w-]{40,}
    | \beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*                        # a JSON web token
    | \bSG\.[\w-]{10,}\.[\w-]{10,}                            # SendGrid
    | (?<=hooks\.slack\.com/services/)[\w/]{20,}
    | \b\d{8,10}:[\w-]{33,36}(?![\w-])                         # a Telegram bot
    | (?<=://)[^\s/:@'"]*:[^\s@'"]+(?=@)                      # user and password of a URL
    | (?<=[Bb]earer\ )[\w.~+/-]{8,}=* | (?<=[Bb]asic\ )[A-Za-z0-9+/]{8,}=*
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS = r"passw(?:or)?ds?|pwd|passphrase|secret|(?:api|access|account)[-_]?key|credential"
_SHORT = (  # parts of names
    r"(?<![a-z])(?:(?:pw|otp|credit_?card)(?![a-z])|(?<!boarding_)pass(?![a-z_]))"
)
_NAME = (
    rf"(?<![\w-])(?=[\w-]*?(?:{_WORDS}|token|private_?key|authorization|{_SHORT}))[\w-]++"
    r"|\b(?:pin|pw|pass_|auth)\b|(?-i:\bKEY\b)"
)
_SURE_NAME = rf"(?<!\w)(?=\w*?(?:{_WORDS}))\w++"  # parsers compare tokens with their keywords
_STRING = re.compile(
    r"""
    (?P<prefix>[rbuf]{0,2})
    (?: \"{3}(?P<a>(?:\\.|(?!\"{3}).)*)\"{3} | \'{3}(?P<b>(?:\\.|(?!\'{3}).)*)\'{3}
      | \"(?P<c>(?:\\.|[^\"\\\n])*)\"         | \'(?P<d>(?:\\.|[^\'\\\n])*)\' )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_ANY_STRING = re.sub(r"\?P<\w+>", "?:", _STRING.pattern)
_NAMED = re.compile(
    rf"""
    (?: (?:{_NAME}) ["']? \]? \s* (?: :\s*\w[\w.\[\]|\ ]*\s* )? [=:,] (?:\s*[\w.]++\s*=(?!=))?
      | {_SURE_NAME} \s* \( (?: \s*[\w.]++\s*, )?
    ) [\[({{\s]*
    (?P<strings> (?: {_ANY_STRING} (?!\s*:) [\s,+\\]* )+ )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_COMPARED = re.compile(
    rf"""
      {_SURE_NAME} ["']? \]? \s* [=!]= \s* (?P<right>{_ANY_STRING})
    | (?P<left>{_ANY_STRING}) \s* [=!]= \s* (?:\w++\.)* {_SURE_NAME}
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_MAPPING = re.compile(rf"(?:{_NAME})\s*=\s*\{{(?P<pairs>[^{{}}]*)", re.IGNORECASE)
_VALUE = re.compile(rf":\s*(?P<strings>{_ANY_STRING})", re.VERBOSE | re.DOTALL | re.IGNORECASE)
_ENDING = (  # of a name whose number is a secret
    rf"(?<!\w)(?:\w*(?:{_WORDS}|token|otp|cvv)|(?:(?:card|user|sim)_)?pin|\w*credit_?card)"
    r"(?:_(?:code|hex|number|value))?(?!\w)"
)
_DIGITS = r"(?:0x[\da-f_]{4,}|\d[\d_]{3,})\b"
_NUMBER = re.compile(
    rf"{_ENDING}[\"']?\]?\s*(?::\s*\w+\s*)?(?:[=!]=|[=:])\s*-?(?P<right>{_DIGITS})"
    rf"|(?<![\w.])(?P<left>{_DIGITS})\s*[=!]=\s*(?:\w++\.)*{_ENDING}",
    re.IGNORECASE,
)
_IN_STRING = re.compile(
    rf"\b(?:{_WORDS}|token|sig)=(?P<value>(?![:%$?])[^\s\"'`,;&()\[\]{{}}<>\\]{{4,}})",
    re.IGNORECASE,
)
_PROSE = re.compile(r'#[^\n]*|""".*?"""|\'\'\'.*?\'\'\'', re.DOTALL)
_NAMED_IN_PROSE = re.compile(
    rf"(?:{_NAME})\s*[=:]\s*(?P<value>[^\s\"'`,;()\[\]{{}}]{{6,}})(?=[ \t]*(?:$|[\"']{{3}}))",
    re.MULTILINE | re.IGNORECASE,
)
_LEAST = 4  # characters of a secret
_LEAST_ELSEWHERE = 6  # of one that is masked wherever it occurs
_LONG = re.compile(r"(?<=[\"'])[A-Za-z0-9+/_=-]{24,}(?=[\"'])")
_MARK = re.compile(r"MASKED_\d+_")
_TEXT = re.compile(  # where a secret may stand again that looks like code
    rf"{_ANY_STRING} | \#[^\n]* | ^Problem:[^\n]*",
    re.VERBOSE | re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
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
        text = _NAMED.sub(lambda match: self._within(match, "strings", self._strings), text)
        text = _COMPARED.sub(
            lambda match: self._within(match, str(match.lastgroup), self._strings), text
        )
        text = _NUMBER.sub(
            lambda match: self._within(match, str(match.lastgroup), self._number), text
        )
        text = _MAPPING.sub(lambda match: self._within(match, "pairs", self._values), text)
        text = _STRING.sub(lambda match: _IN_STRING.sub(self._parameter, match[0]), text)
        text = _PROSE.sub(lambda match: self._prose(match[0]), text)
        text = _LONG.sub(lambda match: self._long(match[0]), text)
        again = sorted(self._marks, key=len, reverse=True)
        again = [secret for secret in again if len(secret) >= _LEAST_ELSEWHERE]
        words = self._words(again)
        text = _TEXT.sub(lambda match: self._again(match[0], words), text)
        return self._words(filter(_is_no_code, again)).sub(self._known, text)

    def unmask(self, text: str) -> str:
        """Return *text* with the secrets in the place of their marks."""
        secrets = {mark: secret for secret, mark in self._marks.items()}
        return _MARK.sub(lambda match: secrets.get(match[0], match[0]), text)

    @staticmethod
    def _words(secrets: Iterable[str]) -> re.Pattern[str]:
        """Return a pattern of *secrets* as whole words, also behind the escape of a new line."""
        any_of = "|".join(map(re.escape, secrets)) or "(?!)"
        return re.compile(rf"(?:(?<!\w)|(?<=\\[nrt]))(?:{any_of})(?!\w)")

    def _again(self, text: str, words: re.Pattern[str]) -> str:
        """Mask *words* in a string or comment; expressions of an f-string are code."""
        is_built = "f" in text[:2].lower()
        parts = re.split(r"(\{[^{}]*\})", text) if is_built else [text]
        parts[::2] = [words.sub(self._known, part) for part in parts[::2]]
        return "".join(parts)

    def _known(self, match: re.Match[str]) -> str:
        return self._marks[match[0]]

    @staticmethod
    def _within(match: re.Match[str], group: str, change: Callable[[str], str]) -> str:
        """Return the text of *match* with its *group* changed."""
        start, end = (place - match.start() for place in match.span(group))
        return f"{match[0][:start]}{change(match[group])}{match[0][end:]}"

    def _strings(self, text: str) -> str:
        """Mask all strings of Python in *text*."""
        return _STRING.sub(self._string, text)

    def _values(self, text: str) -> str:
        """Mask the strings that *text* gives to the keys of a mapping."""
        return _VALUE.sub(lambda match: self._within(match, "strings", self._strings), text)

    def _parameter(self, match: re.Match[str]) -> str:
        """Mask what a string, such as that of a connection, gives a secret name."""
        return self._within(match, "value", self._mark)

    def _string(self, match: re.Match[str]) -> str:
        [group] = [name for name in "abcd" if match[name] is not None]
        content = match[group]
        is_built = "f" in match["prefix"].lower() and "{" in content
        if is_built or len(content) < _LEAST or iskeyword(content):
            return match[0]
        return self._within(match, group, self._mark)

    def _prose(self, text: str) -> str:
        """Mask what a comment or a text of several lines gives a secret name."""
        return _NAMED_IN_PROSE.sub(lambda match: self._within(match, "value", self._mark), text)

    def _long(self, text: str) -> str:
        counts = Counter(text)
        bits = -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
        is_mixed = any(c.isdigit() for c in text) and any(c.isalpha() for c in text)
        is_hex = len(text) >= 32 and set(text.lower()) <= set("0123456789abcdef-")  # or a UUID
        return self._mark(text) if is_mixed and (bits >= _RANDOM_BITS or is_hex) else text

    def _number(self, digits: str) -> str:
        """Mask a number, unless it is a limit or a size, as its roundness tells."""
        number = int(digits.replace("_", ""), 16 if digits[1] in "xX" else 10)
        is_round = number % 1000 == 0 or number & (number - 1) == 0
        return digits if is_round else self._mark(digits)

    def _mark(self, secret: str) -> str:
        if _MARK.fullmatch(secret):
            return secret
        secret = self.unmask(secret)
        return self._marks.setdefault(secret, f"MASKED_{len(self._marks) + 1}_")


def _is_no_code(secret: str) -> bool:
    """Whether *secret* can be replaced outside strings, too: not a name, number or phrase."""
    return not (secret.isidentifier() or secret[0].isdigit() or " " in secret)
