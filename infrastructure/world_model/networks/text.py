"""Embedded text: a row's tokens are rows of a table, added with the tokens' weights.

The expected magnitude is independent of the length of a text, as their squares add up to 1; a text
without tokens gives zeros. All of it is float32, also under autocast.

Shapes: N rows, T tokens of all of them, B buckets of a field's table, W width, F networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from infrastructure.fleet.agreement import agrees, is_aligned
from infrastructure.fleet.forms import Call

_SHORT = 1 << 16  # NumPy sorts numbers below it by their digits
_LEVELS = 1 << 16  # of the random numbers that decide what is dropped


class TextBags:
    """The tokens of N rows, to be summed for any table of *buckets* rows.

    On a CPU the backward pass is several times as fast as that of ``nn.EmbeddingBag``, which
    scatters gradients one token at a time.

    Args:
        buckets_T: Bucket of each token, int64, row after row.
        offsets_N: Index of each row's first token, int64.
        weights_T: Factor of each token's row.
        buckets: Number of buckets.
    """

    def __init__(
        self, buckets_T: Tensor, offsets_N: Tensor, weights_T: Tensor, buckets: int
    ) -> None:
        self.buckets_T, self.offsets_N, self._buckets = buckets_T, offsets_N, buckets
        self.weights_T = weights_T.float()

    def embed(self, table_BW: Tensor) -> Tensor:
        """The rows' embeddings, ``[N, W]`` float32."""
        table_BW = table_BW.float()
        if table_BW.device.type == "cpu":
            summed_NW: Tensor = _Sums.apply(table_BW, self)
            return summed_NW
        return self.sum(table_BW)

    def sum(self, table_BW: Tensor) -> Tensor:
        """Weighted sums of rows of *table_BW*, ``[N, W]``."""
        return functional.embedding_bag(
            self.buckets_T,
            table_BW,
            self.offsets_N,
            mode="sum",
            per_sample_weights=self.weights_T,
        )

    @cached_property
    def rows_by_bucket(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row and weight of each token in the order of buckets, and where each bucket begins."""
        if self._buckets <= _SHORT:
            order_T = self.buckets_T.numpy().astype(np.uint16).argsort(kind="stable")
        else:
            order_T = self.buckets_T.numpy().argsort(kind="stable")
        tokens, order = len(self.buckets_T), torch.from_numpy(order_T)
        ends_N = torch.cat([self.offsets_N[1:], self.offsets_N.new_tensor([tokens])])
        rows_N = torch.arange(len(ends_N))
        rows_T = rows_N.repeat_interleave(ends_N - self.offsets_N, output_size=tokens)
        counts_B = self.buckets_T.bincount(minlength=self._buckets)
        return rows_T[order], self.weights_T[order], counts_B.cumsum(0) - counts_B


class _Sums(torch.autograd.Function):
    """Sums of table rows; the gradient of a table row is the sum over the rows that contain it."""

    @staticmethod
    def forward(ctx: Any, table_BW: Tensor, bags: TextBags) -> Tensor:
        ctx.bags = bags
        return bags.sum(table_BW.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        [gradient_NW], (rows_T, weights_T, offsets_B) = gradients, ctx.bags.rows_by_bucket
        return functional.embedding_bag(
            rows_T,
            gradient_NW.contiguous(),
            offsets_B,
            mode="sum",
            per_sample_weights=weights_T,
        ), None


class TextEmbedding(nn.Module):
    """Embeds hashed tokens by a table of its own.

    Args:
        rows: Rows of the table.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, width, mode="mean")

    def forward(
        self,
        buckets_T: Tensor,
        offsets_N: Tensor,
        weights_T: Tensor,
        shares_NB: Tensor | None = None,
    ) -> Tensor:
        """Embed rows of tokens: ``[N, W]`` float32.

        Args:
            weights_T: See `Tokens`.
            shares_NB: See `Tokens`; it may have more columns than the table has rows.
        """
        return embed_text(self.bag.weight, buckets_T, offsets_N, weights_T, shares_NB)


def embed_text(
    table_BW: Tensor,
    buckets_T: Tensor,
    offsets_N: Tensor,
    weights_T: Tensor,
    shares_NB: Tensor | None = None,
) -> Tensor:
    """`TextEmbedding` with the weights *table_BW*."""
    buckets, device = len(table_BW), table_BW.device.type
    with (
        torch.autocast(device, enabled=False)
        if torch.is_autocast_enabled(device)
        else nullcontext()
    ):
        if shares_NB is None:
            return TextBags(buckets_T, offsets_N, weights_T, buckets).embed(table_BW)
        return shares_NB[:, :buckets].float() @ table_BW.float()


def field_inputs(
    inputs: Mapping[str, Tensor], name: str
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """What `embed_text` takes of the text field *name*, besides the table."""
    buckets, offsets, weights = (
        inputs[f"{name}.{part}"] for part in ("buckets", "offsets", "weights")
    )
    return buckets, offsets, weights, inputs.get(f"{name}.shares")


def embed_texts(table_FBW: Tensor, calls: Sequence[Call], name: str) -> Tensor:
    """`embed_text` of the field *name* for several networks, ``[F, N, W]``; see `StackedForm`."""
    fields = [field_inputs(call.arguments[0], name) for call in calls]
    shares = [shares_NB for *_, shares_NB in fields if shares_NB is not None]
    networks, buckets, width = table_FBW.shape
    rows = len(calls[0].arguments[0]["dense"])
    if (
        all(share.shape == (rows, buckets) for share in shares)
        and len(shares) == networks
        and is_aligned(rows * buckets)
        and is_aligned(buckets * width)
    ):
        shapes, device = [(rows, buckets), (buckets, width)], table_FBW.device
        with torch.autocast(device.type, enabled=False):
            if agrees(_products, _product, shapes, members=networks, device=device):
                return torch.bmm(torch.stack(shares), table_FBW)
    pairs = zip(table_FBW.unbind(), fields, strict=True)
    return torch.stack([embed_text(table, *field) for table, field in pairs])


def _product(shares_NB: Tensor, table_BW: Tensor) -> Tensor:
    """A product whose gradient is a part of a wider tensor, as in the network."""
    return functional.pad(shares_NB @ table_BW, (16, 16))


def _products(shares_FNB: Tensor, table_FBW: Tensor) -> Tensor:
    return functional.pad(torch.bmm(shares_FNB, table_FBW), (16, 16))


def drop_values(
    value_F: Tensor, probability: float, generators: Sequence[torch.Generator | None]
) -> Tensor:
    """Drop values with a *probability*, and scale the others so that the expectation stays.

    As ``functional.dropout``, but a CPU draws 16 bits for each value, in a fifth of the time. The
    probability is rounded to a multiple of 2**-16.

    Args:
        value_F: Stack of F tensors.
        generators: CPU generator of each; None for torch's global one.
    """
    if value_F.device.type != "cpu":
        return functional.dropout(value_F, probability)
    kept = round((1.0 - probability) * _LEVELS)
    if kept in (0, _LEVELS):
        return value_F * (kept / _LEVELS)
    count = value_F[0].numel()
    words_FX = torch.empty(len(value_F), -(-count // 4), dtype=torch.int64)
    for words_X, generator in zip(words_FX.unbind(), generators, strict=True):
        words_X.random_(-(2**63), None, generator=generator)
    drawn_F = words_FX.view(torch.int16)[:, :count].view(value_F.shape)
    return value_F * (drawn_F < kept - _LEVELS // 2).to(value_F.dtype).mul_(_LEVELS / kept)
