"""Other repairs: the search goes on after the first program that passes all tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log

from agents.se_darwin.edits import Edit
from agents.se_darwin.features import Step, StepFeatures, observe
from agents.se_darwin.search.evolution import Evolution, StepResult
from agents.se_darwin.search.ranker import Ranker
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation

MAX_REPAIRS = 40
PATIENCE = 10
"""Factor of the number of candidates as long as no repair is enough."""

_LEAST_CHANCE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Rivals:
    """Programs that pass every test.

    Attributes:
        repairs: The first one found, then the others; no edit of any can be removed.
        origins: By repair, the program that became it when needless edits were removed.
        candidates: Number of candidates that were run to find the others.
        outcomes: Those candidates, except the ones that only removed edits.
        is_cut: Whether the time ended the search for others.
    """

    repairs: tuple[Evaluation, ...]
    origins: Mapping[Evaluation, Evaluation]
    candidates: int
    outcomes: tuple[StepResult, ...]
    is_cut: bool

    @classmethod
    def of(cls, repair: Evaluation) -> Rivals:
        """The first repair alone, minimised, before others are looked for."""
        return cls(repairs=(repair,), origins={}, candidates=0, outcomes=(), is_cut=False)


def find_rivals(
    evolution: Evolution,
    known: Rivals,
    *,
    candidates: int,
    deadline: float = inf,
    stop: Callable[[], bool] = lambda: False,
    is_enough: Callable[[Evaluation], bool] = lambda _: True,
) -> Rivals:
    """Continue the search of *evolution* for programs other than those *known* that pass all tests.

    Args:
        evolution: The search that found the first repair.
        known: What an earlier part of this search has found; `Rivals.of` for the first part.
        candidates: Maximum number of candidates, besides those that remove edits; those of earlier
            parts count.
        deadline: When the search ends at the latest, by `time.monotonic`.
        stop: Called between generations; True ends the search.
        is_enough: Called for each repair; as long as none is enough, further candidates are run,
            `PATIENCE` times as many at most.
    """
    is_cut = False
    repairs, origins, outcomes = list(known.repairs), dict(known.origins), list(known.outcomes)
    before = evolution.evaluations - known.candidates
    sources = {repair.source for repair in repairs}
    pending = [member for member in evolution.archive.members if member.fixed]
    has_enough = any(map(is_enough, repairs))
    while True:
        for member in sorted(pending, key=lambda repair: len(repair.edits)):
            if any(known.edits <= member.edits for known in repairs):
                continue
            small = evolution.minimise(member)
            if small.source not in sources:
                sources.add(small.source)
                repairs.append(small)
                origins[small] = member
                has_enough = is_enough(small) or has_enough
        remaining = candidates * (1 if has_enough else PATIENCE) - len(outcomes)
        if remaining <= 0 or len(repairs) >= MAX_REPAIRS:
            break
        seconds = deadline - time.monotonic()
        if is_cut := stop() or seconds <= 0.0:
            break
        generation = evolution.run_generation(remaining, seconds=seconds)
        if not generation:
            break
        outcomes += generation
        pending = [outcome.child for outcome in generation if outcome.child.fixed]
    return Rivals(
        repairs=tuple(repairs),
        origins=origins,
        candidates=evolution.evaluations - before,
        outcomes=tuple(outcomes),
        is_cut=is_cut,
    )


def edit_chances(task: RepairTask, root: Evaluation, ranker: Ranker) -> Mapping[Edit, float]:
    """Return the chance that *ranker* gives each single edit of *root*, run with coverage."""
    features = StepFeatures(task.space, root)
    steps = [
        Step(operator="revision", changed=frozenset({edit}), edits=frozenset({edit}))
        for edit in task.space.edits
    ]
    chances = ranker.success_chances(
        observe(task.space, root), [features.describe(step) for step in steps]
    )
    return dict(zip(task.space.edits, chances, strict=True))


def log_chance(edits: Sequence[Edit] | frozenset[Edit], chances: Mapping[Edit, float]) -> float:
    """Return the logarithm of the chance of *edits* together, as if they were independent."""
    return sum(log(max(chances.get(edit, 0.0), _LEAST_CHANCE)) for edit in edits)
