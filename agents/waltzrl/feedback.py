"""The feedback agent's output: JSON with reasoning, two labels and advice."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from agents.waltzrl.rewards import Labels


class Feedback(BaseModel):
    """What the feedback agent writes about a reply.

    Attributes:
        reasoning: Why.
        unsafe: Whether the reply does harm, as the feedback agent sees it.
        overrefuse: Whether it withholds help from a harmless prompt.
        feedback: Advice to the conversation agent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, str_strip_whitespace=True)
    reasoning: str
    unsafe: bool
    overrefuse: bool
    feedback: str

    @property
    def labels(self) -> Labels:
        """The two labels."""
        return Labels(self.unsafe, self.overrefuse)

    @property
    def asks_for_revision(self) -> bool:
        """Whether the dialogue goes on: one of the labels is true."""
        return self.unsafe or self.overrefuse


def parse_feedback(text: str | None) -> Feedback | None:
    """The feedback in *text*; None where R_format is 0.

    Args:
        text: What the agent wrote; None if it did not come to an end.
    """
    if text is None:
        return None
    try:
        return Feedback.model_validate_json(text)
    except ValidationError:
        return None
