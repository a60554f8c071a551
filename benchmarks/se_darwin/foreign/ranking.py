"""Where a ranker puts the first repair among all single edits of a bug.

A search runs single edits of the given program first, in this order; so this is what a better
ranker saves, without the noise of what a search does next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log1p
from statistics import fmean, geometric_mean

from agents.se_darwin.edits import Edit
from agents.se_darwin.effects import weigh
from agents.se_darwin.search.evolution import take_turns
from agents.se_darwin.search.ranker import RandomRanker, Ranker, SuspicionRanker
from benchmarks.se_darwin.foreign.singles import Singles

WITHIN = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstFix:
    """Attributes:
    source: Source of the bug.
    name: Name of the bug in it.
    edits: Number of single edits.
    fixes: How many of them pass every check.
    ranks: Expected rank of the first fix, from 1, by ranker.
    """

    source: str
    name: str
    edits: int
    fixes: int
    ranks: Mapping[str, float]


def first_fix(singles: Singles, model: Ranker) -> FirstFix:
    """Rank the single edits of a bug by *model*, by suspicion, by both, and by chance.

    ``model + effects`` is the order of `evolve`, ``suspicion + effects`` that without a model;
    ``mean`` is the order by the mean of the logarithms of the ranks by model and by suspicion.

    Raises:
        ValueError: No single edit repairs the bug.
    """
    observation, actions = singles.fields()
    edits = [edit for step in singles.steps for edit in step.changed]
    rankers = {"model": model, "suspicion": SuspicionRanker(), "random": RandomRanker()}
    chances = {}
    for name, ranker in rankers.items():
        weights = ranker.success_chances(observation, actions)
        chances[name] = weights if name == "random" else _in_turns(weights, edits)
        if name != "random":
            with_effects = weigh(weights, edits, singles.effects)
            chances[f"{name} + effects"] = _in_turns(with_effects, edits)
    pairs = zip(places(chances["model"]), places(chances["suspicion"]), strict=True)
    chances["mean"] = [-log1p(first) - log1p(second) for first, second in pairs]
    return FirstFix(
        source=singles.bug.source,
        name=singles.bug.name,
        edits=len(edits),
        fixes=sum(singles.fixes),
        ranks={name: rank_of_first(scores, singles.fixes) for name, scores in chances.items()},
    )


def _in_turns(weights: Sequence[float], edits: Sequence[Edit]) -> list[float]:
    turns = {edit: chance for chance, [edit] in take_turns(zip(weights, edits, strict=True))}
    return [turns[edit] for edit in edits]


def rank_of_first(scores: Sequence[float], fixes: Sequence[bool]) -> float:
    """Return the expected rank of the first fix, from 1, if equal scores are in random order.

    Raises:
        ValueError: No candidate repairs the program.
    """
    best = max(score for score, fixed in zip(scores, fixes, strict=True) if fixed)
    above = sum(score > best for score in scores)
    tied = [fixed for score, fixed in zip(scores, fixes, strict=True) if score == best]
    return above + (len(tied) + 1) / (sum(tied) + 1)


def places(scores: Sequence[float]) -> list[float]:
    """Return the place of each score, best first, from 0; equal scores share their mean place."""
    order = sorted(scores, reverse=True)
    first: dict[float, int] = {}
    counts: dict[float, int] = {}
    for place, score in enumerate(order):
        first.setdefault(score, place)
        counts[score] = counts.get(score, 0) + 1
    return [first[score] + (counts[score] - 1) / 2 for score in scores]


def report(rows: Iterable[FirstFix]) -> str:
    """Return a table by source: mean, geometric mean and share within ten of the first fix."""
    found = list(rows)
    if not found:
        return "no single edit repairs any of these bugs"
    names = list(found[0].ranks)
    lines = [
        "rank of the first fix: mean, geometric mean, within ten",
        "| source | bugs | " + " | ".join(names) + " |",
        "|---|---|" + "---|" * len(names),
    ]
    for source in [*sorted({row.source for row in found}), "all"]:
        chosen = [row for row in found if source in (row.source, "all")]
        cells = [_cell([row.ranks[name] for row in chosen]) for name in names]
        lines.append(f"| `{source}` | {len(chosen)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(ranks: Sequence[float]) -> str:
    return (
        f"{fmean(ranks):.1f}, {geometric_mean(ranks):.1f}, {sum(rank <= WITHIN for rank in ranks)}"
    )
