"""The search itself, in a process of its own, where the agent builds its job again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import Module

from genesis_fp16.domain.run import Outcome
from genesis_fp16.worker.attempt import Attempt
from genesis_fp16.worker.job import build_job
from genesis_fp16.worker.rung.files import RungFolder
from infrastructure.agent_contract import Forward, Job, Part
from infrastructure.agent_contract.parts import Computed
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Role
from infrastructure.events.event import RungSearched
from infrastructure.precision_lab.experiments import WorldModelExperiment
from infrastructure.precision_lab.rung.request import RungRequest
from infrastructure.precision_lab.rung.search import search_rung
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics.job_copy import JobCopy, disable_dropout
from infrastructure.training.inputs import preserved_generators, to_device
from infrastructure.training.parts.part_parameters import part_parameters
from infrastructure.training.rounds import kind_of

_BATCHES = 4  # of a proposal


def search(attempt: Attempt) -> Outcome:
    """Search the modules that must be in FP32, and write the result.

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
    loss = kind_of(job).step_loss
    if request.part:
        loss = partial(_loss_of_part, job.parts, request.part)
        own = part_parameters(model, job.parts, job.targets)[request.part]
        model.requires_grad_(False)  # the part's steps use no other gradients
        for parameter in own:
            parameter.requires_grad_(True)
    experiment = _experiment(job, model, loss, [to_device(b, device) for b in batches], spec.seed)
    folder.write_result(search_rung(experiment, request, whole_loss=kind_of(job).step_loss))
    return "done"


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
        return search_rung(experiment, request)


def _experiment(
    job: Job,
    model: Module,
    loss: Callable[[Forward, Batch], Tensor],
    batches: Sequence[Batch],
    seed: int,
) -> WorldModelExperiment:
    disable_dropout(model.train())

    def repeated(forward: Forward, batch: Batch) -> Tensor:
        torch.manual_seed(seed)  # every replay draws the same random numbers
        return loss(forward, batch)

    return WorldModelExperiment(
        models={Role.WORLD_MODEL: model},
        batches=batches,
        loss=repeated,
        keep_fp32=tuple(job.keep_fp32),
    )


def _loss_of_part(parts: Sequence[Part], name: str, forward: Forward, batch: Batch) -> Tensor:
    """Loss of the part *name*, after those of the parts before it."""
    computed = Computed(parts[0])
    for part in parts:
        computed.part = part
        loss = part.loss(forward, batch, computed)
        if part.name == name:
            return loss
    raise ValueError(f"the job has no part {name!r} any more")
