"""H4: do errors of a BF16 reference's log-probabilities add up over a sequence?

One change: the type of the role ``reference``, whose weights and operations become BF16; its logits
are cast to float32 before the log-softmax, unless a name says otherwise. The tokens are those of a
text, so they depend on no type. Independent errors of n tokens add up to a sum that grows as the
square root of n, errors with a common sign to one that grows as n.

Shapes: B sequences, S predicted tokens, N valid tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from benchmarks.precision_lab.hypotheses.material import Material, log_probs_in
from benchmarks.precision_lab.hypotheses.verdicts import Claim
from infrastructure.precision_lab.metrics import measure_accumulated_error
from infrastructure.precision_lab.metrics.accumulation import accumulated_error

CLAIMS = (
    Claim(
        hypothesis="H4",
        text="the error of the summed log-probability of a BF16 reference grows with the length",
        figure="bf16 reference: growth exponent of the error",
        confirmed_above=0.25,
        refuted_below=0.1,
        would_decide="more texts for each seed: a sum of few errors is noisy",
    ),
    Claim(
        hypothesis="H4",
        text="it drifts: the errors have a common sign, and the sum grows in proportion to n",
        figure="bf16 reference: growth exponent of the error",
        confirmed_above=0.75,
        refuted_below=0.75,
        would_decide="longer texts: a small common part shows after 2 / KL tokens",
        necessary=False,
    ),
)

WAYS = {
    "bf16 reference": "bf16/bf16/fp32",
    "bf16 reference, log-softmax too": "bf16/bf16/bf16",
    "fp16 reference": "fp16/fp16/fp32",
}
_FIRST = 8  # tokens; shorter sums depend on single tokens


def measure_drift(material: Material, ways: Sequence[str]) -> dict[str, float]:
    """Figures of one seed, by name, for each of *ways*, keys of `WAYS`.

    The growth exponent is the slope of log(mean |error of the sum of the first n|) by log n for n
    from 8 to the length of the texts, doubling.
    """
    figures: dict[str, float] = {}
    batch = material.texts
    mask_BS = batch.response_mask_BS
    exact_BS = log_probs_in(material.model, batch, "fp32/fp32/fp32")
    for way in ways:
        found_BS = log_probs_in(material.model, batch, WAYS[way])
        found = measure_accumulated_error(found_BS, exact_BS, mask_BS)
        error_N = (found_BS.double() - exact_BS.double())[mask_BS]
        error_BS = accumulated_error(found_BS, exact_BS, mask_BS)
        error_BS = error_BS[:, : int(mask_BS.sum(1).min())]
        figures |= {
            f"{way}: mean |error| of a token": error_N.abs().mean().item(),
            f"{way}: mean error of a token": error_N.mean().item(),
            f"{way}: growth exponent of the error": growth(
                error_BS[:, : int(mask_BS.sum(1).min())]
            ),
        }
        figures |= {f"{way}: {n}": v for n, v in asdict(found).items() if v is not None}
    return figures


def growth(error_BS: Tensor) -> float:
    """Slope of log(mean error) by log(number of tokens), least squares, at 8, 16, 32, …, S."""
    length = error_BS.shape[1]
    lengths = [_FIRST * 2**k for k in range(int(math.log2(length / _FIRST)) + 1)]
    if lengths[-1] != length:
        lengths.append(length)
    x = torch.tensor(lengths).double().log()
    y = torch.stack([error_BS[:, n - 1].double().mean() for n in lengths]).log()
    x = x - x.mean()
    return (x @ y / (x @ x)).item()
