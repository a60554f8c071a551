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
        """Return ``new_is_wanted``, ``new_is_got``, ``old_is_wanted``, ``old_is_got``.

        Each in [0, 1]: of the values in the token that the edit inserts or removes, the share of
        the failing tests that expect or get the commonest.
        """
        old, new = values_in(edit.old), values_in(edit.new)
        return (
            max((self._wanted.get(value, 0) for value in new), default=0.0),
            max((self._got.get(value, 0) for value in new), default=0.0),
            max((self._wanted.get(value, 0) for value in old), default=0.0),
            max((self._got.get(value, 0) for value in old), default=0.0),
        )


@lru_cache(maxsize=1 << 14)
def values_in(text: str) -> tuple[str, ...]:
    """Return the literals and empty containers in the *text* of an edit, as results show them."""
    return tuple(dict.fromkeys(_VALUE.findall(text)))


def _shares(texts: Sequence[str]) -> dict[str, float]:
    return {text: count / len(texts) for text, count in Counter(texts).items()}
