"""Whether the daemon accepts work, for ``/readyz``."""

from __future__ import annotations


class Readiness:
    """Whether the daemon accepts work; called by the listener's threads.

    Attributes:
        problem: Why it does not; empty if it does.
    """

    def __init__(self) -> None:
        self.problem = "starting"

    def __call__(self) -> tuple[bool, str]:
        """Whether it does, and the text of the answer."""
        return not self.problem, self.problem or "serving"
