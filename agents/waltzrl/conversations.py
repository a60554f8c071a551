"""Recorded conversations: lines of JSON in a folder, as records of one line each.

The file format is documented in ``docs/waltzrl.md``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agents.waltzrl.rewards import Labels
from infrastructure.trajectories.replay_buffer import OnSkip

LONGEST_LINE = 1 << 20
"""Bytes of a line; a longer one is skipped."""


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

    @model_validator(mode="after")
    def _check_revision(self) -> Conversation:
        given = [
            each is not None
            for each in (self.revised, self.revised_unsafe, self.revised_overrefuse)
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


class Recorded(NamedTuple):
    """Attributes:
    digest: Hash of the line; equal lines are one record.
    conversation: What the line says.
    """

    digest: str
    conversation: Conversation


def read_conversations(folder: Path, on_skip: OnSkip) -> Iterator[Recorded]:
    """Read the complete lines of ``*.jsonl`` in *folder*, each distinct line once.

    A last line without its end is left for a later call: its writer may not be done.

    Args:
        folder: Folder of the files, which are read in the order of their names.
        on_skip: Callback for each damaged line: file, line number from 1, reason.

    Raises:
        OSError: The folder or a file in it cannot be read.
    """
    seen = set[str]()
    for path in sorted(each for each in folder.iterdir() if each.suffix == ".jsonl"):
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if not line.endswith(b"\n"):
                    if len(line) <= LONGEST_LINE:
                        break
                    on_skip(path, number, f"longer than {LONGEST_LINE} bytes")
                    while line and not line.endswith(b"\n"):
                        line = file.readline(LONGEST_LINE)
                    continue
                digest = hashlib.sha256(line.strip()).hexdigest()[:32]
                if not line.strip() or digest in seen:
                    continue
                seen.add(digest)
                try:
                    conversation = Conversation.model_validate_json(line)
                except ValidationError as error:
                    first = error.errors(include_url=False, include_input=False)[0]
                    where = "".join(f"{each}: " for each in first["loc"])
                    on_skip(path, number, f"{where}{first['msg']}")
                    continue
                yield Recorded(digest, conversation)
