"""The models that are measured: a small one, pretrained here, and one from a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from infrastructure.agent_contract import Forward
from infrastructure.policy import Sampling, TokenBatch, token_log_probs
from infrastructure.policy.models import (
    SpecialTokens,
    build_policy,
    load_policy,
    load_tokenizer,
    small_config,
    special_tokens,
)
from infrastructure.policy.tokenizer import CharacterTokenizer, Tokenizer
from infrastructure.training import FP16Trainer, FP16TrainingConfig

CPU = torch.device("cpu")
TEXT = Path(__file__).parents[2] / "LICENSE"
BEGINNINGS = (
    "The capital of France is",
    "Water boils when",
    "The three primary colours are",
    "To bake bread, you first",
    "A triangle has three sides, and",
    "The largest planet of the solar system",
    "In winter many birds",
    "Photosynthesis is the process by which",
    "She opened the old letter and",
    "The best way to learn a language is",
    "Computers store numbers as",
    "The museum was closed because",
    "If it rains tomorrow, we",
    "Gravity pulls objects",
    "The recipe needs two eggs,",
    "During the night the city",
    "An honest person will",
    "The train to London leaves",
    "Mathematics is useful because",
    "Under the bridge there lived",
    "Doctors recommend that people",
    "The first computers were",
    "He counted the coins and",
    "Most of the Earth is covered",
)
_WINDOW = 128  # characters of a training example
_PROMPT = 16  # characters of a prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A policy to measure, with its prompts.

    Attributes:
        name: Name in tables and files.
        model: The policy, float32, its head not shared with its embeddings.
        special: Its special tokens.
        prompts: Token ids of each prompt.
        device: Where its roles compute.
    """

    name: str
    model: Module
    special: SpecialTokens
    prompts: list[list[int]]
    device: torch.device = CPU


def pretrain_small(*, prompts: int, steps: int, seed: int, device: torch.device = CPU) -> Subject:
    """The small policy, taught the text of the licence letter by letter in FP32.

    Args:
        prompts: Number of prompts: beginnings from evenly spaced places of the text.
        steps: Optimizer steps of 16 windows of the text.
        seed: Decides weights and windows.
        device: Where it is taught, and its roles compute.
    """
    text = " ".join(TEXT.read_text().split())
    tokenizer = CharacterTokenizer("".join(sorted(set(text))))
    model = build_policy(small_config(tokenizer), seed=seed).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(enabled=False))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(text) - _WINDOW, (16,), generator=generator).tolist()
        batch = TokenBatch.from_sequences(
            [[tokenizer.bos_token_id]] * len(starts),
            [_ids(tokenizer, text[start : start + _WINDOW]) for start in starts],
            pad_token=tokenizer.pad_token_id,
        )
        trainer.step(trainer.training_step(batch.to(device), _mean_surprise))
    gap = (len(text) - _PROMPT) // prompts
    beginnings = [text[n * gap : n * gap + _PROMPT] for n in range(prompts)]
    return Subject(
        name="small",
        model=model.eval(),
        device=device,
        special=special_tokens(model, tokenizer),
        prompts=[tokenizer.encode(each) for each in beginnings],
    )


def load_subject(folder: Path, *, gguf_file: str | None, prompts: int) -> Subject:
    """The policy in *folder*, with the first *prompts* of `BEGINNINGS`."""
    model = load_policy(folder, gguf_file=gguf_file)
    tokenizer = load_tokenizer(folder, gguf_file=gguf_file)
    _untie(model)
    return Subject(
        name=(gguf_file or folder.name).removesuffix(".gguf"),
        model=model,
        special=special_tokens(model, tokenizer),
        prompts=[tokenizer.encode(each) for each in BEGINNINGS[:prompts]],
    )


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def _mean_surprise(forward: Forward, batch: TokenBatch) -> Tensor:
    return -token_log_probs(forward, batch, Sampling()).sum() / batch.response_mask_BS.sum()


def _untie(model: Module) -> None:
    """Give the head weights of its own, so that its type is not that of the embeddings."""
    head = model.get_output_embeddings()  # type: ignore[operator]  # of transformers
    head.weight = Parameter(head.weight.detach().clone())
    model.config.tie_word_embeddings = False  # type: ignore[union-attr]
