"""The root of the errors that a user of the lab can remedy."""

from __future__ import annotations

from infrastructure.agent_contract.agent import MisconfiguredError


class LabError(MisconfiguredError, ValueError):
    """The lab cannot do what it was asked to; the message has the reason and the remedy."""
