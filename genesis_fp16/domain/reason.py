"""The reason that an operator gives for a change, as the audit trail keeps it."""

from __future__ import annotations

from genesis_fp16.domain.errors import GenesisError
from infrastructure.events.plain_text import plain

LONGEST_REASON = 500  # characters


class ReasonMissingError(GenesisError, ValueError):
    """A change that is audited was asked for without a reason."""

    exit_code = 2


def one_line(reason: str) -> str:
    """*reason* on one line, without control characters and at most `LONGEST_REASON` long.

    Raises:
        ReasonMissingError: Nothing of it is left.
    """
    text = " ".join(plain(reason, longest=LONGEST_REASON).split())
    if not text:
        raise ReasonMissingError("give a reason: the audit trail needs one")
    return text
