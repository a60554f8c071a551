"""Reads conversations in any form in which Genesis keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infrastructure.trajectories.record_source.lines import begins_document, document_records

_HARMFUL = {"unsafe": True, "safe": False, "edge_case": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A conversation of one reply.

    Attributes:
        prompt: What the user asked.
        reply: The reply; empty if there is none.
        harmful: Whether the prompt is labelled as harmful; None without a label.
        labelled: Whether the reply has labels, so that it needs none.
    """

    prompt: str
    reply: str
    harmful: bool | None = None
    labelled: bool = False


def read_conversations(path: Path) -> Iterator[Found | None]:
    """Yield each conversation of *path*; None for a record without a prompt.

    The file is JSON lines or pretty-printed JSON: conversations of this agent, results of Genesis'
    pair with their nested rounds, its scenarios, or chats of ``messages``.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not JSON.
    """
    content = path.read_bytes()
    if begins_document(content[:4096]):
        records = document_records(content)
    else:
        records = [line for line in content.splitlines() if line.strip()]
    for record in records:
        body = json.loads(record)
        yield _found(body) if isinstance(body, dict) else None


def read_prompt_labels(path: Path) -> dict[str, bool]:
    """Return whether each prompt of *path* is harmful.

    A record has ``prompt`` and ``harmful``, or is one that `read_conversations` finds labelled.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not JSON.
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
    labelled = isinstance(body.get("unsafe"), bool) and isinstance(body.get("overrefuse"), bool)
    return Found(prompt=prompt, reply=reply, harmful=harmful, labelled=labelled)


def _of_messages(messages: list[object]) -> Found | None:
    """The last reply, and the last question before it."""
    said = [(_text(each, "role"), _text(each, "content")) for each in messages]
    replies = [number for number, (role, _) in enumerate(said) if role == "assistant"]
    end = replies[-1] if replies else len(said)
    asked = [text for role, text in said[:end] if role == "user"]
    return Found(prompt=asked[-1], reply=said[end][1] if replies else "") if asked else None


def _text(body: object, key: str) -> str:
    value = body.get(key) if isinstance(body, dict) else None
    return value if isinstance(value, str) else ""
