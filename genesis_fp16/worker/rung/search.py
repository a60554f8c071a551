"""The search itself, in a process of its own, where the agent builds its job again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import Module

from genesis_fp16.domain.run import Outcome
from genesis_fp16.worker.attempt import Attempt
from genesis_fp16.worker.job import build_job
from genesis_fp16.worker.rung.files import RungFolder
from infrastructure.agent_contract import Forward, Job
from infrastructure.agent_contract.parts import JointLoss, parts_among
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import PrecisionName, Role
from infrastructure.events.event import RungSearched
from infrastructure.events.role_precision import RolePrecision
from infrastructure.precision_lab.experiments import WorldModelExperiment
from infrastructure.precision_lab.rung.losses import LossHistory
from infrastructure.precision_lab.rung.reference import ReferenceExperiment, search_reference
from infrastructure.precision_lab.rung.request import FailedPart, RungRequest
from infrastructure.precision_lab.rung.search import Changed, Loss, PartLosses, search_rung
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics.job_copy import JobCopy, disable_dropout
from infrastructure.training.inputs import preserved_generators, to_device
from infrastructure.training.model_copy import copy_model
from infrastructure.training.parts.part_parameters import part_parameters
from infrastructure.training.precision.keep_fp32 import keep_in_fp32
from infrastructure.training.rounds import kind_of

_BATCHES = 4  # of a proposal
_NONE: Changed = MappingProxyType({})


def search(attempt: Attempt) -> Outcome:
    """Search the modules or parts that must be in FP32, and write the result.

    Raises:
        RuntimeError: Its model has other parameters.
    """
    spec, phases = attempt.spec, attempt.phases
    folder = RungFolder(spec.run_folder.parent)
    phases.activity = "reading the run's data"
    collection = attempt.collection
    snapshot = collection.snapshot(spec.agent_folder / "replay")
    job = build_job(attempt, collection.read(spec.agent_folder / "replay", snapshot))
    phases.activity = "searching the modules that must be in FP32"
    weights, batches = folder.tensors()
    job.model.load_state_dict(weights)
    request, device = folder.request(), torch.device(attempt.context.device)
    model = job.model.to(device)
    batches = [to_device(batch, device) for batch in batches]
    if request.failed:
        found = search_parts(job, batches, request, spec.seed)
    else:
        experiment = _experiment(job, model, kind_of(job).step_loss, batches, spec.seed)
        found = search_rung(experiment, request)
    functions = kind_of(job).log_probs
    if request.reference and functions is not None:
        reference = copy_model(model)
        reference.load_state_dict(folder.reference())
        keep_in_fp32(reference, job.kept_modules, device)  # as in its copy of the training
        replayed = ReferenceExperiment(
            models={Role.REFERENCE: reference.requires_grad_(False).eval()},
            batches=batches,
            functions=functions,
        )
        types = RolePrecision.parse(request.reference)
        try:
            found = search_reference(replayed, types, request.other_half, found)
        except Exception as error:  # of a plugin's code; batches of the warm-up have none of it
            attempt.context.logger.warning("reference_not_searched", error=repr(error))
    folder.write_result(found)
    return "done"


def search_parts(
    job: Job,
    batches: Sequence[Batch],
    request: RungRequest,
    seed: int,
    clock: Callable[[], float] = time.monotonic,
) -> RungSearched:
    """Search each part of *job* that failed, with what those before it need, and join the results.

    Where a part needs FP32 in all, so does the job; where all parts need the other half type, the
    job has it if each of them is shown to hold in it.

    Raises:
        ValueError: The job has no such part any more.
    """
    model, end = job.model, clock() + request.seconds
    owners = part_parameters(model, job.parts, job.targets)

    def searched(
        failed: FailedPart, asked: RungRequest, given: Changed = _NONE, raised: Sequence[str] = ()
    ) -> RungSearched:
        losses = part_losses(job, failed.name, seed, given)
        model.requires_grad_(False)  # the part's steps use no other gradients
        for parameter in owners[failed.name]:
            parameter.requires_grad_(True)
        one = replace(
            asked,
            part=failed.name,
            loss_scale=failed.loss_scale,
            history=failed.history if asked.raises_modules else LossHistory(),
            seconds=max(0.0, end - clock()),
        )
        experiment = _experiment(job, model, losses.loss({}), batches, seed, raised)
        return search_rung(experiment, one, clock, losses)

    parts: dict[str, PrecisionName] = {}
    modules: list[str] = []
    every: list[RungSearched] = []
    for failed in request.failed:
        every.append(found := searched(failed, request, dict(parts), modules))
        parts |= found.parts
        modules += found.modules
        needs_nothing = found.cause == "scale" or (found.cause == "unexplained" and found.agrees)
        if not (found.parts or found.modules or needs_nothing or found.half_type):
            return found  # FP32 in all
    others = set(parts.values()) | {found.half_type for found in every if found.half_type}
    kept = parts_among(job.keep_fp32, job.parts)
    is_whole = {*parts, *kept} == {part.name for part in job.parts}
    halves = [half for half in others if half == request.other_half]
    needs_whole = any(found.half_type for found in every)
    if halves and (is_whole or needs_whole):
        [half] = halves
        in_other = replace(request, half=half, other_half=None, raises_modules=False)
        proofs = [searched(failed, in_other) for failed in request.failed]
        held = all(proof.agrees for proof in proofs)
        reason = "; ".join(found.reason for found in every)
        how = f"{half.upper()} in all parts {'suffices' if held else 'does not suffice'}"
        whole: dict[str, object] = {
            "cause": "half_type" if held else "unexplained",
            "half_type": half if held else None,
            "reason": f"{reason}; {how}",
            "parts": {},
            "modules": (),
        }
        if held or needs_whole:
            return every[-1].model_copy(update=whole)
    cures = [found for found in every if found.parts or found.modules]
    if len(cures) < 2:
        return cures[0] if cures else next((f for f in every if f.cause == "scale"), every[-1])
    changes: dict[str, object] = {
        "cause": "parts" if parts else "modules",
        "parts": parts,
        "modules": tuple(sorted(modules)),
        "reason": "; ".join(found.reason for found in cures),
        "replays": sum(found.replays for found in every),
        "seconds": sum(found.seconds for found in every),
    }
    return cures[-1].model_copy(update=changes)


def part_losses(job: Job, failed: str, seed: int, given: Changed = _NONE) -> PartLosses:
    """Losses of *job* for a search after the part *failed* has; empty: before any has.

    Args:
        given: Parts whose precision is changed in any case.

    Raises:
        ValueError: The job has no such part any more.
    """
    names = [part.name for part in job.parts]
    kept = dict.fromkeys(parts_among(job.keep_fp32, job.parts), "fp32")
    if failed and failed not in names:
        raise ValueError(f"the job has no part {failed!r} any more")

    def of(only: str) -> Callable[[Mapping[str, str]], Loss]:
        return lambda changed: _repeated(
            JointLoss(job.parts, precisions={**changed, **kept}, only=only), seed
        )

    replayed = names[: names.index(failed) + 1] if failed else names
    return PartLosses(
        names=[name for name in replayed if name not in kept],
        are_all=len(replayed) == len(names),
        loss=of(failed),
        whole=of(""),
        given=given,
    )


def propose(
    job: Job, device: torch.device, config: FP16TrainingConfig, *, seconds: float, seed: int
) -> RungSearched | None:
    """What FP16 needs, by a search on the first batches of *job*, on a copy of its model.

    None for a job whose batches are generated, or that cannot be replayed.
    """
    loss = kind_of(job).recorded_loss
    if loss is None:
        return None
    with preserved_generators(device):
        copied = JobCopy(job, device, _BATCHES)
        experiment = _experiment(job, copied.model(), loss, copied.batches, seed)
        request = RungRequest(half="fp16", step=0, loss_scale=config.loss_scale, seconds=seconds)
        parts = part_losses(job, "", seed) if job.parts else None
        return search_rung(experiment, request, parts=parts)


def _experiment(
    job: Job,
    model: Module,
    loss: Callable[[Forward, Batch], Tensor],
    batches: Sequence[Batch],
    seed: int,
    raised: Sequence[str] = (),
) -> WorldModelExperiment:
    disable_dropout(model.train())
    return WorldModelExperiment(
        models={Role.WORLD_MODEL: model},
        batches=batches,
        loss=_repeated(loss, seed),
        keep_fp32=(*job.kept_modules, *raised),
    )


def _repeated(loss: Loss, seed: int) -> Loss:
    """*loss* that draws the same random numbers in every replay."""

    def repeated(forward: Forward, batch: Batch) -> Tensor:
        torch.manual_seed(seed)
        return loss(forward, batch)

    return repeated
