"""What plugin code hands over, held to the contract."""

from __future__ import annotations

from typing import TypeVar

Kind = TypeVar("Kind")


def checked(value: object, kind: type[Kind], must: str) -> Kind:
    """Return *value*, which plugin code gave, if it is a *kind*.

    Args:
        value: What was given.
        kind: What the contract asks for.
        must: The contract's words, such as ``build_job() must return``.

    Raises:
        TypeError: It is something else; says so in the contract's words.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{must} {kind.__name__}, got {type(value).__name__}")
    return value
