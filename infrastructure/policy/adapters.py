"""Low-rank adapters over a frozen language model, by peft (Hu et al. 2021, arXiv:2106.09685).

An adapter is inside its model, which keeps its class and its ``forward``. It is float32, as
everything that is trained; the base under it may be in a half type.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn import Module

from infrastructure.policy.missing_extra import MissingExtraError
from infrastructure.policy.models import PolicyModelError, build_policy

try:
    from peft import LoraConfig, set_peft_model_state_dict
    from peft.tuners.lora import LoraLayer
except ModuleNotFoundError as error:
    raise MissingExtraError(error) from error

_NAME = "default"  # that peft gives to the only adapter of a model
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # peft's own format


def adapter_rank(model: Module) -> int:
    """Rank of the adapter of *model*; 0 without one."""
    config = getattr(model, "peft_config", {}).get(_NAME)
    return int(getattr(config, "r", 0))


def with_adapter(
    model: Module, rank: int, *, seed: int, base: torch.dtype = torch.float32
) -> Module:
    """*model* with an adapter of *rank* in each linear layer but the head, and all else frozen.

    Its own adapter stays if it has that rank; else it is merged into the base. A new adapter
    changes no result before its first step.

    Args:
        model: Causal language model of transformers in float32; it is changed.
        rank: Rank of the adapter; 0 returns a model without one, whose weights are all trained.
        seed: Decides the weights of a new adapter.
        base: Type in which the frozen parameters are held; buffers stay as they are.
    """
    if adapter_rank(model) != rank:
        model = merged(model)
        if rank:
            _add(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"), seed)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(base)
    return model


def merged(model: Module) -> Module:
    """*model* in float32 with its adapter added to the weights; itself if it has none."""
    if not adapter_rank(model):
        return model
    plain = base_of(model)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, LoraLayer):
                weight = plain.get_parameter(f"{name}.weight")
                weight.add_(module.get_delta_weight(_NAME).to(weight.device))
    return plain


def base_of(model: Module) -> Module:
    """A copy of *model* in float32 on the CPU, without its adapter.

    Raises:
        PolicyModelError: The model is wrapped, or not the one that its configuration describes.
    """
    plain = build_policy(model.config, seed=0)
    state = {name.replace(".base_layer.", "."): v for name, v in model.state_dict().items()}
    if lacking := sorted(plain.state_dict().keys() - state.keys()):
        raise PolicyModelError(
            f"{type(model).__name__} lacks {lacking[0]}, which its configuration has: put an "
            "adapter into the model with add_adapter(), not around it with get_peft_model()"
        )
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    return plain


def load_adapter(model: Module, folder: Path) -> None:
    """Give *model*, which has no adapter, the one in *folder*, in peft's own format.

    Raises:
        PolicyModelError: A file is missing or damaged, or the adapter is one of another base.
    """
    for path in (folder / _CONFIG, folder / _WEIGHTS):
        if not path.is_file():
            raise PolicyModelError(f"{path} is missing: save the adapter with save_pretrained()")
    try:
        config = LoraConfig.from_pretrained(str(folder))
        config.inference_mode = False
        _add(model, config, seed=0)
        loaded = set_peft_model_state_dict(model, load_file(folder / _WEIGHTS))
    except Exception as error:  # damaged files raise anything
        described = " ".join(str(error).split())[:300]
        raise PolicyModelError(f"{folder}: peft cannot load this adapter: {described}") from error
    lacking = [name for name in loaded.missing_keys if ".lora_" in name]
    if wrong := [*loaded.unexpected_keys, *lacking]:
        raise PolicyModelError(
            f"{folder}: the adapter is one of another base: {wrong[0]} does not fit "
            f"{type(model).__name__}; load it over the base that it was trained over"
        )


def _add(model: Module, config: LoraConfig, seed: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.add_adapter(config)  # type: ignore[operator]
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
