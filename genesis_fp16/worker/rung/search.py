"""The search itself, in a process of its own, where the agent builds its job again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
from infrastructure.events import Role
from infrastructure.events.event import RungSearched
from infrastructure.events.role_precision import RolePrecision
from infrastructure.precision_lab.experiments import WorldModelExperiment
from infrastructure.precision_lab.rung.reference import ReferenceExperiment, search_reference
from infrastructure.precision_lab.rung.request import RungRequest
from infrastructure.precision_lab.rung.search import Loss, PartLosses, search_rung
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics.job_copy import JobCopy, disable_dropout
from infrastructure.training.inputs import preserved_generators, to_device
from infrastructure.training.model_copy import copy_model
from infrastructure.training.parts.part_parameters import part_parameters
from infrastructure.training.precision.keep_fp32 import keep_in_fp32
from infrastructure.training.rounds import kind_of

_BATCHES = 4  # of a proposal


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
    loss, losses = kind_of(job).step_loss, None
    if request.part:
        losses = part_losses(job, request.part, spec.seed)
        loss = losses.loss({})
        own = part_parameters(model, job.parts, job.targets)[request.part]
        model.requires_grad_(False)  # the part's steps use no other gradients
        for parameter in own:
            parameter.requires_grad_(True)
    experiment = _experiment(job, model, loss, [to_device(b, device) for b in batches], spec.seed)
    found = search_rung(experiment, request, parts=losses)
    functions = kind_of(job).log_probs
    if request.reference and functions is not None:
        reference = copy_model(model)
        reference.load_state_dict(folder.reference())
        keep_in_fp32(reference, job.kept_modules, device)  # as in its copy of the training
        replayed = ReferenceExperiment(
            models={Role.REFERENCE: reference.requires_grad_(False).eval()},
            batches=experiment.batches,
            functions=functions,
        )
        types = RolePrecision.parse(request.reference)
        try:
            found = search_reference(replayed, types, request.other_half, found)
        except Exception as error:  # of a plugin's code; batches of the warm-up have none of it
            attempt.context.logger.warning("reference_not_searched", error=repr(error))
    folder.write_result(found)
    return "done"


def part_losses(job: Job, failed: str, seed: int) -> PartLosses:
    """Losses of *job* for a search after the part *failed* has; empty: before any has.

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
) -> WorldModelExperiment:
    disable_dropout(model.train())
    return WorldModelExperiment(
        models={Role.WORLD_MODEL: model},
        batches=batches,
        loss=_repeated(loss, seed),
        keep_fp32=job.kept_modules,
    )


def _repeated(loss: Loss, seed: int) -> Loss:
    """*loss* that draws the same random numbers in every replay."""

    def repeated(forward: Forward, batch: Batch) -> Tensor:
        torch.manual_seed(seed)
        return loss(forward, batch)

    return repeated
