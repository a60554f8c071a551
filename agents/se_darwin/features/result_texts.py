"""What failing tests expect and get, compared with the values that an edit writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from agents.se_darwin.edits import Edit
from agents.se_darwin.tasks.evaluation import Evaluation

_VALUE = re.compile(
    r"(?<![\w.])-?\d+(?:\.\d+)?|\b(?:None|True|False)\b|'[^']*'|\"[^\"]*\"|\[\]|\{\}|\(\)"
)


class ResultTexts:
    """Shares of the failing tests whose expected or actual value an edit adds or removes.

    Args:
        parent: The program that is edited, evaluated.
    """

    def __init__(self, parent: Evaluation) -> None:
        self._wanted, self._got = _shares(parent.wanted), _shares(parent.got)

    def describe(self, edit: Edit) -> tuple[float, float, float, float]:
        """Return ``new_is_wanted``, ``new_is_got``, ``old_is_wanted``, ``old_is_got``."""
        old, new = values_in(edit.old), values_in(edit.new)
        return (
            max((self._wanted[value] for value in new), default=0.0),
            max((self._got[value] for value in new), default=0.0),
            max((self._wanted[value] for value in old), default=0.0),
            max((self._got[value] for value in old), default=0.0),
        )


@lru_cache(maxsize=1 << 14)
def values_in(text: str) -> tuple[str, ...]:
    """Return the literals and empty containers in the *text* of an edit, as results show them."""
    return tuple(dict.fromkeys(_VALUE.findall(text)))


def _shares(texts: Sequence[str]) -> Counter[str]:
    shares: Counter[str] = Counter()
    for text in texts:
        shares[text] += 1 / len(texts)  # type: ignore[assignment]
    return shares
