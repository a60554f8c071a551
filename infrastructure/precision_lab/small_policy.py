"""The small local policy of the lab: a character model that is taught sums in words.

It stands where a person has no model at hand. The text has no end, so that sequences are as long as
they are asked to be, and weights that were trained round as those of real models do.

Legend: B sequences, S predicted tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

import torch
from torch.nn import Module

from infrastructure.agent_contract.run_context import ReportProgress
from infrastructure.policy import Sampling, TokenBatch, token_log_probs
from infrastructure.policy.masked import masked_mean
from infrastructure.policy.models import (
    SpecialTokens,
    build_policy,
    load_policy,
    load_tokenizer,
    small_config,
    special_tokens,
)
from infrastructure.policy.tokenizer import CharacterTokenizer, Tokenizer
from infrastructure.precision_lab.progress import unreported
from infrastructure.training.precision import Precision, PrecisionForward

BASE_MODEL = "small"
"""Name that stands for the small local policy where a folder is expected."""

BEGINNINGS = (
    "The capital of France is",
    "Water boils when",
    "To bake bread, you first",
    "A triangle has three sides, and",
    "In winter many birds",
    "The best way to learn a language is",
    "If it rains tomorrow, we",
    "Mathematics is useful because",
)
"""Prompts for models that know English."""

_CONTEXT = 1024
_WINDOW = 256  # characters of a training example; longer sequences are beyond what it has seen
_EXAMPLES = 6  # in a step
_VERBS = {"plus": int.__add__, "minus": int.__sub__, "times": int.__mul__}
_CHARACTERS = " .-0123456789" + "".join(sorted(set("".join(_VERBS) + "is")))


@dataclass(frozen=True, kw_only=True, slots=True)
class BasePolicy:
    """The policy that an experiment starts from, with its prompts.

    Attributes:
        name: ``small``, or the path of the folder.
        model: Float32 weights, on the CPU, in evaluation mode.
        tokenizer: Its tokenizer.
        special: Its special tokens.
        prompts: Token ids of each prompt.
    """

    name: str
    model: Module
    tokenizer: Tokenizer
    special: SpecialTokens
    prompts: list[list[int]]


def small_policy(
    *, seed: int, prompts: int, steps: int = 250, progress: ReportProgress = unreported
) -> BasePolicy:
    """Train the small local policy in FP32; some seconds on one core of a CPU.

    Args:
        seed: Decides weights, text and prompts.
        prompts: Number of prompts, each the beginning of a sum.
        steps: Optimizer steps.
        progress: Told of each step.
    """
    tokenizer = CharacterTokenizer(_CHARACTERS)
    model = build_policy(small_config(tokenizer, layers=2, context=_CONTEXT), seed=seed)
    forward = PrecisionForward(model, torch.device("cpu"), Precision.FP32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    sentences = _sentences(Random(f"text {seed}"))
    for step in range(steps):
        progress(step, steps, unit="steps of the small policy")
        batch = TokenBatch.from_sequences(
            [[tokenizer.bos_token_id]] * _EXAMPLES,
            [_window(tokenizer, sentences) for _ in range(_EXAMPLES)],
            pad_token=tokenizer.pad_token_id,
        )
        log_probs_BS = token_log_probs(forward, batch, Sampling())
        (-masked_mean(log_probs_BS, batch.response_mask_BS)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    questions = _sentences(Random(f"prompts {seed}"))
    return BasePolicy(
        name=BASE_MODEL,
        model=model.eval(),
        tokenizer=tokenizer,
        special=special_tokens(model, tokenizer),
        prompts=[
            tokenizer.encode(question.partition(" is")[0] + " is")
            for question in islice(questions, prompts)
        ],
    )


def base_policy(
    name: str, *, seed: int, prompts: int, progress: ReportProgress = unreported
) -> BasePolicy:
    """The policy in the folder *name*, or the small local one if it is ``small``.

    Args:
        name: Folder, folder with a GGUF file as ``FOLDER/FILE.gguf``, or ``small``.
        seed: Of the small policy.
        prompts: Number of prompts. Those of a folder are `BEGINNINGS`, repeated if there are fewer.
        progress: Told of each step of the small policy.

    Raises:
        PolicyModelError: The folder does not hold a causal language model with its tokenizer.
    """
    if name == BASE_MODEL:
        return small_policy(seed=seed, prompts=prompts, progress=progress)
    folder, gguf_file = name, None
    if name.endswith(".gguf"):
        folder, _, gguf_file = name.rpartition("/")
    model = load_policy(folder or ".", gguf_file=gguf_file)
    tokenizer = load_tokenizer(folder or ".", gguf_file=gguf_file)
    return BasePolicy(
        name=name,
        model=model.eval(),
        tokenizer=tokenizer,
        special=special_tokens(model, tokenizer),
        prompts=[tokenizer.encode(BEGINNINGS[n % len(BEGINNINGS)]) for n in range(prompts)],
    )


def _sentences(random: Random) -> Iterator[str]:
    """Sums with their results, without end."""
    while True:
        verb, function = random.choice(tuple(_VERBS.items()))  # seeded
        first, second = random.randrange(10), random.randrange(10)
        yield f"{first} {verb} {second} is {function(first, second)}. "


def _window(tokenizer: CharacterTokenizer, sentences: Iterator[str]) -> list[int]:
    text = ""
    while len(text) < _WINDOW:
        text += next(sentences)
    return tokenizer.encode(text[:_WINDOW], add_special_tokens=False)
