"""Find the code in an answer: in a fence, in tags, in JSON, quoted, or alone."""

from __future__ import annotations

import ast
import html
import json
import re
import textwrap
from collections.abc import Iterator

from agents.se_darwin.edits.nodes import FunctionNode
from agents.se_darwin.proposals.foreign_code import parse_foreign

LONGEST = 200_000  # characters of an answer that are looked at
_FENCE = re.compile(
    r"^[ \t>]*(`{3,}|~{3,})[^\n]*\n(.*?)(?:^[ \t>]*\1|\Z)", re.DOTALL | re.MULTILINE
)
_TAGGED = re.compile(
    r"<(code|pre|python|answer|solution)\b[^>]*>(.*?)(?:</\1>|\Z)", re.DOTALL | re.I
)
_THOUGHTS = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.I)
_PROMPTS = re.compile(r"^(?:>>> ?|\.\.\. ?)", re.MULTILINE)
_QUOTES = re.compile(r"^[ \t]*> ?", re.MULTILINE)
_NUMBERS = re.compile(r"^[ \t]*\d+[:|.)]? ?", re.MULTILINE)
_START = re.compile(r"^[ \t]*(?:@\w|(?:async )?def |class |import |from )", re.MULTILINE)
_KEYS = ("code", "function", "answer", "solution", "content", "python")
_MOST_LINES = 2_000
_MOST_PIECES = 20


def find_code(answer: str, function: str) -> str:
    """Return the Python code in *answer* that defines *function*; empty if there is none.

    Of several pieces the last one counts: models correct themselves.

    Args:
        answer: Text of the answer.
        function: Name of the function, or ``Class.method``.
    """
    text = answer[:LONGEST].lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = _THOUGHTS.sub("", text)
    name = function.rpartition(".")[2]
    if name not in text:
        return ""
    found = ""
    for piece in _pieces(text):
        for code in _spellings(piece):
            if _defines(code, name):
                found = code
                break
    return found


def _pieces(text: str) -> Iterator[str]:
    """Yield what may be code, the most likely last."""
    yield from _longest_code(text)
    yield text
    yield from _in_json(text)
    tagged = [match[2] for match in _TAGGED.finditer(text)][-_MOST_PIECES:]
    yield from tagged
    yield from (match[2] for piece in tagged if (match := _TAGGED.search(piece)))
    yield from [match[2] for match in _FENCE.finditer(text)][-_MOST_PIECES:]


def _spellings(piece: str) -> Iterator[str]:
    """Yield *piece* as it is, and without what is before its lines."""
    yield textwrap.dedent(piece)
    for pattern in (_PROMPTS, _QUOTES, _NUMBERS):
        if pattern.search(piece):
            yield textwrap.dedent(pattern.sub("", piece))
    if "&" in piece:
        yield textwrap.dedent(html.unescape(piece))
    if "\\n" in piece and "\n" not in piece.strip():
        yield piece.strip().strip("\"'").replace("\\n", "\n").replace('\\"', '"')


def _longest_code(text: str) -> Iterator[str]:
    """Yield the longest code that begins at the first definition, for an answer without fences."""
    start = _START.search(text)
    lines = text[start.start() :].split("\n")[:_MOST_LINES] if start else []
    step = max(1, len(lines) // 50)
    for end in range(len(lines), 0, -step):
        code = textwrap.dedent("\n".join(lines[:end]))
        if parse_foreign(code) is not None:
            yield code
            return


def _in_json(text: str) -> Iterator[str]:
    start, end = text.find("{"), text.rfind("}")
    if not 0 <= start < end:
        return
    try:
        value = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        yield from (value[key] for key in _KEYS if isinstance(value.get(key), str))


def _defines(code: str, name: str) -> bool:
    tree = parse_foreign(code)
    return tree is not None and any(
        isinstance(node, FunctionNode) and node.name == name for node in ast.walk(tree)
    )
