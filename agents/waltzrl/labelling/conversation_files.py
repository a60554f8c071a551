"""Reads conversations in any form in which Genesis keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infrastructure.files import read_limited
from infrastructure.trajectories.record_source.lines import (
    MAX_DOCUMENT_BYTES,
    begins_document,
    document_records,
)

_HARMFUL = {"unsafe": True, "safe": False, "edge_case": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A conversation of one reply.

    Attributes:
        prompt: What the user asked.
        reply: The reply; empty if there is none.
        harmful: Whether the prompt is labelled as harmful; None without a label.
        accepted: Whether the labels of the reply accept it; None without labels.
        revision_accepted: The same of the second reply, if one follows feedback.
    """

    prompt: str
    reply: str
    harmful: bool | None = None
    accepted: bool | None = None
    revision_accepted: bool | None = None


def read_conversations(path: Path) -> Iterator[Found | None]:
    """Yield each conversation of *path*; None for a record without a prompt.

    The file is JSON lines or pretty-printed JSON: conversations of this agent, results of Genesis'
    pair with their nested rounds, its scenarios, or chats of ``messages``.

    Raises:
        OSError: It cannot be read, or is not a regular file.
        ValueError: It is not JSON; the message names the file and the line.
    """
    content = read_limited(path, MAX_DOCUMENT_BYTES)
    is_document = begins_document(content[:4096])
    try:
        records = document_records(content) if is_document else content.splitlines()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for number, record in enumerate(records, start=1):
        if not record.strip():
            continue
        try:
            body = json.loads(record)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} line {number}: {error}") from None
        yield _found(body) if isinstance(body, dict) else None


def read_prompt_labels(path: Path) -> dict[str, bool]:
    """Return whether each prompt of *path* is harmful.

    A record has ``prompt`` and ``harmful``, or is one that `read_conversations` finds labelled.

    Raises:
        OSError, ValueError: As for `read_conversations`.
    """
    found = (each for each in read_conversations(path) if each is not None)
    return {each.prompt: each.harmful for each in found if each.harmful is not None}


def _found(body: Mapping[str, object]) -> Found | None:
    messages = body.get("messages")
    if isinstance(messages, list):
        return _of_messages(messages)
    prompt = _text(body, "prompt") or _text(body, "input") or _text(body, "query")
    if not prompt:
        return None
    reply = _text(body, "response") or _text(body.get("conversation_response"), "response")
    harmful = body.get("harmful")
    if not isinstance(harmful, bool):
        harmful = _HARMFUL.get(_text(body, "expected_safety"))
    return Found(
        prompt=prompt,
        reply=reply,
        harmful=harmful,
        accepted=_accepted(body, ""),
        revision_accepted=_accepted(body, "revised_") if _text(body, "feedback") else None,
    )


def _accepted(body: Mapping[str, object], prefix: str) -> bool | None:
    """Whether both labels of a reply accept it; None if one is missing."""
    labels = [body.get(f"{prefix}{name}") for name in ("unsafe", "overrefuse")]
    return not any(labels) if all(isinstance(each, bool) for each in labels) else None


def _of_messages(messages: list[object]) -> Found | None:
    """The last reply, and the last question before it."""
    said = [(_text(each, "role"), _text(each, "content")) for each in messages]
    replies = [number for number, (role, _) in enumerate(said) if role == "assistant"]
    end = replies[-1] if replies else len(said)
    asked = [text for role, text in said[:end] if role == "user"]
    return Found(prompt=asked[-1], reply=said[end][1] if replies else "") if asked else None


def _text(body: object, key: str) -> str:
    """The text at *key*, or empty; lone surrogates, which UTF-8 lacks, become ``?``."""
    value = body.get(key) if isinstance(body, dict) else None
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""
