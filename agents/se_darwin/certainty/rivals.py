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
        repairs: The first one found, then the others; no edit of any can be removed, except of one
            that a proposer wrote so.
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


class _Repairs:
    """Collects programs that pass every test, and what they became without needless edits."""

    def __init__(
        self, evolution: Evolution, known: Rivals, is_enough: Callable[[Evaluation], bool]
    ) -> None:
        self.found, self.origins = list(known.repairs), dict(known.origins)
        self.outcomes = list(known.outcomes)
        self._evolution, self._is_enough = evolution, is_enough
        self._before = evolution.evaluations - known.candidates
        self._sources = {repair.source for repair in self.found}
        self.has_enough = any(map(is_enough, self.found))

    def add(self, members: Sequence[Evaluation]) -> None:
        """Add those of *members* that are repairs, the ones with the fewest edits first."""
        repairs = [member for member in members if member.fixed]
        for member in sorted(repairs, key=lambda repair: len(repair.edits)):
            is_new = not any(known.edits <= member.edits for known in self.found)
            if self._evolution.proposals.agreement(member.source):
                self._add(member, member)  # what its author left in may matter
            if is_new:
                self._add(self._evolution.minimise(member), member)

    def add_generation(self, generation: Sequence[StepResult]) -> None:
        """Add the repairs among the steps that were run."""
        self.outcomes += generation
        self.add([outcome.child for outcome in generation])

    def rivals(self, *, is_cut: bool) -> Rivals:
        """Return what was found."""
        return Rivals(
            repairs=tuple(self.found),
            origins=self.origins,
            candidates=self._evolution.evaluations - self._before,
            outcomes=tuple(self.outcomes),
            is_cut=is_cut,
        )

    def _add(self, repair: Evaluation, origin: Evaluation) -> None:
        if repair.source not in self._sources:
            self._sources.add(repair.source)
            self.found.append(repair)
            self.origins[repair] = origin
            self.has_enough = self._is_enough(repair) or self.has_enough


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
    repairs = _Repairs(evolution, known, is_enough)
    repairs.add(evolution.archive.members)
    while True:
        remaining = candidates * (1 if repairs.has_enough else PATIENCE) - len(repairs.outcomes)
        if remaining <= 0 or len(repairs.found) >= MAX_REPAIRS:
            break
        seconds = deadline - time.monotonic()
        if is_cut := stop() or seconds <= 0.0:
            break
        generation = evolution.run_generation(remaining, seconds=seconds)
        if not generation:
            is_cut = time.monotonic() >= deadline
            break
        repairs.add_generation(generation)
    return repairs.rivals(is_cut=is_cut)


def run_proposals(
    evolution: Evolution,
    known: Rivals,
    *,
    deadline: float,
    stop: Callable[[], bool],
    is_enough: Callable[[Evaluation], bool],
) -> Rivals:
    """Run the candidates of other proposers that are left, and wait for those that are written.

    The arguments are those of `find_rivals`.
    """
    repairs = _Repairs(evolution, known, is_enough)
    while evolution.awaits_proposals or evolution.has_waiting_proposals:
        seconds = deadline - time.monotonic()
        if stop() or seconds <= 0.0:
            break
        repairs.add_generation(evolution.run_proposals(seconds=seconds))
    return repairs.rivals(is_cut=known.is_cut)


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
