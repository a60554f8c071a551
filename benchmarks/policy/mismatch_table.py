"""The mismatch of seven pairs of rollout and trainer, each on the tokens of its own rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring.spread import Interval
from benchmarks.policy.bootstrap import PromptBootstrap, interval
from benchmarks.policy.scores import Kept, Way, generate, score
from benchmarks.policy.subjects import Subject
from infrastructure.policy import Sampling, TokenBatch
from infrastructure.policy.mismatch import measure

PAIRS = (
    ("bf16", "bf16"),
    ("fp16", "fp16"),
    ("fp32", "fp32"),
    ("fp16", "bf16"),
    ("bf16", "fp16"),
    ("fp32", "bf16"),
    ("fp32", "fp16"),
)
MEASURES = ("k3", "mean_difference", "sequence_std", "effective_sample_size")
RATIOS = ("k3", "mean_difference")


@dataclass(frozen=True, kw_only=True, slots=True)
class PairResult:
    """Difference of rollout and trainer in one pair of precisions.

    Attributes:
        rollout: Precision of the rollout.
        trainer: Precision of the trainer.
        tokens: Number of tokens compared.
        measures: Each of `MEASURES` with its interval.
    """

    rollout: str
    trainer: str
    tokens: int
    measures: Mapping[str, Interval]


def measure_pairs(
    subject: Subject, kept: Kept, *, new_tokens: int, group: int, seed: int, resamples: int
) -> tuple[list[PairResult], dict[str, Interval]]:
    """Measure all pairs, and the ratios of BF16/BF16 to FP16/FP16 of `RATIOS`."""
    batches = {
        rollout: TokenBatch.from_tensors(
            kept.get(
                f"rollout-{rollout}",
                lambda rollout=rollout: _generated(  # type: ignore[misc]
                    subject, rollout, new_tokens=new_tokens, group=group, seed=seed
                ),
            )
        )
        for rollout in dict.fromkeys(rollout for rollout, _ in PAIRS)
    }
    bootstrap = PromptBootstrap(
        prompts=len(subject.prompts), group=group, resamples=resamples, seed=seed
    )
    results, resampled = [], {}
    for rollout, trainer in PAIRS:
        batch, way = batches[rollout], Way(side="trainer", precision=trainer)
        scores = kept.get(
            f"pair-{rollout}-{trainer}",
            lambda batch=batch, way=way: score(subject, batch, way, {"plain": Sampling()}),  # type: ignore[misc]
        )
        values = np.array(list(_measured(batch, scores["plain"], bootstrap)))
        resampled[rollout, trainer] = values
        intervals = {
            name: interval(float(values[0, column]), values[1:, column])
            for column, name in enumerate(MEASURES)
        }
        tokens = int(batch.response_mask_BS.sum())
        results.append(
            PairResult(rollout=rollout, trainer=trainer, tokens=tokens, measures=intervals)
        )
    quotient = resampled["bf16", "bf16"] / resampled["fp16", "fp16"]
    ratios = {
        name: interval(float(quotient[0, column]), quotient[1:, column])
        for column, name in enumerate(MEASURES)
        if name in RATIOS
    }
    return results, ratios


def _generated(subject: Subject, rollout: str, **values: int) -> dict[str, Tensor]:
    return generate(subject, rollout, Sampling(), **values).to_tensors()


def _measured(
    batch: TokenBatch, log_probs_BS: Tensor, bootstrap: PromptBootstrap
) -> Iterator[list[float]]:
    """`MEASURES` of all rows, then of each resample."""
    recorded_BS = batch.log_probs_BS
    assert recorded_BS is not None  # noqa: S101  # of a rollout
    every = torch.arange(len(batch))
    for rows in (every, *bootstrap.rows()):
        found = measure(log_probs_BS[rows], recorded_BS[rows], batch.response_mask_BS[rows])
        yield [getattr(found, name) for name in MEASURES]
