"""Every kind of model and optimizer trains in every precision as in the textbook's loop."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.precision import PrecisionForward
from tests.infrastructure.training.zoo.loops import (
    AFTER_FIRST_STEP,
    TOLERANCE,
    holds_half,
    largest_difference,
    ours,
    textbook,
    types_of,
)
from tests.infrastructure.training.zoo.specimens import OPTIMIZERS, SPECIMENS, gpt2, t5, tokens

STEPS = 3
CPU = torch.device("cpu")

pytestmark = [
    pytest.mark.process,  # trains for seconds
    pytest.mark.filterwarnings(
        "ignore:.*torch.utils.checkpoint.*:UserWarning",
        "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
        "ignore:.*weight_norm.*:FutureWarning",
    ),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", SPECIMENS)
def test_a_model_trains_as_in_the_textbook_loop(name: str, precision: str) -> None:
    expected, got = (loop(SPECIMENS[name], precision, STEPS) for loop in (textbook, ours))
    torch.testing.assert_close(
        got.losses, expected.losses, rtol=TOLERANCE[precision], atol=TOLERANCE[precision]
    )
    assert largest_difference(got.states[0], expected.states[0]) <= AFTER_FIRST_STEP
    assert largest_difference(got.states[-1], expected.states[-1]) <= TOLERANCE[precision]
    assert largest_difference(got.states[0], got.states[-1]) > 1e-4
    assert not holds_half(got.types)
    if precision == "fp32":
        assert got.types == expected.types
    else:
        assert got.types == ours(SPECIMENS[name], "fp32", STEPS).types


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_without_a_closure(name: str, precision: str) -> None:
    expected, got = (
        loop(SPECIMENS["mlp"], precision, 5, OPTIMIZERS[name]) for loop in (textbook, ours)
    )
    assert largest_difference(got.states[-1], expected.states[-1]) <= TOLERANCE[precision]


def test_no_optimizer_of_torch_is_missing() -> None:
    found = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    # LBFGS needs a closure; SparseAdam takes only sparse gradients, which are refused.
    assert found - set(OPTIMIZERS) == {"Optimizer", "LBFGS", "SparseAdam"}
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match="closure"):
        FP16Trainer(model, torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_running_average_of_the_weights(precision: str) -> None:
    for name in ("mlp", "convolutions, batch norm"):
        expected, got = (
            loop(SPECIMENS[name], precision, STEPS, average=True) for loop in (textbook, ours)
        )
        assert any(key.startswith("average.module.") for key in got.states[0])
        assert largest_difference(got.states[-1], expected.states[-1]) <= TOLERANCE[precision]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("build", [gpt2, t5])
def test_generation_in_evaluation(build, precision: str) -> None:
    torch.manual_seed(0)
    model = build().eval()
    forward = PrecisionForward(model, CPU, Precision(precision))
    ids = tokens(0)["input_ids"]
    options = {
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": 4,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    dtype = Precision(precision).compute
    with torch.no_grad():
        got = forward.method("generate", ids, **options)
        with torch.autocast("cpu", dtype=dtype, enabled=precision != "fp32"):
            expected = model.generate(ids, **options)
        whole = model.generate(ids, **options)
    assert type(got) is type(whole)
    assert torch.equal(got.sequences, expected.sequences)
    assert types_of(got.scores) == types_of(whole.scores)
    assert type(got.past_key_values) is type(whole.past_key_values)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_decoding_with_a_cache_goes_on_with_the_same_cache(precision: str) -> None:
    torch.manual_seed(0)
    model = gpt2().eval()
    forward = PrecisionForward(model, CPU, Precision(precision))
    ids = tokens(0)["input_ids"]
    with torch.no_grad():
        first = forward(input_ids=ids[:, :-1], use_cache=True)
        cache = first.past_key_values
        before = [(layer.keys.dtype, layer.keys.clone()) for layer in cache.layers]
        second = forward(input_ids=ids[:, -1:], past_key_values=cache)
        whole = forward(input_ids=ids)
    assert second.past_key_values is cache
    assert cache.get_seq_length() == ids.shape[1]
    for layer, (dtype, keys) in zip(cache.layers, before, strict=True):
        assert layer.keys.dtype == dtype
        assert torch.equal(layer.keys[:, :, :-1], keys)
    torch.testing.assert_close(second.logits[:, -1], whole.logits[:, -1], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_trained_model_is_of_the_type_it_was_and_can_be_copied(precision: str) -> None:
    specimen = SPECIMENS["lstm"]
    model = specimen.build()
    kinds = [type(module) for module in model.modules()]
    trainer = FP16Trainer(
        model,
        torch.optim.AdamW(model.parameters(), fused=True),
        FP16TrainingConfig(precision=precision, cpu_half=True, keep_fp32=specimen.keep_fp32),
    )
    trainer.train_batch(specimen.batch(0), specimen.loss)
    assert [type(module) for module in model.modules()] == kinds
    x = specimen.batch(1)["x"]
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(model)(x), model(x))
