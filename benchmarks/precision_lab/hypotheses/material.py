"""What each seed is measured on: a frozen model, its completions, long texts, a moved policy.

Legend: B sequences, S predicted tokens, T tokens, H features of the last hidden layer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module

from benchmarks.policy.scores import generate
from benchmarks.policy.subjects import CPU, TEXT, Subject, load_subject, pretrain_small
from infrastructure.events.role_precision import RolePrecision
from infrastructure.policy import Sampling, TokenBatch
from infrastructure.policy.masked import masked_mean
from infrastructure.policy.models import load_tokenizer
from infrastructure.policy.tokenizer import CharacterTokenizer
from infrastructure.precision_lab.computations import log_probs_of
from infrastructure.precision_lab.metrics import exact_kl_penalty_mean
from infrastructure.training.precision.roles import RoleForward

_FIRST_SIZE = 1e-5
_MOVES = 4  # corrections of a step's size until the divergence is close to the one asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Size of the material of one seed.

    Attributes:
        prompts: Prompts of a seed.
        group: Completions of each.
        new_tokens: Longest completion.
        texts: Long texts of a seed.
        text_tokens: Their length.
        steps: Steps of pretraining; 0 for a model from a folder.
        gradient_rows: Sequences whose gradient moves the policy.
    """

    prompts: int
    group: int
    new_tokens: int
    texts: int
    text_tokens: int
    steps: int
    gradient_rows: int


SMALL = Effort(
    prompts=12,
    group=4,
    new_tokens=112,
    texts=16,
    text_tokens=120,
    steps=200,
    gradient_rows=16,
)
LOADED = Effort(
    prompts=3, group=4, new_tokens=12, texts=1, text_tokens=520, steps=0, gradient_rows=4
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """What the hypotheses of one seed are tested on.

    Attributes:
        seed: Seed of everything random.
        subject: The reference: a frozen model, float32.
        completions: Its completions in FP32, those of one prompt next to each other.
        group: Completions of each prompt.
        log_probs_BS: Log-probabilities of their tokens by the frozen model in FP32.
        features_BTH: Features of its last layer for them, FP32.
        texts: Parts of a text that was not generated, each after one token of prompt.
        gradient_rows: Sequences whose gradient moves the policy.
    """

    seed: int
    subject: Subject
    completions: TokenBatch
    group: int
    log_probs_BS: Tensor
    features_BTH: Tensor
    texts: TokenBatch
    gradient_rows: int

    @property
    def model(self) -> Module:
        """The frozen model, float32."""
        return self.subject.model


def small_material(seed: int, effort: Effort) -> Material:
    """A policy pretrained from *seed*, and what it generates."""
    subject = pretrain_small(prompts=effort.prompts, steps=effort.steps, seed=seed)
    text = _text()
    tokenizer = CharacterTokenizer("".join(sorted(set(text))))  # as the policy's
    return _material(seed, subject, effort, tokenizer.encode(text, add_special_tokens=False))


def loaded_materials(
    folder: Path, gguf_file: str | None, seeds: Sequence[int], effort: Effort
) -> Iterator[Material]:
    """One model from a folder; each seed has other prompts, completions and texts."""
    subject = load_subject(folder, gguf_file=gguf_file, prompts=10**6)
    tokens = load_tokenizer(folder, gguf_file=gguf_file).encode(_text())
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(subject.prompts), generator=generator)[: effort.prompts]
        prompts = [subject.prompts[index] for index in chosen.tolist()]
        yield _material(seed, replace(subject, prompts=prompts), effort, tokens)


def _text() -> str:
    return " ".join(TEXT.read_text().split())


def _material(seed: int, subject: Subject, effort: Effort, tokens: Sequence[int]) -> Material:
    completions = generate(
        subject,
        "fp32",
        Sampling(),
        new_tokens=effort.new_tokens,
        group=effort.group,
        seed=seed,
    )
    generator = torch.Generator().manual_seed(seed)
    last = len(tokens) - effort.text_tokens - 1
    starts = torch.randint(last, (effort.texts,), generator=generator).tolist()
    parts = [tokens[start : start + effort.text_tokens + 1] for start in starts]
    texts = TokenBatch.from_sequences(
        [part[:1] for part in parts],
        [part[1:] for part in parts],
        pad_token=subject.special.pad,
    )
    with torch.no_grad():
        output = subject.model(
            **completions.model_inputs(), use_cache=False, output_hidden_states=True
        )
    return Material(
        seed=seed,
        subject=subject,
        completions=completions,
        group=effort.group,
        log_probs_BS=log_probs_of(output.logits, completions, 1.0),
        features_BTH=output.hidden_states[-1],
        texts=texts,
        gradient_rows=effort.gradient_rows,
    )


def log_probs_in(model: Module, batch: TokenBatch, types: str) -> Tensor:
    """Log-probabilities [B, S] of *batch* by a frozen *model* in ``store/compute/out``.

    The log-softmax computes in ``out``, and so does the result.
    """
    forward = RoleForward(model, CPU, RolePrecision.parse(types))
    with torch.no_grad():
        return log_probs_of(forward(**batch.model_inputs(), use_cache=False).logits, batch, 1.0)


def features_of(model: Module, batch: TokenBatch) -> Tensor:
    """Features of the last layer of a language model, [B, T, H]."""
    output = model(**batch.model_inputs(), use_cache=False, output_hidden_states=True)
    found_BTH: Tensor = output.hidden_states[-1]
    return found_BTH


def moved_policies(
    material: Material, divergences: Sequence[float]
) -> Iterator[tuple[float, Tensor]]:
    """Log-probabilities [B, S] in FP32 of a policy at each divergence from the frozen model.

    The policy has made one step of Adam's first size and direction, the sign of the gradient, on
    a policy-gradient loss whose advantages are random signs. Only the size differs.

    Args:
        material: The frozen model and its completions.
        divergences: Exact mean penalties per token, nats, ascending.
    """
    batch, reference_BS = material.completions, material.log_probs_BS
    direction = _direction(material)
    policy = copy.deepcopy(material.model)
    size, reached = _FIRST_SIZE, 0.0
    for wanted in divergences:
        for _ in range(_MOVES):
            if reached:  # the divergence grows as the square of the step
                size *= (wanted / reached) ** 0.5
            _move(policy, material.model, direction, size)
            found_BS = log_probs_in(policy, batch, "fp32/fp32/fp32")
            reached = exact_kl_penalty_mean(found_BS, reference_BS, batch.response_mask_BS)
            if 0.7 < reached / wanted < 1.4:
                break
        yield reached, found_BS


def _direction(material: Material) -> list[Tensor]:
    batch = material.completions
    count = min(material.gradient_rows, len(batch))
    generator = torch.Generator().manual_seed(material.seed)
    rows = torch.randperm(len(batch), generator=generator)[:count]
    signs_B = torch.randint(2, (count,), generator=generator).float() * 2 - 1
    part = batch.rows(rows)
    model = material.model
    model.requires_grad_(True)
    log_probs_BS = log_probs_of(model(**part.model_inputs(), use_cache=False).logits, part, 1.0)
    gain = masked_mean(log_probs_BS * signs_B[:, None], part.response_mask_BS)
    found = torch.autograd.grad(gain, list(model.parameters()))
    return [each.sign() for each in found]


@torch.no_grad()
def _move(policy: Module, reference: Module, direction: Sequence[Tensor], size: float) -> None:
    for to, start, step in zip(policy.parameters(), reference.parameters(), direction, strict=True):
        to.copy_(start).add_(step, alpha=size)
