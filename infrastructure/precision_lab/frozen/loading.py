"""Experiments rebuilt from a frozen folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from infrastructure.agent_contract import Job
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Role
from infrastructure.events.plain_text import plain
from infrastructure.policy import TokenBatch, TokenBatchError
from infrastructure.policy.models import PolicyModelError, build_policy, vocabulary_size
from infrastructure.policy.rollout.engine import RolloutRequestError, check_special_tokens
from infrastructure.precision_lab.experiments import (
    PolicyExperiment,
    PolicyTraining,
    WorldModelExperiment,
)
from infrastructure.precision_lab.experiments.policy import OLD_LOG_PROBS, RETURNS
from infrastructure.precision_lab.frozen.folder import FrozenFolder
from infrastructure.precision_lab.frozen.manifest import FrozenError, PolicyDetails
from infrastructure.precision_lab.heads import RewardModel, ValueHead
from infrastructure.training.inputs import to_device

_POLICIES = (Role.POLICY, Role.REFERENCE, Role.ROLLOUT)
_MOST_SHOWN = 3
_NO_SIZES = frozenset(  # names of code, which transformers may load from elsewhere
    {"attn_implementation", "auto_map", "custom_pipelines", "kernel_config", "quantization_config"}
)


def load_policy_experiment(folder: FrozenFolder, device: torch.device) -> PolicyExperiment:
    """The PPO batch in *folder*, with its models on *device*.

    Raises:
        FrozenError: The folder holds another kind, or something that does not belong together.
    """
    details = folder.manifest.policy
    if details is None:
        raise FrozenError(folder.path, "holds a world model, not a policy")
    config = _config(folder, details)
    language_models = {role: _language_model(folder, config, role) for role in _POLICIES}
    hidden_size = int(config.get_text_config(decoder=True).hidden_size)
    backbone = _language_model(folder, config, Role.REFERENCE)
    reward, value = RewardModel(backbone, hidden_size), ValueHead(hidden_size)
    _load(folder, reward.output, folder.weights(Role.REWARD), "reward model")
    _load(folder, value, folder.weights(Role.VALUE), "value head")
    models = {**language_models, Role.REWARD: reward, Role.VALUE: value}
    vocabulary = vocabulary_size(language_models[Role.POLICY])
    try:
        check_special_tokens(details.pad_token, details.stop_tokens, vocabulary=vocabulary)
    except RolloutRequestError as error:
        raise FrozenError(folder.path, f"{error}; freeze again") from error
    return PolicyExperiment(
        models={role: model.to(device).eval() for role, model in models.items()},
        batches=[
            to_device(_checked(folder, batch, vocabulary), device) for batch in folder.batches()
        ],
        training=PolicyTraining(
            temperature=details.temperature,
            pad_token=details.pad_token,
            stop_tokens=details.stop_tokens,
            kl_coefficient=details.kl_coefficient,
            value_coefficient=details.value_coefficient,
            clip=details.clip,
        ),
    )


def load_world_model_experiment(
    folder: FrozenFolder, job: Job, device: torch.device
) -> WorldModelExperiment:
    """The loss of *job* on the batches in *folder*; its model gets the frozen weights.

    Raises:
        FrozenError: The folder holds another kind, or *job* has another model.
    """
    if folder.manifest.agent is None:
        raise FrozenError(folder.path, "holds a policy, not a world model")
    _load(folder, job.model, folder.weights(Role.WORLD_MODEL), "model that the agent builds now")
    return WorldModelExperiment(
        models={Role.WORLD_MODEL: job.model.to(device).eval()},
        batches=[to_device(batch, device) for batch in folder.batches()],
        loss=job.loss,
        keep_fp32=job.kept_modules,
    )


def _config(folder: FrozenFolder, details: PolicyDetails) -> PretrainedConfig:
    """The configuration of the frozen model, if its weights are of that size.

    The model is first built without memory for its weights, so that a configuration of another
    size costs nothing.
    """
    architecture: dict[str, Any] = {
        key: value
        for key, value in details.architecture.items()
        if not key.startswith("_") and key not in _NO_SIZES
    }
    name = architecture.pop("model_type", None)
    _check_layers(folder, architecture)
    try:
        config = AutoConfig.for_model(name, **architecture)
        with torch.device("meta"):
            shapes = AutoModelForCausalLM.from_config(config, dtype=torch.float32).state_dict()
    except Exception as error:  # contradictory sizes raise anything
        detail = plain(" ".join(str(error).split()), 200)
        raise FrozenError(
            folder.path,
            f"transformers cannot build its model of type {str(name)[:40]!r} "
            f"({type(error).__name__}: {detail}): freeze again",
        ) from error
    for role in _POLICIES:
        _check_shapes(folder, shapes, folder.weights(role), f"model of the role {role}")
    return config


def _check_layers(folder: FrozenFolder, architecture: Mapping[str, object]) -> None:
    """Check that no number of layers exceeds that of the tensors, before modules are made.

    Raises:
        FrozenError: One does.
    """
    tensors = len(folder.weights(Role.POLICY))
    for key, value in architecture.items():
        if "layer" in key and isinstance(value, int) and value > tensors:
            raise FrozenError(
                folder.path,
                f"its architecture has {key} {value} but its policy {tensors} tensors: "
                "freeze again",
            )


def _language_model(folder: FrozenFolder, config: PretrainedConfig, role: Role) -> Module:
    try:
        model = build_policy(config, seed=0)
    except PolicyModelError as error:
        raise FrozenError(folder.path, str(error)) from error
    model.load_state_dict(folder.weights(role))
    return model


def _load(folder: FrozenFolder, module: Module, weights: dict[str, Tensor], what: str) -> None:
    _check_shapes(folder, module.state_dict(), weights, what)
    module.load_state_dict(weights)


def _check_shapes(
    folder: FrozenFolder, expected: Mapping[str, Tensor], loaded: Mapping[str, Tensor], what: str
) -> None:
    """Check names, shapes and types of *loaded*.

    Raises:
        FrozenError: They are those of another model.
    """
    differing = [
        name
        for name in sorted({*expected, *loaded})
        if name not in expected
        or name not in loaded
        or expected[name].shape != loaded[name].shape
        or expected[name].dtype != loaded[name].dtype
    ]
    if differing:
        names = ", ".join(differing[:_MOST_SHOWN]) + (", …" if differing[_MOST_SHOWN:] else "")
        raise FrozenError(
            folder.path,
            f"its weights are not those of the {what}: {len(differing)} differ in name, shape or "
            f"type ({names}); use the code and settings of the freeze, or freeze again",
        )


def _checked(folder: FrozenFolder, tensors: Batch, vocabulary: int) -> Batch:
    try:
        batch = TokenBatch.from_tensors(tensors).check()
    except TokenBatchError as error:
        raise FrozenError(folder.path, f"a batch cannot be used: {error}") from error
    if not ((batch.tokens_BT >= 0) & (batch.tokens_BT < vocabulary)).all():
        raise FrozenError(folder.path, "a batch has tokens that the model lacks: freeze again")
    for name in (OLD_LOG_PROBS, RETURNS):
        value = tensors.get(name)
        fits = value is not None and value.shape == batch.response_mask_BS.shape
        if value is None or not fits or value.dtype != torch.float32 or not value.isfinite().all():
            raise FrozenError(
                folder.path,
                f"a batch has no finite float32 {name} of the shape of its mask: freeze again",
            )
    return tensors
