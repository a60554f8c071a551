"""Search for the places to blame: by role, then by module, then by operation.

Modules are searched from the outermost inwards (hierarchical delta debugging, Misherghi and Su
2006), a module and all modules inside it being one place: that is what ``keep_fp32`` keeps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from infrastructure.agent_contract.run_context import ReportProgress
from infrastructure.events import Role
from infrastructure.events.event import REPLAY_TOLERANCE
from infrastructure.events.role_precision import FP32, TRAINED, RolePrecision
from infrastructure.precision_lab.bisect.cure import Cure, cure_of
from infrastructure.precision_lab.bisect.noise_floor import Deviation, NoiseFloor
from infrastructure.precision_lab.bisect.search import minimal_subset
from infrastructure.precision_lab.experiment import Experiment
from infrastructure.precision_lab.numerics import Numerics
from infrastructure.precision_lab.places import Operation, Place
from infrastructure.precision_lab.progress import unreported
from infrastructure.training.precision import UnknownModuleError
from infrastructure.training.precision.keep_fp32 import find_modules

TOLERANCE = REPLAY_TOLERANCE
"""Multiple of the noise floor that a result may be off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """A place that must be in FP32.

    Attributes:
        place: Where it is.
        without: Deviation if all culprits but this one are in FP32: what this one costs.
        share: *without* as a part of the deviation of half precision everywhere, from 0 to 1.
        alone: Deviation if this place alone is in half precision.
        partners: Places that are harmless alone, as this one is, and harmful together with it.
    """

    place: Place
    without: Deviation
    share: float
    alone: Deviation
    partners: tuple[Place, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Bisection:
    """What a search has found. Deviations are multiples of the noise floor.

    Attributes:
        culprits: Places that must be in FP32, the costliest first. Empty for a healthy experiment.
        tolerance: Deviation that is allowed.
        half: Deviation in half precision everywhere.
        cured: Deviation with the culprits in FP32.
        cure: Settings that put them in FP32.
        with_cure: Deviation with these settings.
        places: All places that were in half precision.
        runs: Number of repetitions, those for the noise floor included.
        seconds: Duration of the search.
        time_ratio: Duration of a repetition with the cure, relative to one without, on this device.
            The interception of each operation is part of both.
        floor: What the deviations are relative to.
    """

    culprits: tuple[Culprit, ...]
    tolerance: float
    half: Deviation
    cured: Deviation
    cure: Cure
    with_cure: Deviation
    places: tuple[Place, ...]
    runs: int
    seconds: float
    time_ratio: float
    floor: NoiseFloor


class Oracle:
    """Answers how far the outcome is from FP32 if some places are in FP32; each question once.

    Args:
        experiment: What is repeated.
        precisions: Types of each role.
        floor: Noise floor of the experiment.
        progress: Told of each repetition.

    Attributes:
        places: Places in half precision if none is in FP32.
        runs: Number of repetitions.
    """

    def __init__(
        self,
        experiment: Experiment,
        precisions: Mapping[Role, RolePrecision],
        floor: NoiseFloor,
        progress: ReportProgress = unreported,
    ) -> None:
        self._experiment, self._floor, self._progress = experiment, floor, progress
        self._precisions = dict(precisions)
        self._kept = _kept_places(experiment)
        self._known: dict[frozenset[Place], Deviation] = {}
        self.runs = 0
        self.places = self._all_places()

    def deviation(self, fp32: Collection[Place]) -> Deviation:
        """Deviation with the places *fp32* in FP32 and all others in half precision."""
        key = frozenset(fp32)
        if key not in self._known:
            self._known[key], _ = self._run(self._precisions, key)
        return self._known[key]

    def with_cure(self, cure: Cure) -> tuple[Deviation, float]:
        """Deviation and seconds of a repetition with *cure*."""
        started = time.perf_counter()
        precisions = cure.precisions(self._precisions)
        deviation, _ = self._run(precisions, cure.places(self.places))
        return deviation, time.perf_counter() - started

    def _all_places(self) -> list[Place]:
        """Places of a run in half precision; where it fails, of the run beyond that place, too."""
        places: dict[Place, None] = {}
        fp32: set[Place] = set()
        while True:
            deviation, numerics = self._run(self._precisions, fp32)
            if not fp32:
                self._known[frozenset()] = deviation
            places.update(dict.fromkeys(numerics.places()))
            failed = numerics.last_place
            if not deviation.error or failed is None or failed in fp32:
                return list(places)
            places[failed] = None
            fp32.add(failed)

    def _run(
        self, precisions: Mapping[Role, RolePrecision], fp32: Collection[Place]
    ) -> tuple[Deviation, Numerics]:
        self._progress(self.runs, unit="repetitions of the search")
        self.runs += 1
        fp32 = self._kept.union(fp32)
        with Numerics(self._experiment.models, precisions, fp32) as numerics:
            try:
                outcome = self._experiment.run(numerics.role)
            except (RuntimeError, ValueError) as error:  # no such kernel, or a constant too large
                return Deviation(float("inf"), "", str(error)), numerics
        return self._floor.deviation(outcome), numerics


def _kept_places(experiment: Experiment) -> frozenset[Place]:
    """Places of the modules that the training keeps in FP32 already."""
    kept: set[Place] = set()
    for role, model in experiment.models.items():
        for pattern in experiment.keep_fp32 if role in TRAINED else ():
            with contextlib.suppress(UnknownModuleError):  # a module of another trained role
                kept.update(
                    Place(role, name, operation)
                    for name in find_modules(model, [pattern])
                    for operation in Operation
                )
    return frozenset(kept)


def bisect(
    experiment: Experiment,
    precisions: Mapping[Role, RolePrecision],
    *,
    tolerance: float = TOLERANCE,
    progress: ReportProgress = unreported,
) -> Bisection:
    """Find the smallest set of places whose FP32 brings *experiment* to the noise floor.

    The roles that must be in FP32 are found by delta debugging; then, within them, the modules;
    then the operations. Each place found is then examined alone, and one that is harmless alone is
    combined with others until they are harmful together.

    Args:
        experiment: What is repeated, a few dozen times.
        precisions: Types of each role, such as a preset.
        tolerance: Multiple of the noise floor that a result may be off.
        progress: Told of each repetition.

    Raises:
        NotFiniteError: The FP32 result is not finite.
    """
    started = time.perf_counter()
    floor = NoiseFloor(experiment, precisions, progress)
    oracle = Oracle(experiment, precisions, floor, progress)
    places = _smallest(oracle, tolerance)
    culprits = sorted(
        (_examined(place, places, oracle, tolerance) for place in places),
        key=lambda culprit: (-culprit.without.ratio, -culprit.alone.ratio),
    )
    cure, with_cure, time_ratio = _checked_cure(places, oracle, experiment, precisions, tolerance)
    return Bisection(
        culprits=tuple(culprits),
        tolerance=tolerance,
        half=oracle.deviation(()),
        cured=oracle.deviation(places),
        cure=cure,
        with_cure=with_cure,
        places=tuple(oracle.places),
        runs=oracle.runs + floor.runs,
        seconds=time.perf_counter() - started,
        time_ratio=time_ratio,
        floor=floor,
    )


def _smallest(oracle: Oracle, tolerance: float) -> list[Place]:
    """The places that must be in FP32."""
    places = oracle.places
    depth = max((_depth(place) for place in places), default=0)
    levels: list[Callable[[Place], Hashable]] = [lambda place: place.role]
    levels += [partial(_subtree, depth=each) for each in range(1, depth + 1)]
    levels.append(lambda place: place)
    for level in levels:
        groups: dict[Hashable, list[Place]] = {}
        for place in places:
            groups.setdefault(level(place), []).append(place)

        def passes(groups: Mapping[Hashable, list[Place]], chosen: Sequence[Hashable]) -> bool:
            fp32 = [place for group in chosen for place in groups[group]]
            return oracle.deviation(fp32).ratio <= tolerance

        minimal = minimal_subset(list(groups), partial(passes, groups))
        places = [place for group in minimal for place in groups[group]]
    return places


def _depth(place: Place) -> int:
    return place.module.count(".") + 1 if place.module else 0


def _subtree(place: Place, *, depth: int) -> Hashable:
    """The module of *place* or, if that is deeper, the one around it at *depth*."""
    return place.role, *place.module.split(".")[:depth]


def _examined(place: Place, culprits: list[Place], oracle: Oracle, tolerance: float) -> Culprit:
    without = oracle.deviation([other for other in culprits if other != place])
    others = [other for other in oracle.places if other != place]
    alone = oracle.deviation(others)
    partners: list[Place] = []
    if alone.ratio <= tolerance:

        def harmful(half: Sequence[Place]) -> bool:
            fp32 = [other for other in others if other not in half]
            return oracle.deviation(fp32).ratio > tolerance

        partners = minimal_subset(others, harmful)
    half = oracle.deviation(()).ratio
    share = 1.0 if without.ratio >= half else without.ratio / half
    return Culprit(place=place, without=without, share=share, alone=alone, partners=tuple(partners))


def _checked_cure(
    culprits: list[Place],
    oracle: Oracle,
    experiment: Experiment,
    precisions: Mapping[Role, RolePrecision],
    tolerance: float,
) -> tuple[Cure, Deviation, float]:
    """The cure, its deviation, and how long a repetition takes with it relative to without.

    Where keeping modules does not suffice, as for what the root module computes by itself, the
    roles are put in FP32.
    """
    cure = cure_of(culprits, precisions, experiment.models)
    _, before = oracle.with_cure(Cure(keep_fp32={}, roles={}))
    deviation, seconds = oracle.with_cure(cure)
    for role in {place.role: None for place in culprits}:
        if deviation.ratio <= tolerance:
            break
        cure = cure.with_role(role, FP32)
        deviation, seconds = oracle.with_cure(cure)
    return cure, deviation, seconds / before
