"""Where the mismatch comes from: every combination of causes on one frozen batch.

The batch is generated once, in FP32 with top-p. Each way to compute its log-probabilities as a
rollout is compared with each way to compute them as the trainer in the same half type.

Shapes: C cells, R resamples and, first, all rows; B sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring.spread import Interval
from benchmarks.policy.bootstrap import Numbers, PromptBootstrap, interval
from benchmarks.policy.scores import Kept, Way, generate, score
from benchmarks.policy.subjects import Subject
from infrastructure.policy import Sampling, TokenBatch

TOP_P = 0.9
SAMPLINGS = {"all tokens": Sampling(), f"top-p {TOP_P}": Sampling(top_p=TOP_P)}
PLAIN, TRUNCATED = SAMPLINGS
HALVES = ("fp16", "bf16")
HEADS = {
    "none": (False, False),
    "trainer": (False, True),
    "rollout": (True, False),
    "both": (True, True),
}
"""FP32 head of rollout and trainer, by where it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One combination of causes.

    Attributes:
        half: Half type of both sides.
        forward: How the rollout computes: full or cached.
        shape: Rows of the rollout's batches: together or alone.
        head: Where the head is FP32, a key of `HEADS`.
        sampling: Distribution of both sides, a key of `SAMPLINGS`.
    """

    half: str
    forward: str
    shape: str
    head: str
    sampling: str


LEVELS: Mapping[str, Sequence[str]] = {
    "half": HALVES,
    "forward": ("full", "cached"),
    "shape": ("together", "alone"),
    "head": tuple(HEADS),
    "sampling": tuple(SAMPLINGS),
}
CELLS = [
    Cell(**dict(zip(LEVELS, each, strict=True))) for each in itertools.product(*LEVELS.values())
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Factorial:
    """Shares of the factors in the difference of rollout and trainer.

    Attributes:
        tokens: Number of tokens of the batch.
        shares: Share of the variance of log k3 between the cells, by factor; "interactions" is the
            rest.
        changes: k3 after one change divided by k3 before, by half type and change. Before: both
            sides in the half type, rollout cached and in one batch, heads in half, all tokens
            possible.
        heads: k3 by half type and place of the FP32 head.
        aligned: k3 by half type if both sides run the trainer's own code and one of them has an
            FP32 head; with both heads in half, or both in FP32, it is 0.
        floor: k3 of FP32 on both sides, by how the rollout computes.
        bias: k3 in FP32 if the rollout recorded the distribution before truncation.
    """

    tokens: int
    shares: Mapping[str, Interval]
    changes: Mapping[tuple[str, str], Interval]
    heads: Mapping[tuple[str, str], Interval]
    aligned: Mapping[str, Interval]
    floor: Mapping[str, Interval]
    bias: Interval


def run_factorial(
    subject: Subject, kept: Kept, *, new_tokens: int, group: int, seed: int, resamples: int
) -> Factorial:
    """Compute all cells and compare them."""
    batch = TokenBatch.from_tensors(
        kept.get(
            "frozen",
            lambda: generate(
                subject, "fp32", SAMPLINGS[TRUNCATED], new_tokens=new_tokens, group=group, seed=seed
            ).to_tensors(),
        )
    )
    bootstrap = PromptBootstrap(
        prompts=len(subject.prompts), group=group, resamples=resamples, seed=seed
    )
    table = _Table(subject, kept, batch, bootstrap)
    k3_CR = np.stack([table.cell(each) for each in CELLS])
    by_cell = dict(zip(CELLS, k3_CR, strict=True))
    changes, heads, aligned = {}, {}, {}
    for half in HALVES:
        base = Cell(half=half, forward="cached", shape="together", head="none", sampling=PLAIN)
        for name, k3_R in _changed(base, by_cell, table).items():
            changes[half, name] = _interval(k3_R / by_cell[base])
        for head in HEADS:
            heads[half, head] = _interval(by_cell[_with(base, head=head)])
        one, other = (
            Way(side="trainer", precision=half, fp32_head=fp32_head) for fp32_head in (False, True)
        )
        aligned[half] = _interval(table.k3(one, other, PLAIN, PLAIN))
    trainer = Way(side="trainer", precision="fp32")
    floor = {}
    for forward, shape in itertools.product(("cached", "full"), ("together", "alone")):
        way = Way(side="rollout", precision="fp32", forward=forward, shape=shape)  # type: ignore[arg-type]
        floor[f"{forward}, {shape}"] = _interval(table.k3(way, trainer, PLAIN, PLAIN))
    cached = Way(side="rollout", precision="fp32", forward="cached")
    return Factorial(
        tokens=int(batch.response_mask_BS.sum()),
        shares={
            name: _interval(each) for name, each in shares_of_variance(np.log10(k3_CR)).items()
        },
        changes=changes,
        heads=heads,
        aligned=aligned,
        floor=floor,
        bias=_interval(table.k3(cached, trainer, PLAIN, TRUNCATED)),
    )


def shares_of_variance(values_CR: Numbers) -> dict[str, Numbers]:
    """Main effects of a balanced design: sum of squares of each factor by the total, [R].

    Fisher 1925, "Statistical Methods for Research Workers", analysis of variance; the share is
    called eta squared.

    Args:
        values_CR: Values of `CELLS`, in their order.
    """
    sizes = [len(levels) for levels in LEVELS.values()]
    grid = values_CR.reshape(*sizes, -1)
    axes = tuple(range(len(sizes)))
    mean_R = grid.mean(axes)
    total_R = ((grid - mean_R) ** 2).sum(axes)
    cells = int(np.prod(sizes))
    shares: dict[str, Numbers] = {}
    for axis, name in enumerate(LEVELS):
        others = tuple(each for each in axes if each != axis)
        effect = grid.mean(others) - mean_R  # by level and resample
        shares[name] = (effect**2).sum(0) * (cells / sizes[axis]) / total_R
    shares["interactions"] = 1 - np.sum(list(shares.values()), axis=0)
    return shares


class _Table:
    """k3 of pairs of ways, [R]; log-probabilities are computed once."""

    def __init__(
        self, subject: Subject, kept: Kept, batch: TokenBatch, bootstrap: PromptBootstrap
    ) -> None:
        self._subject, self._kept, self._batch = subject, kept, batch
        rows = [torch.arange(len(batch)), *bootstrap.rows()]
        self._weights_RB = np.stack(
            [np.bincount(each.numpy(), minlength=len(batch)) for each in rows]
        )
        self._scores: dict[Way, dict[str, Tensor]] = {}

    def cell(self, cell: Cell) -> Numbers:
        of_rollout, of_trainer = HEADS[cell.head]
        rollout = Way(
            side="rollout",
            precision=cell.half,
            forward=cell.forward,  # type: ignore[arg-type]
            shape=cell.shape,  # type: ignore[arg-type]
            fp32_head=of_rollout,
        )
        trainer = Way(side="trainer", precision=cell.half, fp32_head=of_trainer)
        return self.k3(rollout, trainer, cell.sampling, cell.sampling)

    def k3(self, rollout: Way, trainer: Way, recorded: str, computed: str) -> Numbers:
        delta_BS = (self._score(trainer)[computed] - self._score(rollout)[recorded]).double()
        terms_B = (delta_BS.expm1() - delta_BS).sum(1).numpy()  # 0 where masked
        tokens_B = self._batch.response_mask_BS.sum(1).numpy()
        k3_R: Numbers = (self._weights_RB @ terms_B) / (self._weights_RB @ tokens_B)
        return k3_R

    def _score(self, way: Way) -> dict[str, Tensor]:
        if way not in self._scores:
            self._scores[way] = self._kept.get(
                str(way), lambda: score(self._subject, self._batch, way, SAMPLINGS)
            )
        return self._scores[way]


def _changed(base: Cell, by_cell: Mapping[Cell, Numbers], table: _Table) -> dict[str, Numbers]:
    other = HALVES[1 - HALVES.index(base.half)]
    rollout = Way(side="rollout", precision=base.half, forward="cached")
    trainer = Way(side="trainer", precision=base.half)
    autocast = Way(side="trainer", precision=base.half, forward="cached")
    fp32_rollout = Way(side="rollout", precision="fp32", forward="cached")
    fp32_trainer = Way(side="trainer", precision="fp32")
    return {
        f"both sides in {other}": by_cell[_with(base, half=other)],
        "rollout in fp32": table.k3(fp32_rollout, trainer, PLAIN, PLAIN),
        "trainer in fp32": table.k3(rollout, fp32_trainer, PLAIN, PLAIN),
        "rollout under autocast": table.k3(autocast, trainer, PLAIN, PLAIN),
        "rollout without cache": by_cell[_with(base, forward="full")],
        "rollout row by row": by_cell[_with(base, shape="alone")],
        "FP32 head, trainer": by_cell[_with(base, head="trainer")],
        "FP32 head, rollout": by_cell[_with(base, head="rollout")],
        "FP32 head, both": by_cell[_with(base, head="both")],
        TRUNCATED: by_cell[_with(base, sampling=TRUNCATED)],
    }


def _with(cell: Cell, **changes: str) -> Cell:
    return Cell(**{name: changes.get(name, getattr(cell, name)) for name in LEVELS})


def _interval(values_R: Numbers) -> Interval:
    return interval(float(values_R[0]), values_R[1:])
