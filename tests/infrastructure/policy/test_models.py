import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BloomConfig,
    GPT2Config,
    OpenAIGPTConfig,
    RobertaConfig,
    T5Config,
)

from infrastructure.policy.models import (
    PolicyModelError,
    build_policy,
    context_length,
    load_policy,
    load_tokenizer,
    small_config,
    special_tokens,
    vocabulary_size,
)
from infrastructure.policy.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer("0123456789+=")


SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def tiny(**values: Any) -> Any:
    return build_policy(
        small_config(TOKENIZER, **{"width": 8, "layers": 1, "heads": 2, **values}), seed=0
    )


def test_the_small_policy_has_a_few_hundred_thousand_parameters() -> None:
    model = build_policy(small_config(TOKENIZER), seed=0)

    assert 200_000 < sum(each.numel() for each in model.parameters()) < 400_000
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert (vocabulary_size(model), context_length(model)) == (15, 256)


def test_the_seed_decides_the_weights_and_leaves_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, second = tiny().state_dict(), tiny().state_dict()
    other = build_policy(small_config(TOKENIZER, width=8, layers=1, heads=2), seed=1).state_dict()

    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert torch.equal(before, torch.random.get_rng_state())


def test_dropout_is_off_in_training_too() -> None:
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=16)
    model = build_policy(config, seed=0).train()
    tokens = torch.arange(8)[None]

    assert config.resid_pdrop == 0.1  # the caller's object is left alone
    assert torch.equal(model(tokens).logits, model(tokens).logits)


@pytest.mark.process
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (T5Config(d_model=8, num_layers=1), r"T5Config: .*AutoModelForCausalLM\.\)$"),
        (SimpleNamespace(), "SimpleNamespace: use"),
        (BertConfig(**SIZES, vocab_size=9), "BertLMHeadModel is not causal: .* is_decoder=True"),
        (
            RobertaConfig(**SIZES, vocab_size=9, is_decoder=True),
            "RobertaForCausalLM .* from 0",
        ),
        (
            OpenAIGPTConfig(n_embd=8, n_layer=1, n_head=2, vocab_size=9),
            "OpenAIGPTLMHeadModel .* DynamicCache",
        ),
        (
            GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=2),
            "GPT2LMHeadModel .* 2 tokens",
        ),
        (
            BloomConfig(hidden_size=8, n_layer=1, n_head=2, vocab_size=9),
            "BloomForCausalLM .* positions",
        ),
    ],
)
def test_models_that_cannot_be_policies_are_refused(config: Any, message: str) -> None:
    with pytest.raises(PolicyModelError, match=message):
        build_policy(config, seed=0)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(PolicyModelError, match=r"4 .* 66"):
        small_config(TOKENIZER, width=66, heads=4)


def test_a_decoder_of_few_tokens_is_a_policy() -> None:
    config = BertConfig(
        **SIZES, vocab_size=3, max_position_embeddings=4, is_decoder=True, pad_token_id=0
    )
    assert build_policy(config, seed=0).training, "as transformers returned it"


def test_weights_that_are_not_finite_are_left_to_the_rollout(tmp_path: Path) -> None:
    model = tiny()
    model.lm_head.weight.data.fill_(float("nan"))
    model.save_pretrained(tmp_path)

    assert load_policy(tmp_path).lm_head.weight.isnan().all()


def test_a_saved_policy_is_loaded_in_float32(tmp_path: Path) -> None:
    model = tiny()
    model.bfloat16().save_pretrained(tmp_path)

    loaded = load_policy(tmp_path)

    assert {each.dtype for each in loaded.parameters()} == {torch.float32}
    state = model.state_dict()
    assert all(torch.equal(state[n].float(), each) for n, each in loaded.state_dict().items())


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=15).save_pretrained(tmp_path)

    with pytest.raises(PolicyModelError, match="GPT2LMHeadModel"):
        load_policy(tmp_path)


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    tiny(width=16).save_pretrained(tmp_path)
    small_config(TOKENIZER, width=8, layers=1, heads=2).save_pretrained(tmp_path)

    with pytest.raises(PolicyModelError, match=r"shape .*lm_head"):
        load_policy(tmp_path)


def test_weights_that_lack_a_layer_are_refused(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))

    with pytest.raises(PolicyModelError, match=r"missing .*model\.layers\.1"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", '{"model_type": "llama", "num_attention_heads": 0}'),
        ("config.json", '{"model_type": "llama", "hidden_size": "x"}'),
        ("config.json", '{"model_type": []}'),
        ("config.json", "[]"),
        ("model.safetensors", "no header"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, content: str) -> None:
    tiny().save_pretrained(tmp_path)
    (tmp_path / name).write_text(content)

    with pytest.raises(PolicyModelError, match="load this model"):
        load_policy(tmp_path)


class Marker:
    """Creates a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_of_more_than_tensors_is_refused_without_unsafe_advice(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert torch.equal(load_policy(tmp_path).lm_head.weight, model.lm_head.weight)
    with pytest.raises(PolicyModelError, match=r"model\.safetensors"):
        load_policy(tmp_path, pickles=False)

    marker = tmp_path / "it-ran"
    torch.save({"lm_head.weight": Marker(marker)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(PolicyModelError, match="more than tensors") as caught:
        load_policy(tmp_path)
    assert "weights_only" not in str(caught.value)
    assert not marker.exists()


def test_code_in_a_folder_is_neither_run_nor_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny().save_pretrained(tmp_path)
    marker = tmp_path / "it-ran"
    (tmp_path / "code.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: pass")
    foreign = {"model_type": "foreign", "auto_map": {"AutoConfig": "code.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(foreign))
    monkeypatch.setattr("builtins.input", lambda _: "y")

    with pytest.raises(PolicyModelError, match="load this model"):
        load_policy(tmp_path)
    with pytest.raises(PolicyModelError, match="a tokenizer"):
        load_tokenizer(tmp_path)
    assert not marker.exists()


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(PolicyModelError, match="quantized"):
        load_policy(tmp_path)


def test_folders_and_files_that_do_not_exist_are_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyModelError, match="not a folder"):
        load_policy(tmp_path / "nowhere")
    (tmp_path / "other.gguf").touch()
    with pytest.raises(PolicyModelError, match=r"'a\.gguf'.*'other\.gguf'"):
        load_policy(tmp_path, gguf_file="a.gguf")
    with pytest.raises(PolicyModelError, match="load this model"):
        load_policy(tmp_path)
    with pytest.raises(PolicyModelError, match="a tokenizer"):
        load_tokenizer(tmp_path)


def test_the_special_tokens_are_those_of_tokenizer_and_model() -> None:
    model = tiny()
    model.generation_config.eos_token_id = [5, 6]

    found = special_tokens(model, TOKENIZER)

    assert (found.pad, found.stop) == (0, {2, 5, 6})


class Tokens(SimpleNamespace):
    def __len__(self) -> int:
        return int(self.size)


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (Tokens(size=16, pad_token_id=0, eos_token_id=1), "16 ids .* 15"),
        (Tokens(size=15, pad_token_id=None, eos_token_id=1), "no padding token"),
        (Tokens(size=15, pad_token_id=15, eos_token_id=1), "the id 15, .* 15"),
        (Tokens(size=15, pad_token_id=0, eos_token_id=None), "no completion"),
    ],
)
def test_a_tokenizer_that_does_not_serve_the_model_is_refused(tokenizer: Any, message: str) -> None:
    model = tiny()
    model.generation_config.eos_token_id = model.config.eos_token_id = None

    with pytest.raises(PolicyModelError, match=message):
        special_tokens(model, tokenizer)


def test_a_model_with_far_more_ids_than_its_tokenizer_is_refused() -> None:
    config = small_config(TOKENIZER, width=8, layers=1, heads=2)
    config.vocab_size = 5000

    with pytest.raises(PolicyModelError, match="do not belong"):
        special_tokens(build_policy(config, seed=0), TOKENIZER)


def test_other_modules_are_no_policies() -> None:
    with pytest.raises(PolicyModelError, match="Linear"):
        vocabulary_size(torch.nn.Linear(1, 1))
