"""From flat variables to a tree of values: ``A__SETTINGS__X`` and JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from genesis_fp16.settings.env_file import Variable

DEEPEST = 16  # lists and objects within one another; more is no setting that a person writes
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def why_no_text(text: str) -> str:
    """Why *text* cannot be the value of a setting; empty if it can."""
    if found := _NO_TEXT.search(text):
        return f"it holds {found[0]!a}, which is no text: write it anew in UTF-8"
    return ""


def tree_of(variables: Mapping[str, Variable], prefix: str, problems: list[str]) -> dict[str, Any]:
    """The values of all variables that begin with *prefix*, by the parts of their names.

    Args:
        variables: Name to text.
        prefix: Cut from each name; what is left is split at ``__``, in lower case.
        problems: Gets a line for each that does not fit into the tree.
    """
    tree: dict[str, Any] = {}
    for name, variable in variables.items():
        if not name.startswith(prefix):
            continue
        node: Any = tree
        *path, leaf = name.removeprefix(prefix).lower().split("__")
        if len(path) > DEEPEST:
            problems.append(f"{name[:80]}... ({variable.source}) has more than {DEEPEST} parts")
            continue
        for part in path:
            node = node.setdefault(part, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict) or isinstance(node.get(leaf), dict):
            problems.append(f"{name} ({variable.source}) is set both whole and in parts: keep one")
            continue
        try:
            node[leaf] = _json_or_text(variable.value)
        except ValueError as error:
            problems.append(f"{name} ({variable.source}): {error}")
    return tree


def _json_or_text(text: str) -> object:
    """JSON where *text* is a list or an object of it; else *text*.

    Raises:
        ValueError: It is JSON of a kind that no setting can be.
    """
    if text[:1] not in ("[", "{"):
        return text
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"its JSON is nested deeper than {DEEPEST}: make it flatter") from None
    except ValueError:
        return text  # the agent's own settings model will judge it
    _check(value, DEEPEST)
    return value


def _check(value: object, deepest: int) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"its JSON holds {value}: write a finite number")
    if isinstance(value, str) and (why := why_no_text(value)):
        raise ValueError(why)
    if isinstance(value, list | dict):
        if deepest == 0:
            raise ValueError(f"its JSON is nested deeper than {DEEPEST}: make it flatter")
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            _check(part, deepest - 1)
