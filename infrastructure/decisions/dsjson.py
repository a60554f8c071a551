"""Decisions in dsjson, the format of Vowpal Wabbit's decision service: one JSON object a line.

``vw --dsjson --cb_explore_adf`` reads what is written here. Costs are negative rewards; actions
count from 1, in the order of ``a``, which lists the chosen one first.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from infrastructure.decisions.logged import LoggedDecision

MOST_LINE_BYTES = 4 << 20
MOST_ACTIONS = 1000
_LONGEST_TEXT = 200
_ID = re.compile(r"[^A-Za-z0-9._-]")
_OURS = "_genesis"  # what the format has no place for: group, version, fields of the outcome


class DsjsonError(ValueError):
    """A line is not a decision in dsjson; the message says why."""


def write_line(decision: LoggedDecision) -> str:
    """One line, without its newline.

    Raises:
        ValueError: The decision has no propensity, without which the format has no meaning.
    """
    if decision.propensity is None:
        raise ValueError(f"decision {decision.id} has no propensity")
    count, chosen = len(decision.actions), decision.chosen
    order = [chosen, *(position for position in range(count) if position != chosen)]
    known = decision.propensities
    if known is None or len(known) != count:  # the rest is shared evenly
        rest = (1.0 - decision.propensity) / max(1, count - 1)
        known = [decision.propensity if at == chosen else rest for at in range(count)]
    reward = decision.reward or 0.0
    ours: dict[str, Any] = {
        "group": decision.group,
        "next_observation": decision.next_observation,
        "rewarded": decision.reward is not None,
    }
    if any(map(_has_tokens, (decision.observation, *decision.actions))):
        ours |= {"observation": decision.observation, "actions": decision.actions}
    return json.dumps(
        {
            "_label_cost": -reward,
            "_label_probability": decision.propensity,
            "_label_Action": chosen + 1,
            "_labelIndex": chosen,
            "o": [{"v": reward, "EventId": decision.id}],
            "Timestamp": f"{_datetime(decision.at):%Y-%m-%dT%H:%M:%S.%f}Z",
            "Version": "1",
            "EventId": decision.id,
            "a": [position + 1 for position in order],
            "c": {
                "observation": _features(decision.observation),
                "_multi": [{"action": _features(action)} for action in decision.actions],
            },
            "p": [known[position] for position in order],
            "VWState": {"m": decision.version or "none"},
            _OURS: ours,
        },
        separators=(",", ":"),
    )


def read_line(line: bytes) -> LoggedDecision:
    """The decision of a line.

    Fields of other writers that have no meaning here are left out. Namespaces of their context
    become fields with dotted names.

    Raises:
        DsjsonError: The line is not a decision in dsjson.
    """
    if len(line) > MOST_LINE_BYTES:
        raise DsjsonError(f"it has {len(line)} bytes, at most {MOST_LINE_BYTES} are read")
    try:
        content = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DsjsonError(f"it is not JSON: {error!s:.100}") from None
    if not isinstance(content, dict):
        raise DsjsonError("it is not a JSON object")
    context = content.get("c")
    actions = context.get("_multi") if isinstance(context, dict) else None
    if not isinstance(context, dict) or not isinstance(actions, list):
        raise DsjsonError("c._multi, the list of actions, is missing")
    if not 1 <= len(actions) <= MOST_ACTIONS or not all(isinstance(a, dict) for a in actions):
        raise DsjsonError(f"c._multi must list 1 to {MOST_ACTIONS} objects")
    chosen = _integer(content, "_label_Action") - 1
    if not 0 <= chosen < len(actions):
        raise DsjsonError(f"_label_Action must be from 1 to {len(actions)}, got {chosen + 1}")
    index = content.get("_labelIndex")
    if index is not None and (type(index) is not int or index != chosen):
        raise DsjsonError(
            f"_labelIndex, which counts from 0, must be {chosen} as _label_Action is {chosen + 1}, "
            f"got {index!r:.60}"
        )
    propensity = _number(content, "_label_probability")
    if not 0.0 < propensity <= 1.0:
        raise DsjsonError(f"_label_probability must be in (0, 1], got {propensity:g}")
    ours = content.get(_OURS)
    ours = ours if isinstance(ours, dict) else {}
    event = _text(content, "EventId")
    outcome = ours.get("next_observation")
    shared = {name: value for name, value in context.items() if name != "_multi"}
    given, given_actions = ours.get("observation"), ours.get("actions")
    if (
        isinstance(given, dict)
        and isinstance(given_actions, list)
        and len(given_actions) == len(actions)
        and all(isinstance(action, dict) for action in given_actions)
    ):
        shared, actions = given, given_actions
    return LoggedDecision(
        id=_ID.sub("-", event)[:64],
        group=_group(ours, event),
        at=_moment(content.get("Timestamp")),
        observation=_flat(shared, "observation"),
        actions=[_flat(action, "action") for action in actions],
        chosen=chosen,
        propensity=propensity,
        propensities=_propensities(content, len(actions)),
        version=None,
        reward=None if ours.get("rewarded") is False else -_number(content, "_label_cost"),
        next_observation=_flat(outcome, "") if isinstance(outcome, dict) else {},
    )


def read_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, LoggedDecision | DsjsonError]]:
    """Number and decision of each line that is not blank, or why it is none."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, read_line(line)
            except DsjsonError as error:
                yield number, error


def _features(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as features: names that begin with an underscore have a meaning in the format."""
    return {
        (f"x{name}" if name.startswith("_") else name): (
            dict.fromkeys(value, 1) if _is_tokens(value) else value
        )
        for name, value in values.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }


def _has_tokens(values: Mapping[str, Any]) -> bool:
    """Whether a value is a list of texts, which the format has no form for but features of 1."""
    return any(map(_is_tokens, values.values()))


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(item, str) for item in value)


def _flat(values: Mapping[str, Any], own: str, prefix: str = "") -> dict[str, Any]:
    """Numbers, texts and flat lists of *values* by dotted names; other values are left out.

    Args:
        own: Namespace that we write ourselves, which adds no prefix.
    """
    fields: dict[str, Any] = {}
    stack: list[tuple[str, Mapping[str, Any]]] = [(prefix, values)]
    while stack:
        before, part = stack.pop()
        for name, value in part.items():
            key = f"{before}{name}"[:_LONGEST_TEXT]
            if isinstance(value, dict):
                stack.append(("" if not before and name == own else f"{key}.", value))
            elif _is_field(value):
                fields[key] = value
    return fields


def _is_field(value: object) -> bool:
    if isinstance(value, str | bool):
        return True
    if isinstance(value, int | float):
        return abs(value) < 1e300
    if not isinstance(value, list) or not value:
        return False
    texts = all(isinstance(item, str) for item in value)
    return texts or all(isinstance(item, int | float) and abs(item) < 1e300 for item in value)


def _propensities(content: Mapping[str, Any], count: int) -> Sequence[float] | None:
    """Probability of each action by its position; None if the line does not have them all."""
    order, chances = content.get("a"), content.get("p")
    if not isinstance(order, list) or not isinstance(chances, list) or len(chances) != count:
        return None
    if not all(type(position) is int for position in order):
        return None
    if sorted(order) != list(range(1, count + 1)):
        return None
    if not all(type(p) in (int, float) and 0.0 <= p <= 1.0 for p in chances):
        return None
    by_position = dict(zip(order, chances, strict=True))
    return [float(by_position[position]) for position in range(1, count + 1)]


def _number(content: Mapping[str, Any], name: str) -> float:
    value = content.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise DsjsonError(f"{name} must be a finite number")
    return float(value)


def _integer(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name)
    if type(value) is not int or not 0 < value <= MOST_ACTIONS:
        raise DsjsonError(f"{name} must be a position from 1 on")
    return value


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DsjsonError(f"{name} is missing")
    return value


def _group(ours: Mapping[str, Any], event: str) -> str:
    group = ours.get("group")
    return group[:_LONGEST_TEXT] if isinstance(group, str) and group else event[:_LONGEST_TEXT]


def _moment(value: object) -> float:
    """Unix time of a timestamp; 0 if there is none."""
    if value is None:
        return 0.0
    try:
        moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", str(value)))
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        raise DsjsonError(
            f"Timestamp must be like 2026-11-25T12:00:00Z, got {value!r:.60}"
        ) from None


def _datetime(at: float) -> datetime:
    """Moment of a Unix time; 1970 if no calendar has it, as of a client with another unit."""
    try:
        return datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")
