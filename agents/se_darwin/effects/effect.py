"""The effect of an edit in the recorded states of the given program, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import pow as power

from agents.se_darwin.edits import Edit

# Factors of the chance of an edit, chosen by hand near the weights of a conditional logit model,
# fitted to 34 foreign bugs and judged on 16 handwritten ones, and the other way round
# (docs/explanation/se-darwin-benchmark.md, "What an edit would change").
POWER = 0.5  # exponent of the ranker's estimate
NOTHING = 0.05  # if it changes nothing in any failing check; no other factor counts then
EVERY_FAILING = 2.0  # if it changes something in every failing check
NO_PASSING = 8.0  # if it changes nothing in any passing check
PASSING = 0.3  # to the power of the share of passing checks in which it changes something
RAISES_IN_PASSING = 0.5  # if it raises in a passing check, and did not before
RAISES_IN_FAILING = 0.6  # to the power of the share of failing checks in which it does
SAME_AGAIN = 0.05  # if it does the same as an edit of its place that is likelier


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """In how many checks an edit changes what its statement does.

    Attributes:
        failing: Share of the failing checks, in [0, 1].
        passing: The same of the passing checks.
        raising_failing: Share of the failing checks in which it raises, and did not before.
        raising_passing: The same of the passing checks.
        is_reached: Whether a failing check reaches its place.
        same_as: Equal for edits of one place that do the same in all recorded states; None if that
            is not known.
    """

    failing: float
    passing: float
    raising_failing: float = 0.0
    raising_passing: float = 0.0
    is_reached: bool = True
    same_as: tuple[object, ...] | None = None

    @property
    def factor(self) -> float:
        """How much likelier the edit is the repair than one whose effect is not known.

        A repair changes something in every failing check. In passing checks most change nothing.
        """
        if not self.failing:
            return NOTHING
        factor = EVERY_FAILING if self.failing == 1.0 else 1.0
        factor *= power(PASSING, self.passing) if self.passing else NO_PASSING
        factor *= power(RAISES_IN_FAILING, self.raising_failing)
        return factor * (RAISES_IN_PASSING if self.raising_passing else 1.0)


def weigh(
    weights: Sequence[float], edits: Sequence[Edit], effects: Mapping[Edit, Effect]
) -> list[float]:
    """Return the *weights* of *edits*, a ranker's estimates, multiplied by what their effects say.

    Of edits that do the same in all recorded states, the first is tried long before the others.
    """
    weighted = []
    for weight, edit in zip(weights, edits, strict=True):
        effect = effects.get(edit)
        weighted.append(weight**POWER * (effect.factor if effect else 1.0))
    seen: set[tuple[object, ...]] = set()
    for index in sorted(range(len(weighted)), key=lambda index: -weighted[index]):
        effect = effects.get(edits[index])
        if effect is None or effect.same_as is None:
            continue
        if effect.same_as in seen:
            weighted[index] *= SAME_AGAIN
        seen.add(effect.same_as)
    return weighted
