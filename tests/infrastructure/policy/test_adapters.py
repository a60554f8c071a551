from __future__ import annotations

from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from infrastructure.policy.adapters import (
    adapter_rank,
    base_of,
    load_adapter,
    merged,
    with_adapter,
)
from infrastructure.policy.models import PolicyModelError, build_policy, small_config
from infrastructure.policy.tokenizer import CharacterTokenizer
from infrastructure.training.precision import Precision, PrecisionForward

CPU = torch.device("cpu")
TOKENIZER = CharacterTokenizer("0123456789")
TOKENS = torch.arange(4, 12)[None]
TYPES = [torch.float32, torch.float16, torch.bfloat16]


def policy(seed: int = 0, *, layers: int = 2) -> nn.Module:
    return build_policy(small_config(TOKENIZER, width=16, layers=layers), seed=seed)


def trained(base: torch.dtype = torch.float32) -> nn.Module:
    """A policy whose adapter is no longer that of the beginning."""
    model = with_adapter(policy(), 4, seed=1, base=base)
    torch.manual_seed(2)
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.1)
    return model


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    return PrecisionForward(model, CPU, Precision.FP32)(input_ids=TOKENS).logits


@pytest.mark.parametrize("base", TYPES)
def test_only_a_float32_adapter_is_trained_and_a_new_one_changes_nothing(base):
    plain, rounded = policy(), policy()
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(base).float()
    model = with_adapter(plain, 4, seed=1, base=base)
    assert (adapter_rank(plain), type(model)) == (4, type(rounded))
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (".lora_" in name)
        assert parameter.dtype == (torch.float32 if ".lora_" in name else base)
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}
    assert torch.equal(logits(model), logits(rounded))
    again = with_adapter(policy(), 4, seed=1, base=base)
    assert all(map(torch.equal, model.parameters(), again.parameters()))


@pytest.mark.parametrize("base", TYPES)
def test_a_merged_adapter_gives_the_same_results(base):
    model = trained(base)
    plain = merged(model)
    assert adapter_rank(plain) == 0
    assert {parameter.dtype for parameter in plain.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in plain.parameters())
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-5, atol=1e-5)
    assert (logits(plain) - logits(base_of(model))).abs().max() > 0.01
    assert merged(plain) is plain


def test_an_adapter_of_another_rank_is_merged_into_the_base():
    model = trained()
    expected = logits(model)
    assert with_adapter(model, 4, seed=9) is model
    for rank in (8, 0):
        other = with_adapter(model, rank, seed=9)
        assert adapter_rank(other) == rank
        torch.testing.assert_close(logits(other), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("base", TYPES)
def test_an_adapter_is_saved_alone_in_the_format_of_peft_and_comes_back(base, tmp_path: Path):
    model = trained(base)
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert not (tmp_path / "model.safetensors").exists()
    loaded = base_of(model)
    load_adapter(loaded, tmp_path)
    assert torch.equal(logits(loaded), logits(model))
    for own, other in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(own.float(), other)
        assert own.requires_grad == other.requires_grad


def test_what_is_not_an_adapter_of_this_base_is_refused(tmp_path: Path):
    with pytest.raises(PolicyModelError, match=r"adapter_config\.json is missing: save the"):
        load_adapter(policy(), tmp_path)
    trained().save_pretrained(tmp_path)
    with pytest.raises(PolicyModelError, match=r"one of another base: .*layers\.1\."):
        load_adapter(policy(layers=1), tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor[:1] for name, tensor in tensors.items()}, path)
    with pytest.raises(PolicyModelError, match=r"cannot load this adapter: .*size mismatch"):
        load_adapter(policy(), tmp_path)
    path.write_bytes(b"torn")
    with pytest.raises(PolicyModelError, match="cannot load this adapter"):
        load_adapter(policy(), tmp_path)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_wrapped_policy_is_refused_with_the_remedy():
    config = peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM")
    with pytest.raises(PolicyModelError, match=r"lacks lm_head\.weight.*with add_adapter\(\), not"):
        merged(peft.get_peft_model(policy(), config))
