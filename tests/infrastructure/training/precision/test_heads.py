"""A language model's head in FP32 on both sides, also where its weights are the embedding's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from infrastructure.events.role_precision import RolePrecision
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.heads import HeadError, output_head
from infrastructure.training.precision.keep_fp32 import keep_in_fp32
from infrastructure.training.precision.roles import RoleForward

transformers = pytest.importorskip("transformers")

CPU = torch.device("cpu")
TOKENS = torch.arange(48).view(4, 12) % 32


def a_model(*, tied: bool) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # type: ignore[operator, union-attr]
    return model


def log_probs(forward: PrecisionForward | RoleForward) -> Tensor:
    logits: Tensor = forward(input_ids=TOKENS).logits
    assert logits.dtype == torch.float32
    return logits.log_softmax(-1).detach()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_trainer_and_rollout_compute_the_head_in_fp32(half: str, tied: bool) -> None:
    exact = log_probs(PrecisionForward(a_model(tied=tied), CPU, Precision.FP32))
    errors = {}
    for kept in (False, True):
        model = a_model(tied=tied)
        assert output_head(model) == "lm_head"
        keep_in_fp32(model, ["lm_head"] if kept else [], CPU)
        trained = log_probs(PrecisionForward(model, CPU, Precision(half)))
        rollout = RoleForward(model, CPU, RolePrecision.parse(f"{half}/{half}/fp32"))
        head, weight = rollout.module.lm_head, model.lm_head.weight
        assert isinstance(head, nn.Linear)
        if kept:
            assert head.weight.dtype == torch.float32
            assert torch.equal(head.weight, weight)  # type: ignore[arg-type]
            if tied:
                assert head.weight is rollout.module.get_input_embeddings().weight  # type: ignore[operator]
        errors[kept] = (trained - exact).abs().max(), (trained - log_probs(rollout)).abs().max()
    assert errors[True][0] < errors[False][0], "its rounding is less"
    assert errors[True][1] <= errors[False][1], "and so is the mismatch, or as small"


def test_a_model_without_a_head_is_refused_by_name() -> None:
    with pytest.raises(HeadError, match=r"Linear names no output head.*keep_fp32"):
        output_head(nn.Linear(1, 1))
