"""Experiments written to a frozen folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.nn import Module

from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Role
from infrastructure.events.role_precision import FP32
from infrastructure.precision_lab.experiments import PolicyExperiment, WorldModelExperiment
from infrastructure.precision_lab.frozen.folder import FrozenWriter
from infrastructure.precision_lab.frozen.manifest import AgentSource, Manifest, PolicyDetails
from infrastructure.precision_lab.heads import RewardModel, same_weights
from infrastructure.trajectories import ReplayBuffer


def save_policy_experiment(
    path: Path,
    experiment: PolicyExperiment,
    *,
    source: Mapping[str, str | int | None],
    seed: int,
) -> Manifest:
    """Write *experiment* to the folder *path*.

    The reward model is written without its language model, which must be that of the reference.

    Raises:
        FrozenError: The folder is not empty.
        ValueError: The reward model has another language model.
        OSError: The disk refuses; nothing is frozen.
    """
    models, training = experiment.models, experiment.training
    reward = models[Role.REWARD]
    if not isinstance(reward, RewardModel) or not same_weights(
        reward.backbone, models[Role.REFERENCE]
    ):
        raise ValueError("the reward model must have the weights of the reference")
    parts = {**models, Role.REWARD: reward.output}
    return _save(
        path,
        parts,
        experiment.batches,
        kind="policy",
        source=dict(source),
        seed=seed,
        policy=PolicyDetails(
            architecture=json.loads(models[Role.POLICY].config.to_json_string(use_diff=False)),  # type: ignore[union-attr, operator]
            temperature=training.temperature,
            pad_token=training.pad_token,
            stop_tokens=tuple(training.stop_tokens),
            kl_coefficient=training.kl_coefficient,
            value_coefficient=training.value_coefficient,
            clip=training.clip,
        ),
    )


def save_world_model_experiment(
    path: Path,
    experiment: WorldModelExperiment,
    *,
    source: Mapping[str, str | int | None],
    agent: AgentSource,
    transitions: Path,
) -> Manifest:
    """Write *experiment*, and the transitions that its job was built from, to the folder *path*.

    Args:
        transitions: Folder of the replay buffer; the lengths in *agent* are copied of its segments.

    Raises:
        FrozenError: The folder is not empty.
        OSError: The disk refuses, or a file of the replay buffer cannot be read.
    """
    writer, buffer = FrozenWriter(path), ReplayBuffer(transitions)
    for name, length in agent.transitions.items():
        writer.copy_segment(f"data/{name}", buffer, name, length)
    return _save(
        path,
        experiment.models,
        experiment.batches,
        kind="world-model",
        source=dict(source),
        seed=agent.seed,
        agent=agent,
        writer=writer,
    )


def _save(
    path: Path,
    modules: Mapping[Role, Module],
    batches: Sequence[Batch],
    *,
    writer: FrozenWriter | None = None,
    **details: object,
) -> Manifest:
    writer = writer or FrozenWriter(path)
    files: dict[int, str] = {}  # roles with one and the same model share a file
    for role, module in modules.items():
        if id(module) not in files:
            files[id(module)] = writer.add_tensors(f"weights/{role}.pt", module.state_dict())
    names = tuple(
        writer.add_tensors(f"batches/{number:05d}.pt", batch)
        for number, batch in enumerate(batches)
    )
    device = next(iter(batches[0].values())).device if batches else torch.device("cpu")
    return writer.finish(
        weights={role: files[id(module)] for role, module in modules.items()},
        batches=names,
        device=device,
        precision={role: str(FP32) for role in modules},
        **details,
    )
