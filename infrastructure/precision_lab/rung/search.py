"""The smallest set of modules whose FP32 lets the trainer's half precision agree with FP32."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Role
from infrastructure.events.event import RungCause, RungSearched
from infrastructure.events.precision_state import MOST_MODULES, PrecisionName
from infrastructure.events.role_precision import PRESETS, HalfName
from infrastructure.precision_lab.bisect.bisect import TOLERANCE
from infrastructure.precision_lab.bisect.noise_floor import Deviation, NoiseFloor, NotFiniteError
from infrastructure.precision_lab.bisect.search import minimal_subset
from infrastructure.precision_lab.environment import fixed_numerics
from infrastructure.precision_lab.experiments.world_model import WorldModelExperiment
from infrastructure.precision_lab.replay.preset_kernels import PresetKernels
from infrastructure.precision_lab.rung.request import RungRequest
from infrastructure.training.profiling.product_flops import ProductFlops

LARGEST_SHARE = 0.5
"""Of the forward pass's operations in FP32; with more, FP32 for all costs hardly more."""

_SCALES = [2.0**exponent for exponent in range(16, -17, -4)]


Loss: TypeAlias = Callable[[Forward, Batch], Tensor]
Changed: TypeAlias = Mapping[str, PrecisionName]  # parts with a precision of their own

_NONE: Changed = MappingProxyType({})


class _OutOfTimeError(Exception):
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class PartLosses:
    """Losses of a job of parts, by the parts whose precision is changed.

    Attributes:
        names: The part that failed, and those before it, but for those in FP32 anyway.
        are_all: Whether these are all parts of the job.
        loss: Loss of the part that failed.
        whole: Loss of all parts, to count their operations.
        given: Parts whose precision is changed in any case.
    """

    names: Sequence[str]
    are_all: bool
    loss: Callable[[Changed], Loss]
    whole: Callable[[Changed], Loss]
    given: Changed = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cure:
    """Modules in FP32, or parts in another precision."""

    modules: tuple[str, ...] = ()
    parts: Changed = field(default_factory=dict)

    def __str__(self) -> str:
        if self.modules:
            return f"keep_fp32={list(self.modules)}"
        precision = next(iter(self.parts.values())).upper()
        return f"{precision} in {' and '.join(f'part {name}' for name in self.parts)}"


@dataclass(kw_only=True, slots=True)
class _Replays:
    """Replays *experiment* with modules in FP32 or parts changed, each once, until time is over."""

    experiment: WorldModelExperiment
    half: HalfName
    floors: dict[HalfName, NoiseFloor]
    scales: Sequence[float]
    is_over: Callable[[], bool]
    parts: PartLosses | None
    failed: str  # part
    known: dict[tuple[frozenset[str], frozenset[tuple[str, PrecisionName]]], Deviation] = field(
        default_factory=dict
    )
    count: int = 0

    def deviation(self, names: Collection[str], changed: Changed = _NONE) -> Deviation:
        changed = self.with_given(changed)
        key = frozenset(names), frozenset(changed.items())
        if key not in self.known:
            has_scale = changed.get(self.failed, self.half) == "fp16"
            self.known[key] = self.replay(
                sorted(names), self.scales if has_scale else (1.0,), changed
            )
        return self.known[key]

    def with_given(self, changed: Changed) -> Changed:
        return {**self.parts.given, **changed} if self.parts is not None else changed

    def suffice(self, names: Collection[str], changed: Changed = _NONE) -> bool:
        return self.deviation(names, changed).ratio <= TOLERANCE

    def kernels(self, names: Collection[str]) -> PresetKernels:
        kept = (*self.experiment.keep_fp32, *names)
        return PresetKernels(self.experiment.models, PRESETS[self.half], kept)

    def floor(self, changed: Changed) -> NoiseFloor:
        """That of the coarsest half type that is replayed."""
        names = self.parts.names if self.parts is not None else ()
        types = {changed.get(name, self.half) for name in names} - {"fp32"} or {self.half}
        half: HalfName = "bf16" if "bf16" in types else "fp16"
        if half not in self.floors:
            self.floors[half] = NoiseFloor(self.experiment, PRESETS[half])
        return self.floors[half]

    def replay(
        self, names: Sequence[str], scales: Sequence[float], changed: Changed = _NONE
    ) -> Deviation:
        """At the first of *scales* that leaves the gradients finite, as a training's backs off."""
        if self.is_over():
            raise _OutOfTimeError
        self.count += 1
        changed = self.with_given(changed)
        kernels, experiment = self.kernels(names), self.experiment
        if self.parts is not None:
            experiment = replace(experiment, loss=self.parts.loss(changed))
        for scale in scales:
            try:
                outcome = replace(experiment, loss_scale=scale).run_with(kernels)
            except (RuntimeError, ValueError) as error:  # no kernel, or a constant too large
                return Deviation(float("inf"), "", str(error))
            if not outcome.quantities["loss"].isfinite().all():
                break
            if all(gradient.isfinite().all() for gradient in outcome.gradients().values()):
                break
        return self.floor(changed).deviation(outcome)

    def fp32_share(self, names: Collection[str], changed: Changed = _NONE) -> float | None:
        """Share of the operations of products in a job's forward pass that FP32 computes."""
        model = self.kernels(names).model(Role.WORLD_MODEL)
        changed = self.with_given(changed)
        whole = self.parts.whole(changed) if self.parts else self.experiment.loss
        with torch.no_grad(), ProductFlops() as counted:
            whole(model, self.experiment.batches[0])
        total = sum(counted.flops.values())
        return counted.flops.get("float32", 0.0) / total if total else None


def search_rung(
    experiment: WorldModelExperiment,
    request: RungRequest,
    clock: Callable[[], float] = time.monotonic,
    parts: PartLosses | None = None,
) -> RungSearched:
    """Find the modules or parts that must be in FP32 while the rest computes in half precision.

    What the training's own steps compute is replayed: autocast with these modules kept. A set
    suffices if every loss and gradient is within `TOLERANCE` times the noise floor. First the
    suspects are tried, then modules are searched from the outermost inwards by delta debugging.
    Where no few modules suffice, whole parts of the job are tried in the other half type, which
    costs nothing, and in FP32, then the other half type in all of the model.

    Args:
        experiment: Weights and last batches of the training.
        request: See there.
        clock: Monotonic seconds.
        parts: Losses of a job of parts; the *experiment* has that of the part that failed.
    """
    begun = clock()
    found = _found(experiment, request, lambda: clock() - begun > request.seconds, parts)
    return found.model_copy(update={"seconds": clock() - begun})


def _found(
    experiment: WorldModelExperiment,
    request: RungRequest,
    is_over: Callable[[], bool],
    parts: PartLosses | None,
) -> RungSearched:
    half, history = request.half, request.history

    def outcome(cause: RungCause, reason: str) -> RungSearched:
        return RungSearched(step=request.step, cause=cause, reason=reason)

    with fixed_numerics():
        try:
            floor = NoiseFloor(experiment, PRESETS[half])
        except (RuntimeError, ValueError) as error:
            if broken := _broken_inputs(experiment):
                reason = f"{broken} of the last batches holds values that are not finite"
                if request.generated:
                    return outcome("unexplained", f"{reason}: half precision may have made them")
                return outcome("data", reason)
            if isinstance(error, NotFiniteError):
                return outcome("optimisation", str(error))
            raise
        loss = float(floor.reference.quantities["loss"].mean())
        if history.has_diverged_at(loss):
            return outcome(
                "optimisation",
                f"the loss of the last batches is {loss:.4g} in FP32 too, and was "
                f"{history.first:.4g} at first: the training has diverged; lower the learning "
                "rate, or look at the data",
            )
        replays = _Replays(
            experiment=experiment,
            half=half,
            floors={half: floor},
            scales=[s for s in (2.0**24, 2.0**20) if s <= (request.loss_scale or 0.0)] + _SCALES,
            is_over=is_over,
            parts=parts,
            failed=request.part,
        )
        try:
            found = _searched(replays, request, outcome)
        except _OutOfTimeError:
            found = outcome(
                "unfinished",
                f"the search gave up after {replays.count} replays in {request.seconds:g} s: raise "
                "GENESIS_GUARD_SEARCH_SECONDS, or run genesis-fp16 lab freeze and lab bisect",
            )
    return found.model_copy(update={"replays": replays.count})


def _searched(
    replays: _Replays, request: RungRequest, outcome: Callable[[RungCause, str], RungSearched]
) -> RungSearched:
    everywhere, half = replays.deviation(()), request.half.upper()
    measured: dict[str, object] = {"half_deviation": everywhere.ratio}
    if everywhere.ratio <= TOLERANCE:
        scale = request.loss_scale if half == "FP16" else None
        if scale is not None and (moved := _scale_to_blame(replays, scale)):
            return outcome("scale", moved).model_copy(update=measured)
        return outcome(
            "unexplained",
            f"{half} agrees with FP32 on the last {len(replays.experiment.batches)} batches, "
            f"{everywhere.ratio:.1f} times the noise floor: no module is to blame, and the loss "
            "scale adapts by itself",
        ).model_copy(update=measured)
    modules: list[str] = []
    why = "modules of a policy are not raised, since its rollout would round differently"
    if request.raises_modules:
        model = replays.experiment.models[Role.WORLD_MODEL]
        modules = _smallest(model, replays, request.suspects)
        why = (
            "no set of modules in FP32 cures it: what the model computes outside of them is to "
            "blame"
        )
    cure = _cure(replays, request, modules)
    if cure is None:
        found = outcome("unexplained", f"{half} is off ({_times(everywhere)}), and {why}")
        return _with_other_half(found.model_copy(update=measured), replays, request)
    deviation = replays.deviation(cure.modules, cure.parts)
    share = replays.fp32_share(cure.modules, cure.parts)
    measured |= {"deviation": deviation.ratio, "fp32_share": share}
    part = "an unknown share" if share is None else f"{share:.1%}"
    reason = (
        f"{cure} suffices: {_times(deviation)} instead of {_times(everywhere)}, with {part} of the "
        "forward pass's operations in FP32"
    )
    cause: RungCause = "modules" if cure.modules else "parts"
    if not _is_small(replays, cure):
        found = outcome(cause, f"{reason}; FP32 for all costs hardly more")
        return _with_other_half(found.model_copy(update=measured), replays, request)
    measured |= {"modules": cure.modules, "parts": dict(cure.parts)}
    return outcome(cause, reason).model_copy(update=measured)


def _cure(replays: _Replays, request: RungRequest, modules: Sequence[str]) -> _Cure | None:
    """What suffices: *modules* if they are few, else the parts that cost least; None if nothing."""
    cure = _Cure(modules=tuple(sorted(modules))) if modules else None
    if replays.parts is None or (cure and _is_small(replays, cure)):
        return cure
    names, are_all = replays.parts.names, replays.parts.are_all
    precisions: tuple[PrecisionName | None, ...] = (request.other_half, "fp32")
    for precision in precisions:
        if precision is None:
            continue

        def suffice(few: Sequence[str], precision: PrecisionName = precision) -> bool:
            return replays.suffice((), dict.fromkeys(few, precision))

        few = minimal_subset(names, suffice) if suffice(names) else []
        if not few or (are_all and len(few) == len(names) and precision != "fp32"):
            continue  # all of them are the whole job
        cure = _Cure(parts=dict.fromkeys(few, precision))
        if _is_small(replays, cure):
            break
    return cure


def _is_small(replays: _Replays, cure: _Cure) -> bool:
    """Whether FP32 in *cure* alone costs clearly less than for all."""
    share = replays.fp32_share(cure.modules, cure.parts)
    return len(cure.modules) <= MOST_MODULES and (share is None or share <= LARGEST_SHARE)


def _scale_to_blame(replays: _Replays, loss_scale: float) -> str:
    """What is wrong with the *loss_scale* of the trip, where FP16 agrees at another; empty if not.

    It moves by itself: an overflow lowers it, and steps without one raise it.
    """
    deviation = replays.replay((), [loss_scale])
    if deviation.ratio <= TOLERANCE:
        return ""
    if deviation.ratio == float("inf"):
        wrong, cure = "too high", "falls by itself"
    else:
        wrong, cure = "too low for gradients that vanish", "grows by itself"
    return (
        f"the loss scale {loss_scale:g} is {wrong} ({_times(deviation)}) and {cure}: FP16 agrees "
        "with FP32 at another one, and no module is to blame"
    )


def _with_other_half(found: RungSearched, replays: _Replays, request: RungRequest) -> RungSearched:
    """What was *found*, or the other half type in all of the model if that suffices."""
    other = request.other_half
    if other is None:
        return found
    others = replace(replays, half=other, known={}, count=0)
    deviation = others.deviation(())
    replays.count += others.count
    if deviation.ratio > TOLERANCE:
        return found
    how = f"{other.upper()} suffices in all of the model, {_times(deviation)}"
    changes = {
        "cause": "half_type",
        "half_type": other,
        "reason": f"{found.reason}; {how}",
        "deviation": deviation.ratio,
        "fp32_share": others.fp32_share(()),
    }
    return found.model_copy(update=changes)


def _smallest(model: Module, replays: _Replays, suspects: Sequence[str]) -> list[str]:
    """Names of the modules that must be in FP32; empty if even all of them do not suffice."""
    known = {name for name, _ in model.named_modules() if name}
    tried = [name for name in dict.fromkeys(suspects) if name in known]
    if tried and replays.suffice(tried):
        return minimal_subset(tried, replays.suffice)
    outermost = list(_inside(model, ""))
    if not outermost or not replays.suffice(outermost):
        return []
    chosen = minimal_subset(outermost, replays.suffice)
    whole: set[str] = set()  # modules whose own operations are to blame
    while (name := next((name for name in chosen if name not in whole), None)) is not None:
        others = [other for other in chosen if other != name]
        inner = list(_inside(model, name))
        if not inner or not replays.suffice([*others, *inner]):
            whole.add(name)
            continue

        def suffice(few: Sequence[str], others: Sequence[str] = others) -> bool:
            return replays.suffice([*others, *few])

        smaller = minimal_subset(inner, suffice)
        if len(smaller) == len(inner) > 1:  # all of it: one name says it
            whole.add(name)
            continue
        chosen = [*others, *smaller]
    return chosen


def _inside(model: Module, name: str) -> Iterator[str]:
    """Qualified names of the modules directly inside the module *name*."""
    for child, _ in model.get_submodule(name).named_children():
        yield f"{name}.{child}" if name else child


def _broken_inputs(experiment: WorldModelExperiment) -> str:
    """A tensor of a batch that is not finite, by its name in quotes; empty if all are."""
    for batch in experiment.batches:
        for name, tensor in batch.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                return repr(name)
    return ""


def _times(deviation: Deviation) -> str:
    if deviation.error:
        return f"failing ({deviation.error.splitlines()[0]})"
    if deviation.ratio == float("inf"):
        return f"{deviation.quantity} not finite"
    return f"{deviation.ratio:.1f} times the noise floor"
