"""The networks: an ensemble with one batched product per layer, and the linear baseline.

Both take the flat tensors of `Features.inputs` and return raw head outputs:
``NAME.mean`` and ``NAME.log_variance`` ``[M, N, K]`` for a `Box` target, ``NAME.logits``
``[M, N, L]`` for a `Discrete` one. They run under autocast; likelihoods are computed from their
outputs in float32 (`loss.py`).

Shapes: F networks, M members, N rows, T tokens, H hidden width, I inputs and O outputs of a
layer, K kept dimensions, L labels, B varying dimensions of all `Box` targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from infrastructure.agent_contract.transition import Discrete
from infrastructure.fleet.agreement import (
    agrees,
    autocast_dtype,
    elementwise_agrees,
    is_aligned,
)
from infrastructure.fleet.forms import Call, NotStackableError, Outputs, StackedForm
from infrastructure.trajectories.encoding.encoder import FeatureEncoder
from infrastructure.trajectories.encoding.features import LINEAR_PREFIX
from infrastructure.trajectories.encoding.targets import TargetCodec
from infrastructure.world_model.networks.text import (
    TextEmbedding,
    drop_values,
    embed_texts,
    field_inputs,
)

MOST_CROSSED = 4096
"""Most products of a feature of the observation and a label of the action."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkShape:
    """Sizes of inputs and outputs.

    Attributes:
        dense: Number of dense features.
        texts: Number of rows in the table of each text field.
        boxes: Number of varying dimensions of each `Box` target.
        labels: Number of labels of each `Discrete` target.
        linear_texts: Number of rows in each table of the linear model; None for those of `texts`.
        crossed: Number of dense features of the observation, which come first, if the linear model
            has weights of their own for each label of the action; else 0.
    """

    dense: int
    texts: Mapping[str, int]
    boxes: Mapping[str, int]
    labels: Mapping[str, int]
    linear_texts: Mapping[str, int] | None = None
    crossed: int = 0

    @classmethod
    def of(
        cls,
        encoder: FeatureEncoder,
        codec: TargetCodec,
        *,
        spare_rows: bool = True,
        crossed: bool = True,
    ) -> NetworkShape:
        """Return the shape that fits *encoder* and *codec*.

        Args:
            spare_rows: Whether text tables are rounded up, so that networks of similar agents
                have the same shape; False for the rows that are used, and for the linear model.
            crossed: Whether the linear model may cross observation and action; False for a model
                that an earlier release has saved.
        """
        heads = codec.heads
        return cls(
            dense=encoder.dense_width,
            texts=encoder.table_rows if spare_rows else encoder.text_rows,
            linear_texts=None if spare_rows else encoder.linear_rows,
            crossed=_crossed(encoder, codec) if crossed and not spare_rows else 0,
            boxes={name: size for name, size in heads.items() if not codec.is_discrete(name)},
            labels={name: size for name, size in heads.items() if codec.is_discrete(name)},
        )


def _crossed(encoder: FeatureEncoder, codec: TargetCodec) -> int:
    """See `NetworkShape.crossed`.

    Without such weights a linear model ranks labels alike in every observation. They are for
    decisions: specs with one label as the action, a success label, and a field of the observation
    that is not predicted.
    """
    spec, width = codec.spec, encoder.observation_width
    is_label = [isinstance(field, Discrete) for field in spec.action.values()] == [True]
    is_predicted = spec.observation.keys() <= spec.targets.keys()
    if not is_label or codec.success_label is None or is_predicted:
        return 0
    return width if width * (encoder.dense_width - width) <= MOST_CROSSED else 0


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
            TextEmbedding(rows, members * embedding) for rows in shape.texts.values()
        )
        for table in self.embeddings:  # at 1, words that no row has taught drown the others
            nn.init.normal_(table.get_parameter("bag.weight"), std=0.1)
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
        texts = [
            table(*field_inputs(inputs, name))
            for name, table in zip(self.shape.texts, self.embeddings, strict=True)
        ]
        dropout = self.dropout if self.training else 0.0
        batched_texts = [text.unsqueeze(0) for text in texts]
        dense = inputs["dense"].unsqueeze(0)
        input_MNI = layer_inputs(dense, batched_texts, self.members, dropout, [None]).squeeze(0)
        return split_heads(self.shape, run_layers(input_MNI, *self.weights, *self.biases))

    def stacked_form(self) -> StackedForm:
        """How several networks of this shape compute together in a fleet."""
        return StackedEnsemble(self)


def layer_inputs(
    dense_FND: Tensor,
    texts: Sequence[Tensor],
    members: int,
    dropout: float,
    generators: Sequence[torch.Generator | None],
) -> Tensor:
    """Inputs ``[F, M, N, I]`` of F networks' first layers: dense features, then embedded text.

    Args:
        texts: Embeddings of each text field for all members, ``[F, N, M * E]``.
        dropout: Share of the embedded text to drop.
        generators: CPU generator of each network to draw from; None for torch's global one.
    """
    dense_FMND = dense_FND.unsqueeze(1).expand(-1, members, -1, -1)
    if not texts:
        return dense_FMND.contiguous()
    embedded = torch.cat(list(texts), dim=2)
    if dropout > 0.0:
        embedded = drop_values(embedded, dropout, generators)
    by_member = embedded.unflatten(2, (len(texts), members, -1)).permute(0, 3, 1, 2, 4)
    return torch.cat([dense_FMND, by_member.flatten(3)], dim=3)


def run_layers(input_MNI: Tensor, *parameters: Tensor) -> Tensor:
    """Raw outputs ``[M, N, O]`` of the three layers.

    Args:
        parameters: Weights ``[M, I, O]`` of the layers, then their biases ``[M, 1, O]``.
    """
    first, middle, last, first_bias, middle_bias, last_bias = parameters
    with torch.autocast(first.device.type, enabled=False):
        hidden_MNH = _affine(input_MNI, first, first_bias)
    hidden_MNH = functional.silu(hidden_MNH).to(middle.dtype)
    hidden_MNH = _affine_in_half(hidden_MNH, middle, middle_bias)
    with torch.autocast(first.device.type, enabled=False):
        return _affine(functional.silu(hidden_MNH.float()), last, last_bias)


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

    Its variances are constants, set by `fit_linear`. If the action is one label, each label has
    weights of its own for the observation; see `NetworkShape.crossed`.

    Attributes:
        texts: Number of rows in each table.
    """

    log_variance: Tensor

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        boxes = sum(shape.boxes.values())
        outputs = boxes + sum(shape.labels.values())
        texts, self._prefix = shape.linear_texts, LINEAR_PREFIX
        if texts is None:
            texts, self._prefix = shape.texts, ""
        self.texts = texts
        self.embeddings = nn.ModuleList(TextEmbedding(rows, outputs) for rows in texts.values())
        self.weight = nn.Parameter(torch.zeros(shape.dense, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.crossed: nn.Parameter | None = None
        if shape.crossed:
            products = shape.crossed * (shape.dense - shape.crossed)
            self.crossed = nn.Parameter(torch.zeros(products, outputs))
        for table in self.embeddings:
            nn.init.zeros_(table.get_parameter("bag.weight"))
        self.register_buffer("log_variance", torch.zeros(boxes))

    def forward(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return raw head outputs with ``M == 1``."""
        output_NO = self.dense_outputs(self.expand(inputs["dense"]))
        for text_NO in self.text_outputs(inputs):
            output_NO = output_NO + text_NO
        return self.heads(output_NO)

    def expand(self, dense_ND: Tensor) -> Tensor:
        """Dense features ``[..., D]``, then their products if the model has weights for them."""
        if self.crossed is None:
            return dense_ND
        seen_ND, label_ND = dense_ND[..., : self.shape.crossed], dense_ND[..., self.shape.crossed :]
        products_ND = (seen_ND[..., :, None] * label_ND[..., None, :]).flatten(-2)
        return torch.cat([dense_ND, products_ND], dim=-1)

    @property
    def expanded_weight(self) -> Tensor:
        """Weights of what `expand` returns, ``[E, B + L]``."""
        return self.weight if self.crossed is None else torch.cat([self.weight, self.crossed])

    def dense_outputs(self, expanded_ND: Tensor) -> Tensor:
        """Outputs ``[N, B + L]`` of the dense features that `expand` returned."""
        return expanded_ND @ self.expanded_weight + self.bias

    def text_outputs(self, inputs: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """Yield what each table adds to the outputs, ``[N, B + L]``."""
        for name, table in zip(self.texts, self.embeddings, strict=True):
            yield table(*field_inputs(inputs, self._prefix + name))

    def heads(self, output_NO: Tensor) -> dict[str, Tensor]:
        """Split *output_NO* (means of all `Box` targets, then all logits) into raw head outputs."""
        boxes = len(self.log_variance)
        rows = output_NO.shape[0]  # `len` would be a constant in an exported graph
        variance_NB = self.log_variance.expand(rows, boxes)
        moments_NO = _interleave(self.shape, output_NO[:, :boxes], variance_NB)
        return split_heads(self.shape, torch.cat([moments_NO, output_NO[:, boxes:]], 1)[None])


class StackedEnsemble:
    """`StackedForm` of `EnsembleNetwork`: the layers of all networks in one batched product each.

    Text is embedded per network if its table is large. Shapes: F networks, M members of each.
    """

    def __init__(self, network: EnsembleNetwork) -> None:
        self._shape, self._sizes = network.shape, network.sizes
        self._dropout = network.dropout

    @property
    def key(self) -> Hashable:
        """Names and sizes of inputs, heads and layers."""
        parts = (self._shape.texts, self._shape.boxes, self._shape.labels, self._sizes)
        return ("ensemble", self._dropout, *(tuple(part.items()) for part in parts))

    @property
    def draws(self) -> bool:
        """Whether embedded text is dropped in training."""
        return bool(self._shape.texts) and self._dropout > 0.0

    def signature(self, model: nn.Module, arguments: tuple[Any, ...]) -> Hashable:
        """Number of rows, and whether dropout is on."""
        if len(arguments) != 1 or not isinstance(arguments[0], Mapping):
            raise NotStackableError("its network is not called with a mapping of inputs")
        return (arguments[0]["dense"].shape, model.training)

    def forward(self, parameters: Mapping[str, Tensor], calls: Sequence[Call]) -> Outputs:
        """Return the raw head outputs of every network."""
        layers = [parameters[f"{kind}.{i}"] for kind in ("weights", "biases") for i in range(3)]
        structure = partial(split_heads, self._shape)
        dense = [call.arguments[0]["dense"] for call in calls]
        input_FMNI = layer_inputs(
            torch.stack(dense),
            [
                embed_texts(parameters[f"embeddings.{i}.bag.weight"], calls, name)
                for i, name in enumerate(self._shape.texts)
            ],
            layers[0].shape[1],
            self._dropout if calls[0].training else 0.0,  # alike in all; see `signature`
            [call.generator for call in calls],
        )
        if _layers_agree(layers, len(dense[0])):
            return Outputs(raw=_run_stacked_layers(input_FMNI, *layers), structure=structure)
        inputs = [row.clone() for row in input_FMNI.unbind()]  # in memory that is aligned
        alone = zip(inputs, *(layer.unbind() for layer in layers), strict=True)
        return Outputs(raw=[run_layers(*member) for member in alone], structure=structure)


def _run_stacked_layers(input_FMNI: Tensor, *layers: Tensor) -> Tensor:
    """`run_layers` of F networks, in one batched product per layer."""
    flat = (tensor.flatten(0, 1) for tensor in (input_FMNI, *layers))
    output_FMNO: Tensor = run_layers(*flat).unflatten(0, input_FMNI.shape[:2])
    return output_FMNO


def _layers_agree(layers: Sequence[Tensor], rows: int) -> bool:
    """Whether stacked layers give the bits of those of one network for *rows* rows."""
    first, middle, last, *_ = layers
    networks, members, fan_in, hidden = first.shape
    half = autocast_dtype(first.device) or torch.float32
    sizes = [rows * fan_in, rows * last.shape[3], fan_in * hidden, math.prod(last.shape[2:])]
    if not (
        elementwise_agrees(members * rows * hidden, networks)
        and all(is_aligned(members * size) for size in sizes)
        and is_aligned(members * math.prod(middle.shape[2:]), half)
    ):
        return False
    shapes = [(members, rows, fan_in), *(layer.shape[1:] for layer in layers)]
    return agrees(_run_stacked_layers, run_layers, shapes, members=networks, device=first.device)


def without_spare_rows(state: Mapping[str, Tensor], shape: NetworkShape) -> dict[str, Tensor]:
    """Cut the text tables of an `EnsembleNetwork` to the rows of *shape*.

    Args:
        state: Its ``state_dict``.
        shape: Its shape, without spare rows.
    """
    names = (f"embeddings.{number}.bag.weight" for number in range(len(shape.texts)))
    tables = dict(zip(names, shape.texts.values(), strict=True))
    return {
        name: tensor[: tables[name]].clone() if name in tables else tensor
        for name, tensor in state.items()
    }


def split_heads(shape: NetworkShape, output_MNO: Tensor) -> dict[str, Tensor]:
    """Name the raw head outputs in *output_MNO*, target by target."""
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
    """Order means and variances target by target, as `split_heads` reads them."""
    sizes = list(shape.boxes.values())
    parts = zip(means_NB.split(sizes, 1), variances_NB.split(sizes, 1), strict=True)
    return torch.cat([means_NB[:, :0], *(part for pair in parts for part in pair)], dim=1)
