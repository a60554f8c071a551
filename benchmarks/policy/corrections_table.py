"""What each correction does to a batch whose only mismatch is that of BF16 or of FP16."""

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
from infrastructure.policy.corrections import CORRECTIONS

PRECISIONS = ("bf16", "fp16")
STATS = ("dropped_fraction", "clipped_fraction", "weight_mean", "token_ess", "sequence_ess")


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectionResult:
    """Effect of one correction in one precision.

    Attributes:
        precision: Of rollout and trainer.
        correction: Its name.
        stats: Each of `STATS` with its interval.
    """

    precision: str
    correction: str
    stats: Mapping[str, Interval]


def measure_corrections(
    subject: Subject, kept: Kept, *, new_tokens: int, group: int, seed: int, resamples: int
) -> list[CorrectionResult]:
    """Apply every correction to rollouts in BF16 and in FP16, scored in the same type."""
    bootstrap = PromptBootstrap(
        prompts=len(subject.prompts), group=group, resamples=resamples, seed=seed
    )
    results = []
    for precision in PRECISIONS:
        tensors = kept.get(
            f"scored-{precision}",
            lambda precision=precision: _scored(  # type: ignore[misc]
                subject, precision, new_tokens=new_tokens, group=group, seed=seed
            ),
        )
        for name in CORRECTIONS:
            values = np.array(list(_stats(name, tensors, bootstrap)))
            stats = {
                stat: interval(float(values[0, column]), values[1:, column])
                for column, stat in enumerate(STATS)
            }
            results.append(CorrectionResult(precision=precision, correction=name, stats=stats))
    return results


def _scored(subject: Subject, precision: str, **values: int) -> dict[str, Tensor]:
    batch = generate(subject, precision, Sampling(), **values)
    way = Way(side="trainer", precision=precision)
    scored = score(subject, batch, way, {"trainer_log_probs_BS": Sampling()})
    return {**batch.to_tensors(), **scored}


def _stats(
    name: str, tensors: Mapping[str, Tensor], bootstrap: PromptBootstrap
) -> Iterator[list[float]]:
    """`STATS` of all rows, then of each resample."""
    batch = TokenBatch.from_tensors(tensors)
    recorded_BS = batch.log_probs_BS
    assert recorded_BS is not None  # noqa: S101  # of a rollout
    for rows in (torch.arange(len(batch)), *bootstrap.rows()):
        corrected = CORRECTIONS[name](
            tensors["trainer_log_probs_BS"][rows], recorded_BS[rows], batch.response_mask_BS[rows]
        )
        yield [corrected.stats[stat].item() for stat in STATS]
