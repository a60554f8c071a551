"""Log-probabilities of a batch's tokens under every way of computing them, kept in files.

Shapes: B sequences, S predicted tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from benchmarks.policy.subjects import CPU, Subject
from infrastructure.policy import Sampling, TokenBatch, log_probs_of_logits
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.training.precision.keep_fp32 import keep_in_fp32
from infrastructure.training.precision.roles import RoleForward, RolePrecision

ROLLOUT = {"fp32": "fp32/fp32/fp32", "fp16": "fp16/fp16/fp32", "bf16": "bf16/bf16/fp32"}
TRAINER = {"fp32": "fp32/fp32/fp32", "fp16": "fp32/fp16/fp32", "bf16": "fp32/bf16/fp32"}
HEAD = "lm_head"


class OtherSettingsError(ValueError):
    """A folder holds results of other settings.

    Args:
        folder: The folder.
        there: Its settings.
        asked: The settings asked for.
    """

    def __init__(self, folder: Path, there: object, asked: object) -> None:
        super().__init__(
            f"{folder} holds results of {there}, but asked was for {asked}: choose another "
            "--output, or delete the folder"
        )


class Kept:
    """Tensors in files of one folder, so that a benchmark continues where it was stopped.

    Args:
        folder: Folder of one subject, created if needed.
        settings: What the tensors depend on.

    Raises:
        OtherSettingsError: The folder holds results of other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        path, asked = folder / "settings.json", json.dumps(dict(settings), sort_keys=True)
        if path.exists() and path.read_text() != asked:
            raise OtherSettingsError(folder, path.read_text(), asked)
        path.write_text(asked)

    def get(self, name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The tensors kept as *name*; *make* makes them the first time."""
        path = self._folder / f"{name}.pt"
        if not path.exists():
            start = time.monotonic()
            tensors = make()
            part = path.with_suffix(".part")
            torch.save(tensors, part)
            part.replace(path)
            print(f"  {path.stem}: {time.monotonic() - start:.1f} s", flush=True)
        loaded: dict[str, Tensor] = torch.load(path, weights_only=True)
        return loaded


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to compute log-probabilities of given tokens.

    Attributes:
        side: Weights and activations in the half type, as a rollout has them, or FP32 weights
            under autocast, as the trainer has them.
        precision: Type of the computation.
        forward: One full pass over the sequence, or token by token with a cache.
        shape: All rows in one padded batch, or each row alone.
        fp32_head: Whether the head (the last matrix product, to the logits) is FP32.
    """

    side: Literal["rollout", "trainer"]
    precision: str
    forward: Literal["full", "cached"] = "full"
    shape: Literal["together", "alone"] = "together"
    fp32_head: bool = False

    def __str__(self) -> str:
        head = "fp32head" if self.fp32_head else "halfhead"
        return "-".join((self.side, self.precision, self.forward, self.shape, head))


def role_forward(subject: Subject, way: Way) -> RoleForward:
    """A copy of the subject's model in the types of *way*."""
    model = subject.model
    if way.fp32_head:
        model = copy.deepcopy(model)
        keep_in_fp32(model, [HEAD], subject.device)
    types = ROLLOUT if way.side == "rollout" else TRAINER
    return RoleForward(model, subject.device, RolePrecision.parse(types[way.precision]))


def engine(subject: Subject, forward: RoleForward) -> TransformersRollout:
    """A rollout of the subject with *forward*."""
    return TransformersRollout(
        forward, pad_token=subject.special.pad, stop_tokens=subject.special.stop
    )


def score(
    subject: Subject, batch: TokenBatch, way: Way, samplings: Mapping[str, Sampling]
) -> dict[str, Tensor]:
    """Log-probabilities [B, S] of the tokens of *batch* under each of *samplings*, by its name."""
    forward, batch = role_forward(subject, way), batch.to(subject.device)
    alone = way.shape == "alone"
    parts = [batch.rows(slice(n, n + 1)) for n in range(len(batch))] if alone else [batch]
    scored = [_score(subject, forward, _cropped(part), way, samplings) for part in parts]
    return {name: _joined(batch, [each[name] for each in scored]) for name in samplings}


def _score(
    subject: Subject,
    forward: RoleForward,
    batch: TokenBatch,
    way: Way,
    samplings: Mapping[str, Sampling],
) -> dict[str, Tensor]:
    if way.forward == "full":
        logits_BTV = forward(**batch.model_inputs(), use_cache=False).logits
    else:
        decoded = dict(engine(subject, forward).decode(batch))
        rows, columns = batch.tokens_BT.shape
        size = next(iter(decoded.values())).shape[-1]
        logits_BTV = torch.zeros(rows, columns, size, device=subject.device)
        for column, logits_BV in decoded.items():
            logits_BTV[:, column] = logits_BV
    return {
        name: log_probs_of_logits(logits_BTV, batch, sampling).cpu()
        for name, sampling in samplings.items()
    }


def _cropped(batch: TokenBatch) -> TokenBatch:
    """*batch* without the columns in which every row is padding."""
    kept = batch.attention_mask_BT.any(0).nonzero()[:, 0]
    first, last = int(kept[0]), int(kept[-1])
    return TokenBatch(
        tokens_BT=batch.tokens_BT[:, first : last + 1],
        attention_mask_BT=batch.attention_mask_BT[:, first : last + 1],
        response_mask_BS=batch.response_mask_BS[:, first:last],
    )


def _joined(batch: TokenBatch, parts: list[Tensor]) -> Tensor:
    """Log-probabilities of parts of *batch* in its columns."""
    mask_BS = batch.response_mask_BS
    result_BS = torch.zeros(mask_BS.shape)
    row = 0
    for part in parts:
        rows = slice(row, row + len(part))
        columns = batch.attention_mask_BT[rows].any(0).nonzero()[:, 0]
        first, last = int(columns[0]), int(columns[-1])
        result_BS[rows, first:last] = part
        row += len(part)
    return result_BS


def generate(
    subject: Subject, precision: str, sampling: Sampling, *, new_tokens: int, group: int, seed: int
) -> TokenBatch:
    """*group* completions of each prompt by a rollout in *precision*, on the CPU."""
    forward = role_forward(subject, Way(side="rollout", precision=precision))
    prompts = [each for each in subject.prompts for _ in range(group)]
    made = engine(subject, forward).generate(
        prompts, sampling=sampling, max_new_tokens=new_tokens, seed=seed
    )
    return made.to(CPU)
