"""The job of an attempt, built by its agent."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from genesis_fp16.worker.attempt import Attempt
from infrastructure.agent_contract import Job
from infrastructure.agent_contract.agent import (
    InsufficientDataError,
    MisconfiguredError,
    RecordedTransitions,
)
from infrastructure.events import Role
from infrastructure.training.precision.heads import output_head
from infrastructure.training.rounds import kind_of
from infrastructure.trajectories import BufferSnapshot


def build_job(attempt: Attempt, transitions: RecordedTransitions) -> Job:
    """Have the agent build its job from *transitions*; equal ones give an equal job.

    Raises:
        InsufficientDataError: There are too few transitions.
        MisconfiguredError: A part to keep in FP32 is not the job's.
        StoppedError: A command to stop has arrived.
        TypeError: The agent returned something else.
    """
    attempt.on_rank_zero(attempt.idle_commands.execute)
    attempt.phases.activity = "building the training job"
    _seed_everything(attempt.spec.seed)
    job = attempt.agent.build_job(attempt.context, transitions)
    if not isinstance(job, Job):
        got = type(job).__name__
        raise TypeError(f"build_job() must return TrainingJob or OnPolicyJob, got {got}")
    head = attempt.spec.fp32_head and Role.POLICY in kind_of(job).roles
    heads = (output_head(job.model),) if head else ()
    try:
        return replace(job, keep_fp32=(*job.keep_fp32, *attempt.spec.keep_fp32, *heads))
    except ValueError as error:  # a part that the operator has named, and the job does not have
        raise MisconfiguredError(f"KEEP_FP32 of {attempt.spec.agent}: {error}") from error


def job_of_now(attempt: Attempt) -> tuple[Job, Path, BufferSnapshot]:
    """The job that a run would train now, the folder of its transitions, and which they are.

    If the agent's replay buffer holds too little, more is collected into a temporary one.
    """
    collection, folder = attempt.collection, attempt.spec.agent_folder / "replay"
    transitions = collection.buffer(folder).read()
    try:
        return build_job(attempt, transitions), folder, transitions.snapshot
    except InsufficientDataError:
        folder = attempt.spec.run_folder / "replay"
        snapshot = collection.snapshot(folder)
        return build_job(attempt, collection.buffer(folder).read(snapshot)), folder, snapshot


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # agents may draw from the global generator
    torch.manual_seed(seed)
