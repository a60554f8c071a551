"""Edits of texts that have a structure: f-strings, formats of dates, modes of files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from agents.se_darwin.edits.edit import Proposal, Site

_BETWEEN = (" ", ", ", "-", ": ", ":", "/")
_SPECS = (".2f", "02d", ",")
_NUMBER = re.compile(r"(?<!\d)\d{1,4}(?!\d)")
_DIRECTIVE = re.compile(r"%[a-zA-Z]")
_MAX_TEXT = 60
_MODES = ("r", "w", "a", "x", "rb", "wb", "ab")


def field_format(site: Site) -> Iterator[Proposal]:
    """``{x}`` to ``{x:.2f}`` or ``{x!r}`` in an f-string, another number in a format, and back."""
    node = site.node
    if not isinstance(node, ast.FormattedValue):
        return
    spec = _text_of(node.format_spec)
    if node.format_spec is None:
        changes = [*_SPECS]
    elif spec is None:  # it has fields of its own
        return
    else:
        changes = [*dict.fromkeys(_with_other_numbers(spec)), ""]
    for text in changes:
        yield Proposal(
            kind="string",
            old=f"field :{spec or ''}"[:20],
            new=f":{text}",
            assign=site.set_field("format_spec", _spec(text)),
        )
    conversion = ord("r") if node.conversion == -1 else -1
    yield Proposal(
        kind="string",
        old="field",
        new="!r" if conversion > 0 else "no conversion",
        assign=site.set_field("conversion", conversion),
    )


def _text_of(spec: ast.expr | None) -> str | None:
    if not isinstance(spec, ast.JoinedStr):
        return None
    parts = [piece.value for piece in spec.values if isinstance(piece, ast.Constant)]
    return "".join(map(str, parts)) if len(parts) == len(spec.values) else None


def _with_other_numbers(spec: str) -> Iterator[str]:
    for match in _NUMBER.finditer(spec):
        digits = match.group()
        for value in (int(digits) + 1, int(digits) - 1):
            if value >= 0:
                written = str(value).zfill(len(digits))
                yield spec[: match.start()] + written + spec[match.end() :]


def _spec(text: str) -> ast.JoinedStr | None:
    return ast.JoinedStr([ast.Constant(text)]) if text else None


def text_inserted(site: Site) -> Iterator[Proposal]:
    """``{a}{b}`` to ``{a} {b}`` and the like in an f-string."""
    node = site.node
    if not isinstance(node, ast.JoinedStr) or site.role == "format_spec":
        return
    for index, (left, right) in enumerate(pairwise(node.values), 1):
        if isinstance(left, ast.FormattedValue) and isinstance(right, ast.FormattedValue):
            for text in _BETWEEN:
                added = [*node.values[:index], ast.Constant(text), *node.values[index:]]
                yield Proposal(
                    kind="string",
                    old=f"between {index}",
                    new=repr(text),
                    assign=site.set_field("values", added),
                )


def text_of_fields(site: Site) -> Iterator[Proposal]:
    """The text beside the fields of an f-string: a separator to others, to none; case, blanks."""
    node = site.node
    if not isinstance(node, ast.Constant) or not isinstance(site.parent, ast.JoinedStr):
        return
    text = node.value
    if isinstance(site.ancestors[1], ast.FormattedValue) or not isinstance(text, str):
        return  # a format
    others = [*_BETWEEN, ""] if len(text.strip()) <= 1 else []
    others += [text.strip(), f"{text} ", f" {text}", text.lower(), text.capitalize()]
    yield from _texts(site, text, others)


def _texts(site: Site, old_text: str, others: Iterable[str]) -> Iterator[Proposal]:
    """Propose *others* in the place of a constant."""
    for text in dict.fromkeys(others):
        if text != old_text:
            yield Proposal(
                kind="string",
                old=repr(old_text)[:_MAX_TEXT],
                new=repr(text)[:_MAX_TEXT],
                assign=site.set_field("value", text),
            )


def field_value(site: Site) -> Iterator[Proposal]:
    """``{n}`` to ``{n + 1}``, ``{n - 1}``, ``{0}`` or ``{1}`` in an f-string."""
    node = site.node
    if not isinstance(site.parent, ast.FormattedValue) or site.role != "value":
        return
    if not isinstance(node, ast.Name) or node.id not in site.scope.numeric:
        return
    for text in ("0", "1"):
        yield Proposal(kind="value_replaced", old=node.id, new=text, assign=site.replace_text(text))
    for sign, name in (("+", "Add"), ("-", "Sub")):
        yield Proposal(
            kind="offset",
            old="nothing",
            new=f"{name} 1",
            assign=site.replace_text(f"{node.id} {sign} 1"),
        )


def date_format(site: Site) -> Iterator[Proposal]:
    """``"%d.%M"`` to ``"%d.%m"``; two neighbouring directives exchanged."""
    node = site.node
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return
    text, directives = node.value, list(_DIRECTIVE.finditer(node.value))
    if "%Y" not in text and "%H" not in text and len(directives) < 2:
        return
    others = []
    for directive in directives:
        changed = directive.group().swapcase()
        others.append(text[: directive.start()] + changed + text[directive.end() :])
    for left, right in pairwise(directives):
        middle = text[left.end() : right.start()]
        others.append(
            text[: left.start()] + right.group() + middle + left.group() + text[right.end() :]
        )
    yield from _texts(site, text, others)


def file_mode(site: Site) -> Iterator[Proposal]:
    """The mode with which a file is opened to another one."""
    node, parent = site.node, site.parent
    if not isinstance(node, ast.Constant) or node.value not in _MODES:
        return
    call = site.ancestors[1] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or "open" not in ast.unparse(call.func):
        return
    yield from _texts(site, str(node.value), _MODES)


FORMAT_RULES = (
    field_format,
    text_inserted,
    text_of_fields,
    field_value,
    date_format,
    file_mode,
)
