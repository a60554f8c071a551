"""Causal language models of transformers: from a configuration, or from files on this machine.

Models are returned in float32, as the trainer wants them; the dtype of each role is decided
elsewhere. Dropout is switched off: it would make the trainer's log-probabilities those of another
function than the rollout sampled from. Nothing is downloaded, and no code from a model's folder
is run.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.policy.missing_extra import MissingExtraError
from infrastructure.policy.tokenizer import Tokenizer

try:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
        DynamicCache,
        LlamaConfig,
    )
except ModuleNotFoundError as error:
    raise MissingExtraError(error) from error

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_SPARE_ROWS = 1024  # of a vocabulary padded for the hardware; peers pad by at most 943
_PROBE_TOKENS = 4
_SAFE_LOADING = {"local_files_only": True, "trust_remote_code": False}  # None would ask for code
_PROBE_TOLERANCE = 2e-5  # of the largest logit; rounding was below 1e-6 in 90 architectures


class PolicyModelError(MisconfiguredError):
    """A model cannot be loaded, or not be used as a policy; says why and what to do."""


def small_config(
    tokenizer: Tokenizer, *, width: int = 64, layers: int = 4, heads: int = 4, context: int = 256
) -> PretrainedConfig:
    """Configuration of a Llama that learns from scratch on a CPU: about 230,000 parameters.

    Args:
        tokenizer: Its ids are the vocabulary.
        width: Size of the hidden states; FP16 on a CPU is very slow above 64.
        layers: Number of blocks.
        heads: Attention heads in each block; divide the width.
        context: Longest sequence, in tokens.

    Raises:
        PolicyModelError: *heads* do not divide *width*.
    """
    if width % heads:
        raise PolicyModelError(f"{heads} attention heads do not divide the width {width}")
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )


def build_policy(config: PretrainedConfig, *, seed: int) -> Module:
    """A causal language model with random float32 weights; the same for the same seed.

    Args:
        config: Configuration of any architecture of transformers that is a causal language model.

    Raises:
        PolicyModelError: The architecture has no causal language model, or one that cannot be a
            policy: tokens see later ones, it does not take their positions or counts them
            otherwise than from 0, or it cannot continue from a `DynamicCache`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model: Module = AutoModelForCausalLM.from_config(
                _without_dropout(config), dtype=torch.float32, trust_remote_code=False
            )
        except Exception as error:  # contradictory sizes raise anything, also ZeroDivisionError
            raise PolicyModelError(
                f"transformers has no causal language model for this {type(config).__name__}: use "
                f"a consistent configuration of one, such as LlamaConfig ({_described(error)})"
            ) from error
    return _checked(model)


def load_policy(path: Path | str, *, gguf_file: str | None = None, pickles: bool = True) -> Module:
    """The causal language model in the folder *path*, in float32.

    Args:
        path: Folder with config.json and weights as transformers saves them, or with a GGUF file.
        gguf_file: Name of the GGUF file in the folder; its weights are dequantised. Needs the
            packages gguf and accelerate.
        pickles: Whether weights may come from a pickle, such as pytorch_model.bin; one that holds
            more than tensors is refused in any case.

    Raises:
        PolicyModelError: The folder or file does not exist, does not hold a causal language model,
            or its weights are not those of the architecture it names; or as for `build_policy`.
    """
    folder = _folder(path, gguf_file)
    try:
        config = AutoConfig.from_pretrained(folder, gguf_file=gguf_file, **_SAFE_LOADING)
        _check_not_quantized(folder, config)
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=gguf_file,
            config=_without_dropout(config),
            dtype=torch.float32,
            **_SAFE_LOADING,
            use_safetensors=None if pickles else True,
            ignore_mismatched_sizes=True,  # ours is the error
            output_loading_info=True,
        )
    except PolicyModelError:
        raise
    except ImportError as error:
        needed = "pip install gguf accelerate" if gguf_file else "install what it names"
        raise PolicyModelError(
            f"reading {gguf_file or folder} needs more packages: {needed} ({error})"
        ) from error
    except UnpicklingError as error:  # its text advises to load the pickle in an unsafe way
        raise PolicyModelError(
            f"{folder}: its weights are a pickle that is damaged or holds more than tensors, and "
            "are not loaded: take the model's weights in safetensors files"
        ) from error
    except Exception as error:  # damaged files raise anything, also ZeroDivisionError
        raise PolicyModelError(
            f"{folder}: transformers cannot load this model: {_described(error)}"
        ) from error
    _check_weights(folder, loading, type(model).__name__)
    return _checked(model)


def load_tokenizer(path: Path | str, *, gguf_file: str | None = None) -> Tokenizer:
    """The tokenizer in the folder *path*, or in its GGUF file.

    Raises:
        PolicyModelError: The folder or file does not exist, or does not hold a tokenizer.
    """
    folder = _folder(path, gguf_file)
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(
            folder, gguf_file=gguf_file, **_SAFE_LOADING
        )
    except Exception as error:  # as for models
        raise PolicyModelError(
            f"{folder}: transformers cannot load a tokenizer from here: {_described(error)}"
        ) from error
    return tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialTokens:
    """Ids of the tokens that end or fill a completion.

    Attributes:
        pad: Id at padding.
        stop: Ids that end a completion, at least one.
    """

    pad: int
    stop: frozenset[int]


def special_tokens(model: Module, tokenizer: Tokenizer) -> SpecialTokens:
    """The special tokens of a policy, if *tokenizer* matches *model*.

    Raises:
        PolicyModelError: The tokenizer has ids that the model lacks, or far fewer; it has no
            padding token, or one that the model lacks; neither has an end-of-sequence token.
    """
    rows, ids = vocabulary_size(model), len(tokenizer)
    if ids > rows or rows - ids > _SPARE_ROWS:
        raise PolicyModelError(
            f"the tokenizer has {ids} ids but the model predicts {rows}: they do not belong "
            "together; load both from one folder"
        )
    if tokenizer.pad_token_id is None:
        raise PolicyModelError(
            "the tokenizer has no padding token: set tokenizer.pad_token, for instance to "
            "tokenizer.eos_token; masks tell padding from text, not the id"
        )
    if not 0 <= tokenizer.pad_token_id < rows:
        raise PolicyModelError(
            f"the tokenizer's padding token has the id {tokenizer.pad_token_id}, but the model "
            f"predicts {rows}: set tokenizer.pad_token to a token of the model, for instance to "
            "tokenizer.eos_token"
        )
    config = getattr(model, "generation_config", None) or model.config
    of_model = getattr(config, "eos_token_id", None)
    stop = {*(of_model if isinstance(of_model, list) else [of_model]), tokenizer.eos_token_id}
    stop.discard(None)
    if not stop:
        raise PolicyModelError(
            "neither the tokenizer nor the model has an end-of-sequence token, so that no "
            "completion would ever end: set tokenizer.eos_token"
        )
    return SpecialTokens(pad=tokenizer.pad_token_id, stop=frozenset(stop))


def vocabulary_size(model: Module) -> int:
    """Number of tokens that *model* predicts."""
    return int(_text_config(model).vocab_size)


def context_length(model: Module) -> int | None:
    """Longest sequence of *model* in tokens; None if it has no limit."""
    length = getattr(_text_config(model), "max_position_embeddings", None)
    return None if length is None else int(length)


def _text_config(model: Module) -> PretrainedConfig:
    config = getattr(model, "config", None)
    if config is None:
        raise PolicyModelError(
            f"{type(model).__name__} is not a model of transformers: it has no configuration; "
            "build one with build_policy or load_policy"
        )
    return config.get_text_config(decoder=True)


def _without_dropout(config: PretrainedConfig) -> PretrainedConfig:
    config = copy.deepcopy(config)
    for name, value in vars(config).items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, 0.0)
    return config


def _folder(path: Path | str, gguf_file: str | None) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise PolicyModelError(
            f"{folder} is not a folder on this machine, and models are not downloaded for you: "
            "download it once (hf download NAME --local-dir FOLDER) and give that folder"
        )
    if gguf_file is not None and not (folder / gguf_file).is_file():
        names = sorted(file.name for file in folder.glob("*.gguf"))
        raise PolicyModelError(f"{folder} has no file {gguf_file!r}; its GGUF files are {names}")
    return folder


def _check_not_quantized(folder: Path, config: PretrainedConfig) -> None:
    if getattr(config, "quantization_config", None) is not None:
        raise PolicyModelError(
            f"{folder}: its weights are quantized (quantization_config in config.json) and cannot "
            "be trained: take the model's float weights, or a GGUF file of it"
        )


def _check_weights(folder: Path, loading: dict[str, set[str]], name: str) -> None:
    problems = [
        f"{len(loading[kind])} {what} (such as {min(map(str, loading[kind]))})"
        for kind, what in (
            ("missing_keys", "are missing"),
            ("unexpected_keys", "are of no module"),
            ("mismatched_keys", "have another shape"),
        )
        if loading.get(kind)
    ]
    if problems:
        raise PolicyModelError(
            f"{folder}: its weights are not those of {name}, which its configuration names; "
            f"of the weights {', '.join(problems)}: take configuration and weights of one model"
        )


def _described(error: Exception) -> str:
    text = str(error).split("\nModel type should be one of")[0]  # 189 names follow
    return text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"


def _checked(model: Module) -> Module:
    name = type(model).__name__
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise PolicyModelError(
            f"{name} does not take the positions of tokens, so that prompts padded on the left "
            "would change its results: use a model with position_ids"
        )
    context = context_length(model)
    if context is not None and context < _PROBE_TOKENS:
        raise PolicyModelError(
            f"{name} has a context of {context} tokens: no prompt and completion fit in"
        )
    training = model.training
    model.eval()
    try:
        _check_results(model)
    except PolicyModelError:
        raise
    except Exception as error:  # anything, where its code meets a cache unlike its own
        raise PolicyModelError(
            f"{name} cannot compute a few tokens, or not continue them with a DynamicCache of "
            f"transformers: {_described(error)}"
        ) from error
    finally:
        model.train(training)
    return model


@torch.no_grad()
def _check_results(model: Module) -> None:
    """Compare what rollout and trainer compute with a plain forward pass over a few tokens.

    Non-finite weights pass: the rollout names them.
    """
    name = type(model).__name__
    tokens_1T = (torch.arange(_PROBE_TOKENS - 1) + vocabulary_size(model) // 2)[None]
    tokens_1T = tokens_1T % vocabulary_size(model)
    plain_1TV = model(input_ids=tokens_1T, use_cache=False).logits
    changed_1T = tokens_1T.clone()
    changed_1T[:, -1] = (changed_1T[:, -1] + 1) % vocabulary_size(model)
    changed_1TV = model(input_ids=changed_1T, use_cache=False).logits
    if _differ(changed_1TV[:, :-1], plain_1TV[:, :-1]):
        remedy = "set is_decoder=True in its configuration, if it was trained as a decoder"
        if getattr(model.config, "is_decoder", True):
            remedy = "use a causal model"
        raise PolicyModelError(
            f"{name} is not causal: its results at a token depend on later ones, so that the "
            f"trainer would know the token that the rollout had to draw; {remedy}"
        )
    positions_1T = torch.arange(tokens_1T.shape[1])[None]
    positioned_1TV = model(input_ids=tokens_1T, position_ids=positions_1T, use_cache=False).logits
    if _differ(positioned_1TV, plain_1TV):
        raise PolicyModelError(
            f"{name} does not count the positions of tokens from 0, as rollout and trainer do, so "
            "that its results would be those of other positions than it was trained on: use "
            "another architecture"
        )
    generated_1TV = _generated_logits(model, tokens_1T)
    if _differ(generated_1TV, plain_1TV):
        raise PolicyModelError(
            f"{name} has other results with a cache and padding on the left than without: use "
            "another architecture"
        )


def _generated_logits(model: Module, tokens_1T: Tensor) -> Tensor:
    """Logits of the tokens as a rollout computes them: padded on the left, one by one."""
    padded_1T = torch.cat([tokens_1T[:, :1], tokens_1T], 1)
    attended_1T = torch.ones_like(padded_1T)
    attended_1T[:, 0] = 0
    positions_1T = (attended_1T.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    logits, seen = [], 0
    for end in range(2, padded_1T.shape[1] + 1):
        output = model(
            input_ids=padded_1T[:, seen:end],
            attention_mask=attended_1T[:, :end],
            position_ids=positions_1T[:, seen:end],
            past_key_values=cache,
            use_cache=True,
        )
        logits.append(output.logits[:, -1])
        seen = end
    return torch.stack(logits, 1)


def _differ(first: Tensor, second: Tensor) -> bool:
    if not (first.isfinite().all() and second.isfinite().all()):
        return False
    return bool((first - second).abs().max() > _PROBE_TOLERANCE * second.abs().max())
