"""Bodies of requests: their fields, and checks that name the field at fault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from genesis_fp16.predictor.problems import ProblemError, wrong

MOST_ACTIONS = 1000
MOST_ITEMS = 1000  # choices or transitions of one request
_LARGEST = 1e300  # of a number that fits into float64 with room to add
_YEAR_10000 = 253_402_300_800.0  # in Unix seconds; milliseconds of today are beyond it

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Group = Annotated[str, Field(min_length=1, max_length=200)]
Values = dict[str, Any]
Actions = Annotated[list[Values], Field(min_length=1, max_length=MOST_ACTIONS)]
Propensity = Annotated[float, Field(gt=0.0, le=1.0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Kind = TypeVar("Kind", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PredictBody(_Body):
    """A question for predictions: of one action, or of several."""

    observation: Values
    action: Values | None = None
    actions: Actions | None = None


class RankBody(_Body):
    """A question for the order of actions."""

    observation: Values
    actions: Actions


class DecisionBody(RankBody):
    """A question for a decision, which is remembered."""

    id: Id | None = None
    group: Group | None = None
    deferred: bool = False


class OutcomeBody(_Body):
    """What came of a decision, in full or in part."""

    id: Id | None = None
    next_observation: Values | None = None
    reward: Finite | None = None
    terminated: bool | None = None
    error: Annotated[str, Field(max_length=8000)] | None = None
    final: bool = True


class Choice(_Body):
    """A decision that a client made without the predictor."""

    id: Id
    group: Group | None = None
    observation: Values
    actions: Actions
    chosen: Annotated[int, Field(ge=0)]
    propensity: Propensity | None = None
    at: Annotated[float, Field(ge=0.0, lt=_YEAR_10000)] | None = None


class ChoicesBody(_Body):
    """Decisions that a client made without the predictor."""

    choices: Annotated[list[Choice], Field(min_length=1, max_length=MOST_ITEMS)]


class SentTransition(_Body):
    """What happened without a decision."""

    id: Id
    group: Group
    observation: Values
    action: Values
    reward: Finite = 0.0
    next_observation: Values = {}
    terminated: bool = False
    propensity: Propensity | None = None
    info: Values = {}


class TransitionsBody(_Body):
    """What happened without decisions."""

    transitions: Annotated[list[SentTransition], Field(min_length=1, max_length=MOST_ITEMS)]


class JudgeBody(_Body):
    """What came true, for the process of an agent's own network: folder of the log, and record."""

    items: Annotated[list[tuple[str, dict[str, Any]]], Field(max_length=MOST_ITEMS)]


BODIES = (PredictBody, RankBody, DecisionBody, OutcomeBody, ChoicesBody, TransitionsBody)


def read_body(kind: type[Kind], content: bytes) -> Kind:
    """The body of a request.

    Raises:
        ProblemError: It is not JSON, or a field is missing, unknown or wrong.
    """
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field, message = ".".join(map(str, first["loc"])), first["msg"]
        if first["type"] == "json_invalid":
            raise ProblemError(422, f"the body is not JSON in UTF-8: {message}") from None
        raise wrong(field or "body", message) from None


def check_values(path: str, values: Mapping[str, Any], *, may_miss: bool = True) -> None:
    """Check that each of *values* is a number, a text, or a flat list of either.

    With *may_miss*, None and NaN stand for a missing value.

    Raises:
        ProblemError: A value is something else, or infinite; its field is named.
    """
    for name, value in values.items():
        kind = type(value)
        if kind is str or kind is bool or (kind is float and -_LARGEST < value < _LARGEST):
            continue
        if kind is list:
            texts = bool(value) and all(type(item) is str for item in value)
            fits = texts or all(_is_number(item, may_miss) for item in value)
        else:
            fits = _is_number(value, may_miss)
        if not fits:
            wanted = (
                f"a number between {-_LARGEST:g} and {_LARGEST:g}, a text, a boolean, or a flat "
                "list of numbers or of texts"
            )
            raise wrong(f"{path}.{name}", f"must be {wanted}, got {_shown(value)}")


def _is_number(value: object, may_miss: bool) -> bool:
    if value is None:
        return may_miss
    if isinstance(value, float) and math.isnan(value):
        return may_miss
    return isinstance(value, int | float) and abs(value) < _LARGEST


def _shown(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except ValueError:  # Python refuses to print numbers of thousands of digits
        return "a number too long to print"
