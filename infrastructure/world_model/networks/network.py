"""The networks: an ensemble with one batched product per layer, and the linear baseline.

Both take the flat tensors of `Features.inputs` and return raw head outputs:
``NAME.mean`` and ``NAME.log_variance`` ``[M, N, K]`` for a `Box` target, ``NAME.logits``
``[M, N, L]`` for a `Discrete` one. They run under autocast; likelihoods are computed from their
outputs in float32 (`loss.py`).

Shapes: M members, N rows, T tokens, H hidden width, I inputs and O outputs of a layer, K kept
dimensions, L labels, B varying dimensions of all `Box` targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from infrastructure.trajectories.encoding.encoder import FeatureEncoder
from infrastructure.trajectories.encoding.targets import TargetCodec


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkShape:
    """Sizes of inputs and outputs.

    Attributes:
        dense: Number of dense features.
        texts: Number of buckets of each text field.
        boxes: Number of varying dimensions of each `Box` target.
        labels: Number of labels of each `Discrete` target.
    """

    dense: int
    texts: Mapping[str, int]
    boxes: Mapping[str, int]
    labels: Mapping[str, int]

    @classmethod
    def of(cls, encoder: FeatureEncoder, codec: TargetCodec) -> NetworkShape:
        """Return the shape that fits *encoder* and *codec*."""
        heads = codec.heads
        return cls(
            dense=encoder.dense_width,
            texts=encoder.text_buckets,
            boxes={name: size for name, size in heads.items() if not codec.is_discrete(name)},
            labels={name: size for name, size in heads.items() if codec.is_discrete(name)},
        )


def build_seeded(
    build: Callable[[NetworkShape], nn.Module], shape: NetworkShape, seed: int
) -> nn.Module:
    """Call *build* with torch's random generator seeded; restore the generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(shape)


class EnsembleNetwork(nn.Module):
    """Independent members with two hidden SiLU layers, computed together.

    Only the middle layer runs in autocast's dtype. The first and the last stay float32: rounding
    inputs or heads to BF16's eight bits costs a precise target more than the products save. In
    the middle layer, eight bits are too few for the weights; see `_affine_in_half`.

    Args:
        members: Number of networks; their disagreement is the epistemic uncertainty.
        hidden: Hidden width. Up to 64, FP16 stays usable on CPUs without FP16 arithmetic.
        embedding: Width of each text field's embedding, per member.
        dropout: Share of embedded text dropped in training, because small data sets are memorised
            by their words. Hidden values are kept: noise there ruins precise dynamics.

    Attributes:
        sizes: Arguments that determine the shapes of the weights; saved with the model.
    """

    def __init__(
        self,
        shape: NetworkShape,
        *,
        members: int = 5,
        hidden: int = 64,
        embedding: int = 16,
        dropout: float = 0.4,
    ) -> None:
        super().__init__()
        self.shape, self.members, self.embedding = shape, members, embedding
        self.dropout = dropout
        self.sizes = {"members": members, "hidden": hidden, "embedding": embedding}
        self.embeddings = nn.ModuleList(
            TextEmbedding(buckets, members * embedding) for buckets in shape.texts.values()
        )
        outputs = 2 * sum(shape.boxes.values()) + sum(shape.labels.values())
        widths = [shape.dense + embedding * len(shape.texts), hidden, hidden, outputs]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in pairwise(widths):
            weight_MIO = torch.empty(members, fan_in, fan_out)
            nn.init.normal_(weight_MIO, std=max(fan_in, 1) ** -0.5)
            self.weights.append(nn.Parameter(weight_MIO))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, fan_out)))

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return raw head outputs of all members; see the module's docstring."""
        parts = [inputs["dense"].expand(self.members, -1, -1)]
        for name, table in zip(self.shape.texts, self.embeddings, strict=True):
            embedded = table(inputs[f"{name}.buckets"], inputs[f"{name}.offsets"])
            embedded = functional.dropout(embedded, self.dropout, self.training)
            parts.append(embedded.unflatten(1, (self.members, self.embedding)).transpose(0, 1))
        (first, middle, last), (first_bias, middle_bias, last_bias) = self.weights, self.biases
        with torch.autocast(first.device.type, enabled=False):
            hidden_MNH = _affine(torch.cat(parts, dim=2), first, first_bias)
        hidden_MNH = functional.silu(hidden_MNH).to(middle.dtype)
        hidden_MNH = _affine_in_half(hidden_MNH, middle, middle_bias)
        with torch.autocast(first.device.type, enabled=False):
            output_MNO = _affine(functional.silu(hidden_MNH.float()), last, last_bias)
        return _split_heads(self.shape, output_MNO)


def _affine(input_MNI: Tensor, weight_MIO: Tensor, bias_M1O: Tensor) -> Tensor:
    """Compute in float32, even if the weights are stored in half precision."""
    return torch.baddbmm(bias_M1O.float(), input_MNI.float(), weight_MIO.float())


def _affine_in_half(input_MNI: Tensor, weight_MIO: Tensor, bias_M1O: Tensor) -> Tensor:
    """Compute in autocast's dtype if autocast is on; under BF16, correct the weights' rounding.

    A second product adds what BF16's eight bits cut off the weights. Without it, updates near the
    end of training are smaller than BF16 can resolve. Only the forward pass is corrected:
    gradients in BF16 train as well as in float32.
    """
    device = weight_MIO.device.type
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is torch.bfloat16:
        with torch.no_grad():
            cut_off_MIO = weight_MIO - weight_MIO.bfloat16()
        bias_MNO = torch.baddbmm(bias_M1O, input_MNI.detach(), cut_off_MIO)
        return torch.baddbmm(bias_MNO, input_MNI, weight_MIO)
    return torch.baddbmm(bias_M1O, input_MNI, weight_MIO)


class LinearNetwork(nn.Module):
    """Multinomial logistic and linear regression: the baseline, as an ensemble of one member.

    Its variances are constants, set by `fit_linear`.
    """

    log_variance: Tensor

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        boxes = sum(shape.boxes.values())
        outputs = boxes + sum(shape.labels.values())
        self.embeddings = nn.ModuleList(
            TextEmbedding(buckets, outputs) for buckets in shape.texts.values()
        )
        self.weight = nn.Parameter(torch.zeros(shape.dense, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        for table in self.embeddings:
            nn.init.zeros_(table.get_parameter("bag.weight"))
        self.register_buffer("log_variance", torch.zeros(boxes))

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return raw head outputs with ``M == 1``."""
        output_NO = inputs["dense"] @ self.weight + self.bias
        for name, table in zip(self.shape.texts, self.embeddings, strict=True):
            output_NO = output_NO + table(inputs[f"{name}.buckets"], inputs[f"{name}.offsets"])
        return self.heads(output_NO)

    def heads(self, output_NO: Tensor) -> dict[str, Tensor]:
        """Split *output_NO* (means of all `Box` targets, then all logits) into raw head outputs."""
        boxes = len(self.log_variance)
        variance_NB = self.log_variance.expand(len(output_NO), boxes)
        moments_NO = _interleave(self.shape, output_NO[:, :boxes], variance_NB)
        return _split_heads(self.shape, torch.cat([moments_NO, output_NO[:, boxes:]], 1)[None])


class TextEmbedding(nn.Module):
    """Embeds hashed tokens; a row is the sum of its tokens divided by sqrt(their number).

    The expected magnitude is so independent of the length of the text; a text without tokens
    gives zeros. Stays float32 under autocast.
    """

    def __init__(self, buckets: int, width: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(buckets, width, mode="mean")

    def forward(self, buckets_T: Tensor, offsets_N: Tensor) -> Tensor:
        """Embed rows of tokens: ``[N, width]`` float32."""
        ends_N = torch.cat([offsets_N[1:], offsets_N.new_tensor([len(buckets_T)])])
        embedded: Tensor = self.bag(buckets_T, offsets_N)
        return embedded * (ends_N - offsets_N).float().sqrt()[:, None]


def _split_heads(shape: NetworkShape, output_MNO: Tensor) -> dict[str, Tensor]:
    heads, start = {}, 0
    for name, size in shape.boxes.items():
        heads[f"{name}.mean"] = output_MNO[..., start : start + size]
        heads[f"{name}.log_variance"] = output_MNO[..., start + size : start + 2 * size]
        start += 2 * size
    for name, size in shape.labels.items():
        heads[f"{name}.logits"] = output_MNO[..., start : start + size]
        start += size
    return heads


def _interleave(shape: NetworkShape, means_NB: Tensor, variances_NB: Tensor) -> Tensor:
    """Order means and variances target by target, as `_split_heads` reads them."""
    sizes = list(shape.boxes.values())
    parts = zip(means_NB.split(sizes, 1), variances_NB.split(sizes, 1), strict=True)
    return torch.cat([means_NB[:, :0], *(part for pair in parts for part in pair)], dim=1)
