"""Find and make the proposers that a request names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

from pydantic import JsonValue

from infrastructure.agent_contract.proposer import EDITS, PROPOSERS_GROUP, Proposer


def load_proposers(options: Mapping[str, Mapping[str, JsonValue]]) -> dict[str, Proposer]:
    """Return the proposers that *options* names, by name; a request for `EDITS` is always met.

    Raises:
        ValueError: One is not installed, cannot be loaded, or refuses its options.
    """
    points = {point.name: point for point in entry_points(group=PROPOSERS_GROUP)}
    proposers: dict[str, Proposer] = {}
    for name, given in options.items():
        if name == EDITS:
            continue
        if name not in points:
            known = ", ".join(sorted({EDITS, *points}))
            raise ValueError(f"no proposer {name!r} is installed; there are {known}")
        try:
            proposers[name] = points[name].load()(given)
        except ValueError as error:
            raise ValueError(f"proposer {name}: {error}") from None
        except Exception as error:  # plugin code may raise anything
            raise ValueError(
                f"proposer {name} cannot be used: {type(error).__name__}: {error}"
            ) from None
    return proposers
