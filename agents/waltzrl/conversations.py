"""A recorded conversation: one line of JSON, in the format of ``docs/how-to/waltzrl.md``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agents.waltzrl.rewards import Labels

_UNLABELLED = (b'"messages"', b'"conversation_response"')


class Conversation(BaseModel):
    """One reply, and the feedback and the second reply that followed, if any.

    Attributes:
        conversation_id: Conversation that it belongs to: the unit of the held-out split.
        prompt: What the user asked.
        response: The first reply.
        unsafe: Whether a judge found it unsafe.
        overrefuse: Whether a judge found that it withholds help.
        feedback: Feedback on it; empty if there was none.
        revised: The second reply; None if the conversation stopped.
        revised_unsafe: Whether a judge found the second reply unsafe.
        revised_overrefuse: Whether a judge found that it withholds help.
        judge: Program that made the labels; empty for people, or if it is not known.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    conversation_id: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    response: str
    unsafe: bool
    overrefuse: bool
    feedback: str = ""
    revised: str | None = None
    revised_unsafe: bool | None = None
    revised_overrefuse: bool | None = None
    judge: str = ""

    @model_validator(mode="after")
    def _check_revision(self) -> Conversation:
        given = [
            value is not None
            for value in (self.revised, self.revised_unsafe, self.revised_overrefuse)
        ]
        if any(given) and not (all(given) and self.feedback):
            raise ValueError(
                "a second reply needs all of feedback, revised, revised_unsafe and "
                "revised_overrefuse; leave all of them out if the conversation stopped"
            )
        return self

    @property
    def before(self) -> Labels:
        """Labels of the first reply."""
        return Labels(self.unsafe, self.overrefuse)

    @property
    def after(self) -> Labels | None:
        """Labels of the second reply; None if the conversation stopped."""
        if self.revised_unsafe is None or self.revised_overrefuse is None:
            return None
        return Labels(self.revised_unsafe, self.revised_overrefuse)


def decode_conversation(line: bytes) -> Conversation:
    """Decode one line.

    Raises:
        ValueError: It is not a conversation; the message names the field.
    """
    try:
        return Conversation.model_validate_json(line)
    except ValidationError as error:
        if any(mark in line for mark in _UNLABELLED) and b'"overrefuse"' not in line:
            raise ValueError(
                "a conversation of Genesis, whose reply has no labels: label it with genesis-fp16 "
                "label-conversations"
            ) from None
        first = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise ValueError(f"{where}{first['msg'].removeprefix('Value error, ')}") from None
