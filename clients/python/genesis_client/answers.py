"""What an agent gets: rankings and decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from genesis_client.exchange import UnavailableError

MOST_ERROR = 2000  # characters of an exception
A = TypeVar("A")


class Ranking(NamedTuple):
    """Actions from the best to the worst.

    Attributes:
        order: Positions of the actions, the best first.
        chances: Chance of success of each action, by its position; None if it is unknown.
        improvements: Expected improvement of each action, likewise.
        confidence: Confidence in each prediction, 0 to 1.
        version: Version of the model, or None.
        warnings: What the predictor says about this answer.
        from_model: Whether a model has ranked. Otherwise it is the order in which the actions were
            given: the agent's own.
        reason: Why no model has ranked, or empty.
    """

    order: tuple[int, ...]
    chances: tuple[float | None, ...]
    improvements: tuple[float | None, ...]
    confidence: tuple[float, ...]
    version: str | None
    warnings: tuple[str, ...]
    from_model: bool
    reason: str


class Choice(NamedTuple):
    """Action that was chosen."""

    ranking: Ranking
    chosen: int
    propensity: float | None


class Reporter(Protocol):
    """Where a decision's outcome goes: an `Agent`."""

    def report(
        self,
        decision_id: str,
        next_observation: Mapping[str, object] | None = None,
        *,
        reward: float | None = None,
        terminated: bool = False,
        error: str = "",
        final: bool = True,
    ) -> bool:
        """Report the outcome of a decision."""


class Decision(Generic[A]):
    """One of several actions, and the duty to report what came of it.

    As a context manager it reports an exception of its block as the outcome, unless `report` was
    called before, and raises it again. `KeyboardInterrupt` and the like are not outcomes. Without
    a report the outcome may follow later, by `Agent.report` with the id, from any process.

    Attributes:
        id: Identifies the decision.
        action: Chosen action, as it was given.
        position: Its position among the actions.
        propensity: Probability with which it was chosen; None if no model has ranked.
        ranking: Ranking of all actions.
    """

    def __init__(self, reporter: Reporter, decision_id: str, choice: Choice, action: A) -> None:
        self.id = decision_id
        self.action = action
        self.position = choice.chosen
        self.propensity = choice.propensity
        self.ranking = choice.ranking
        self._reporter = reporter
        self._reported = False

    def report(
        self,
        next_observation: Mapping[str, object] | None = None,
        *,
        reward: float | None = None,
        terminated: bool = False,
        final: bool = True,
    ) -> bool:
        """Report the outcome; see `Agent.report`."""
        kept = self._reporter.report(
            self.id, next_observation, reward=reward, terminated=terminated, final=final
        )
        self._reported = self._reported or final
        return kept

    def __enter__(self) -> Decision[A]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not self._reported:
            self._reporter.report(self.id, error=describe(error))


def describe(error: Exception) -> str:
    """Return type and text of an exception, even of one whose text cannot be had."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:MOST_ERROR]
    except Exception:  # its own code is at fault again
        return name


def own_order(count: int, reason: str) -> Ranking:
    """Return *count* actions in the order in which they were given."""
    unknown, nothing = (None,) * count, (0.0,) * count
    return Ranking(tuple(range(count)), unknown, unknown, nothing, None, (), False, reason)


def read_ranking(document: dict[str, Any], count: int) -> Ranking:
    """Return the ranking of *count* actions in an answer.

    Raises:
        UnavailableError: The answer is something else.
    """
    order, version = _order(document, count), document.get("version")
    warnings = document.get("warnings", [])
    if not isinstance(warnings, list):
        raise UnavailableError("the warnings in the answer are not a list")
    if not isinstance(version, (str, type(None))):
        raise UnavailableError(f"the answer has the version {version!r}")
    said = tuple(map(str, warnings))
    unpublished = "; ".join(said) or "no model is published"
    return Ranking(
        order=order,
        chances=_numbers(document, "chances", count),
        improvements=_numbers(document, "improvements", count),
        confidence=tuple(each or 0.0 for each in _numbers(document, "confidence", count)),
        version=version,
        warnings=said,
        from_model=version is not None,
        reason=unpublished if version is None else "",
    )


def read_choice(document: dict[str, Any], count: int) -> Choice:
    """Return the choice among *count* actions in an answer.

    Raises:
        UnavailableError: The answer is something else.
    """
    ranking = read_ranking(document, count)
    chosen, propensity = document.get("chosen"), document.get("propensity")
    if type(chosen) is not int or not 0 <= chosen < count:
        raise UnavailableError(f"the answer chooses {chosen!r} of {count} actions")
    if propensity is not None and not (_is_number(propensity) and 0 < propensity <= 1):
        raise UnavailableError(f"the answer has the propensity {propensity!r}")
    return Choice(ranking, chosen, propensity)


def _order(document: dict[str, Any], count: int) -> tuple[int, ...]:
    order = document.get("order")
    positions = isinstance(order, list) and all(type(each) is int for each in order)
    if not isinstance(order, list) or not positions or sorted(order) != list(range(count)):
        raise UnavailableError(f"the answer has not an order of {count} actions")
    return tuple(order)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _numbers(document: dict[str, Any], name: str, count: int) -> tuple[float | None, ...]:
    values = document.get(name)
    if not isinstance(values, list) or len(values) != count:
        raise UnavailableError(f"the answer has not {count} {name}")
    if not all(value is None or _is_number(value) for value in values):
        raise UnavailableError(f"the {name} in the answer are not numbers")
    return tuple(values)
