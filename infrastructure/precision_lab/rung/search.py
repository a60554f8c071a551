"""The smallest set of modules whose FP32 lets the trainer's half precision agree with FP32."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import Module

from infrastructure.events import Role
from infrastructure.events.event import RungCause, RungSearched
from infrastructure.events.precision_state import MOST_MODULES
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


class _OutOfTimeError(Exception):
    pass


@dataclass(kw_only=True, slots=True)
class _Replays:
    """Replays *experiment* with some modules in FP32, each set once, until the time is over."""

    experiment: WorldModelExperiment
    half: HalfName
    floor: NoiseFloor
    scales: Sequence[float]
    is_over: Callable[[], bool]
    known: dict[frozenset[str], Deviation]
    count: int = 0

    def deviation(self, names: Collection[str]) -> Deviation:
        key = frozenset(names)
        if key not in self.known:
            if self.is_over():
                raise _OutOfTimeError
            self.count += 1
            self.known[key] = self._replay(sorted(key))
        return self.known[key]

    def suffice(self, names: Collection[str]) -> bool:
        return self.deviation(names).ratio <= TOLERANCE

    def kernels(self, names: Collection[str]) -> PresetKernels:
        kept = (*self.experiment.keep_fp32, *names)
        return PresetKernels(self.experiment.models, PRESETS[self.half], kept)

    def _replay(self, names: Sequence[str]) -> Deviation:
        """At the first loss scale that leaves the gradients finite, as a training's backs off."""
        kernels = self.kernels(names)
        for scale in self.scales if self.half == "fp16" else (1.0,):
            try:
                outcome = replace(self.experiment, loss_scale=scale).run_with(kernels)
            except (RuntimeError, ValueError) as error:  # no kernel, or a constant too large
                return Deviation(float("inf"), "", str(error))
            if not outcome.quantities["loss"].isfinite().all():
                break
            if all(gradient.isfinite().all() for gradient in outcome.gradients().values()):
                break
        return self.floor.deviation(outcome)

    def fp32_share(self, names: Collection[str]) -> float | None:
        """Share of the operations of products in a forward pass that FP32 computes."""
        model = self.kernels(names).model(Role.WORLD_MODEL)
        with torch.no_grad(), ProductFlops() as counted:
            self.experiment.loss(model, self.experiment.batches[0])
        total = sum(counted.flops.values())
        return counted.flops.get("float32", 0.0) / total if total else None


def search_rung(
    experiment: WorldModelExperiment,
    request: RungRequest,
    clock: Callable[[], float] = time.monotonic,
) -> RungSearched:
    """Find the modules that must be in FP32 while the others compute in half precision.

    What the training's own steps compute is replayed: autocast with these modules kept. A set
    suffices if every loss and gradient is within `TOLERANCE` times the noise floor. First the
    suspects are tried, then modules are searched from the outermost inwards by delta debugging.

    Args:
        experiment: Weights and last batches of the training.
        request: See there.
        clock: Monotonic seconds.
    """
    begun = clock()
    found = _found(experiment, request, lambda: clock() - begun > request.seconds)
    return found.model_copy(update={"seconds": clock() - begun})


def _found(
    experiment: WorldModelExperiment, request: RungRequest, is_over: Callable[[], bool]
) -> RungSearched:
    half, history = request.half, request.history

    def outcome(cause: RungCause, reason: str) -> RungSearched:
        return RungSearched(step=request.step, cause=cause, reason=reason)

    if broken := _broken_inputs(experiment):
        return outcome("data", f"{broken} of the last batches holds values that are not finite")
    with fixed_numerics():
        try:
            floor = NoiseFloor(experiment, PRESETS[half])
        except NotFiniteError as error:
            return outcome("optimisation", str(error))
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
            floor=floor,
            scales=[s for s in (2.0**24, 2.0**20) if s <= request.loss_scale] + _SCALES,
            is_over=is_over,
            known={},
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
        return outcome(
            "unexplained",
            f"{half} agrees with FP32 on the last {len(replays.experiment.batches)} batches, "
            f"{everywhere.ratio:.1f} times the noise floor: no module is to blame, and the loss "
            "scale adapts by itself",
        ).model_copy(update=measured)
    modules = _smallest(replays.experiment.models[Role.WORLD_MODEL], replays, request.suspects)
    if not modules:
        return outcome(
            "unexplained",
            f"{half} is off ({_times(everywhere)}), and no set of modules in FP32 cures it: what "
            "the model computes outside of them is to blame",
        ).model_copy(update=measured)
    deviation, share = replays.deviation(modules), replays.fp32_share(modules)
    measured |= {"deviation": deviation.ratio, "fp32_share": share}
    part = "an unknown share" if share is None else f"{share:.1%}"
    reason = (
        f"keep_fp32={sorted(modules)} suffices: {_times(deviation)} instead of "
        f"{_times(everywhere)}, with {part} of the forward pass's operations in FP32"
    )
    if len(modules) > MOST_MODULES or (share is not None and share > LARGEST_SHARE):
        reason += "; FP32 for all costs hardly more"
    else:
        measured["modules"] = tuple(sorted(modules))
    return outcome("modules", reason).model_copy(update=measured)


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
