"""The search itself, in a process of its own, where the agent builds its job again."""

from __future__ import annotations

import torch
from torch import Tensor

from genesis_fp16.domain.run import Outcome
from genesis_fp16.worker.attempt import Attempt
from genesis_fp16.worker.job import build_job
from genesis_fp16.worker.rung.files import RungFolder
from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Role
from infrastructure.precision_lab.experiments import WorldModelExperiment
from infrastructure.precision_lab.rung.search import search_rung
from infrastructure.training.diagnostics.job_copy import disable_dropout
from infrastructure.training.inputs import to_device
from infrastructure.training.rounds import kind_of


def search(attempt: Attempt) -> Outcome:
    """Search the modules that must be in FP32, and write the result.

    Raises:
        TypeError: The agent built another kind of job than in the training.
        RuntimeError: Its model has other parameters.
    """
    spec, phases = attempt.spec, attempt.phases
    folder = RungFolder(spec.run_folder.parent)
    phases.activity = "reading the run's data"
    collection = attempt.collection
    snapshot = collection.snapshot(spec.agent_folder / "replay")
    job = build_job(attempt, collection.read(spec.agent_folder / "replay", snapshot))
    recorded_loss = kind_of(job).recorded_loss
    if recorded_loss is None:
        raise TypeError(f"build_job() returned a {type(job).__name__}, the training had another")
    phases.activity = "searching the modules that must be in FP32"
    weights, batches = folder.tensors()
    job.model.load_state_dict(weights)
    device = torch.device(attempt.context.device)
    model = job.model.to(device).train()
    disable_dropout(model)

    def loss(forward: Forward, batch: Batch) -> Tensor:
        torch.manual_seed(spec.seed)  # every replay draws the same random numbers
        return recorded_loss(forward, batch)

    experiment = WorldModelExperiment(
        models={Role.WORLD_MODEL: model},
        batches=[to_device(batch, device) for batch in batches],
        loss=loss,
        keep_fp32=tuple(job.keep_fp32),
    )
    folder.write_result(search_rung(experiment, folder.request()))
    return "done"
