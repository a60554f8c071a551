"""The computation of `WorldModel.predict_batch` on tensors alone, as torch can export it.

Networks, blend, calibration and confidence are the library's own code; only the encoder, which
works on recorded values with NumPy, is written again.

Shapes: N rows, C declared and K kept dimensions of a `Box`, L labels, T tokens, W a table's width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from infrastructure.agent_contract.transition import Box, Discrete
from infrastructure.trajectories.encoding import FeatureEncoder, Learned, Standardiser
from infrastructure.trajectories.encoding.encoder import EMBEDDED_FEATURES
from infrastructure.trajectories.encoding.quantile_bins import QuantileBins
from infrastructure.trajectories.encoding.standardiser import CLIP
from infrastructure.trajectories.schema import MAX_MAGNITUDE
from infrastructure.world_model.distributions import (
    BoxDistribution,
    DiscreteDistribution,
    TargetDistributions,
    predictive_distributions,
)
from infrastructure.world_model.distributions.confidence import confidence
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.fitting.fitted_model import NetworkPredictions
from infrastructure.world_model.fitting.rollout_fields import NOT_IN_STATE
from infrastructure.world_model.networks import EnsembleNetwork, LinearNetwork
from infrastructure.world_model.networks.network import layer_inputs, run_layers, split_heads
from infrastructure.world_model.onnx_export.inputs import input_fields, learned_of
from infrastructure.world_model.prediction import improvement_target


class PredictionGraph(nn.Module):
    """From the inputs of `onnx_inputs`, in the order of *names*, to the outputs of `output_names`.

    Args:
        model: Model whose ensemble is an `EnsembleNetwork`.
        names: Names of the inputs.
    """

    def __init__(self, model: FittedModel, names: tuple[str, ...]) -> None:
        super().__init__()
        if not isinstance(model.ensemble, EnsembleNetwork):
            raise TypeError(f"the ensemble must be the library's, got {type(model.ensemble)}")
        self.ensemble: EnsembleNetwork = model.ensemble
        self.linear: LinearNetwork = model.linear
        self._model, self._names, self._learned = model, names, learned_of(model)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs; see `output_names`."""
        values = dict(zip(self._names, inputs, strict=True))
        encoded = _Encoded.of(self._model.encoder, self._model, self._learned, values)
        model, rows = self._model, encoded.rows
        first = predictive_distributions(self._run_ensemble(encoded), model.codec, rows)
        second = predictive_distributions(self._run_linear(encoded), model.codec, rows)
        predicted = model.combine(
            NetworkPredictions(ensemble=first, linear=second, out_of_distribution=encoded.far_N)
        )
        return tuple(_outputs(model, predicted, values, encoded).values())

    def _run_ensemble(self, encoded: _Encoded) -> dict[str, Tensor]:
        tables = zip(self.ensemble.shape.texts, self.ensemble.embeddings, strict=True)
        texts = [
            encoded.embed(key, table.get_parameter("bag.weight"), words_alone=True)
            for key, table in tables
        ]
        input_FMNI = layer_inputs(
            encoded.dense_ND.unsqueeze(0),
            [text.unsqueeze(0) for text in texts],
            self.ensemble.members,
            0.0,
            [None],
        )
        weights = (*self.ensemble.weights, *self.ensemble.biases)
        return split_heads(self.ensemble.shape, run_layers(input_FMNI.squeeze(0), *weights))

    def _run_linear(self, encoded: _Encoded) -> dict[str, Tensor]:
        output_NO = self.linear.dense_outputs(self.linear.expand(encoded.dense_ND))
        for key, table in zip(self.linear.texts, self.linear.embeddings, strict=True):
            weight_BO = table.get_parameter("bag.weight")
            output_NO = output_NO + encoded.embed(key, weight_BO, words_alone=False)
        return self.linear.heads(output_NO)


def output_names(model: FittedModel) -> list[str]:
    """Return the names of the graph's outputs, all ``[N]`` or ``[N, C]`` float64 but the last two.

    ``TARGET.probabilities`` ``[N, L]`` of each `Discrete`; ``TARGET``, ``TARGET.deviation`` and
    ``TARGET.half_width`` ``[N, C]`` of each `Box`: value, standard deviation and half the width of
    the 90 % interval; ``success_probability`` and ``expected_improvement`` where the spec names
    them; ``confidence``; ``out_of_distribution``, bool; and ``incomplete``, bool: whether a number
    or label is missing or unseen without explanation. There the graph takes the mean for it, where
    `WorldModel.predict_batch` averages over examples.
    """
    names = []
    for name, target in model.spec.targets.items():
        if isinstance(target, Discrete):
            names.append(f"{name}.probabilities")
        else:
            names += [name, f"{name}.deviation", f"{name}.half_width"]
    if model.spec.success is not None:
        names.append("success_probability")
    if improvement_target(model.spec) is not None:
        names.append("expected_improvement")
    return [*names, "confidence", "out_of_distribution", "incomplete"]


def _outputs(
    model: FittedModel,
    predicted: TargetDistributions,
    values: Mapping[str, Tensor],
    encoded: _Encoded,
) -> dict[str, Tensor]:
    """Name the outputs, in the order of `output_names`."""
    outputs, spec = dict[str, Tensor](), model.spec
    for name, target in spec.targets.items():
        distribution = predicted[name]
        if isinstance(distribution, DiscreteDistribution):
            outputs[f"{name}.probabilities"] = distribution.probabilities
        elif isinstance(distribution, BoxDistribution):
            mean_NC = distribution.mean
            if isinstance(target, Box) and target.delta and name not in NOT_IN_STATE:
                mean_NC = mean_NC + _columns(values[f"observation.{name}"])
            outputs[name] = mean_NC
            outputs[f"{name}.deviation"] = distribution.variance.sqrt()
            outputs[f"{name}.half_width"] = distribution.half_width_90()
    if spec.success is not None:
        name, label = spec.success
        position = model.codec.labels(name).index(label)
        outputs["success_probability"] = outputs[f"{name}.probabilities"][:, position]
    gain = improvement_target(spec)
    if gain is not None:
        outputs["expected_improvement"] = outputs[gain][:, 0]
    outputs["confidence"] = confidence(predicted, model.codec)
    outputs["out_of_distribution"] = encoded.far_N
    outputs["incomplete"] = encoded.incomplete_N
    return outputs


@dataclass(kw_only=True)
class _Encoded:
    """Rows as the encoder would have encoded them.

    Attributes:
        rows: Number of rows.
        columns: Parts of the dense features, ``[N, ...]`` float32.
        far_N: Whether a row is out of distribution.
        incomplete_N: Whether a row lacks a number or label without explanation.
        tokens: Number, row and weight of the tokens of each text field, ``[T]`` each.
        words: Number of tokens that the ensemble embeds, of each text field.
    """

    rows: int
    far_N: Tensor
    incomplete_N: Tensor
    columns: list[Tensor] = field(default_factory=list)
    tokens: dict[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        encoder: FeatureEncoder,
        model: FittedModel,
        learned: Learned,
        values: Mapping[str, Tensor],
    ) -> _Encoded:
        fields = input_fields(model.spec)
        first = next(
            value for name, value in values.items() if name in fields or name.endswith(".blank")
        )
        rows = first.shape[0]
        seen = cast("Mapping[str, Sequence[bool]]", encoder.to_json()["seen"])
        none_N = torch.zeros(rows, dtype=torch.bool)
        encoded = cls(rows=rows, far_N=none_N, incomplete_N=none_N.clone())
        for key, kind in fields.items():
            if isinstance(kind, Box):
                standardiser = encoder.standardiser(key)
                if standardiser is not None:
                    encoded._add_numbers(key, _columns(values[key]), standardiser, learned)
            elif isinstance(kind, Discrete):
                if key not in encoder.constant:
                    encoded._add_labels(key, values[key], kind, learned, seen.get(key, ()))
            elif key not in encoder.constant:
                encoded._add_texts(key, values, learned)
        return encoded

    @property
    def dense_ND(self) -> Tensor:
        """Dense features."""
        return torch.cat([torch.zeros(self.rows, 0), *self.columns], dim=1)

    def embed(self, key: str, table_BW: Tensor, *, words_alone: bool) -> Tensor:
        """Weighted sums of rows of *table_BW*, ``[N, W]``."""
        numbers_T, rows_T, weights_T = self.tokens[key]
        if words_alone:
            known_T = numbers_T < self.words[key]
            numbers_T = torch.where(known_T, numbers_T, 0)
            weights_T = torch.where(known_T, weights_T, 0.0)
        embedded_TW = table_BW[numbers_T] * weights_T[:, None]
        return torch.zeros(self.rows, table_BW.shape[1]).index_add(0, rows_T, embedded_TW)

    def _add_numbers(
        self, key: str, numbers_NC: Tensor, standardiser: Standardiser, learned: Learned
    ) -> None:
        usable_NC = numbers_NC.abs() <= MAX_MAGNITUDE  # NaN compares false
        missing_NC = numbers_NC.isnan()
        if key in learned.too_large:
            missing_NC = missing_NC | (~usable_NC & torch.tensor(learned.too_large[key]))
        plain_NC = torch.where(usable_NC, numbers_NC, 0.0)
        curved_NC = plain_NC.sign() * plain_NC.abs().log1p()
        squeezed_NC = torch.where(torch.tensor(standardiser.symlog), curved_NC, plain_NC)
        low_C, high_C = _double(standardiser.low), _double(standardiser.high)
        distance_NC = torch.maximum(low_C - squeezed_NC, squeezed_NC - high_C)
        near_NC = missing_NC | (usable_NC & (distance_NC <= high_C - low_C))
        kept_C = torch.tensor(standardiser.kept)
        self.far_N = self.far_N | (~near_NC & kept_C).any(dim=1)
        explained_C = torch.tensor(learned.gaps.get(key, [False] * len(kept_C)))
        unknown_NC = missing_NC & kept_C & ~explained_C
        self.incomplete_N = self.incomplete_N | unknown_NC.any(dim=1)
        standard_NK = _standardise(squeezed_NC, standardiser)
        usable_NK = usable_NC[:, _kept(standardiser)]
        standard_NK = torch.where(usable_NK, standard_NK, 0.0)
        if standardiser.width:
            self.columns.append(standard_NK)
        if key in learned.bins:
            self.columns.append(_bin_features(standard_NK.double(), learned.bins[key]))
        if any(learned.gaps.get(key, ())):
            marked = np.flatnonzero(learned.gaps[key]).tolist()
            self.columns.append((~usable_NC)[:, marked].float())

    def _add_labels(
        self, key: str, label_N: Tensor, kind: Discrete, learned: Learned, seen: Sequence[bool]
    ) -> None:
        labels = len(kind.values)  # then a row of the table for an undeclared label, then missing
        has_gaps = any(learned.gaps.get(key, ()))
        table = torch.eye(labels + 2)[:, : labels + 1 + has_gaps]
        unknown = [*(not each for each in seen or [True] * (labels + 1)), not has_gaps]
        table[torch.tensor(unknown)] = torch.tensor(learned.shares[key])
        place_N = torch.where(label_N < 0, labels + 1, label_N.clamp(max=labels))
        self.columns.append(table[place_N])
        self.incomplete_N = self.incomplete_N | torch.tensor(unknown)[place_N]

    def _add_texts(self, key: str, values: Mapping[str, Tensor], learned: Learned) -> None:
        numbers_T, rows_T, weights_T = (
            values[f"{key}.{part}"] for part in ("tokens", "rows", "weights")
        )
        self.tokens[key] = (numbers_T, rows_T, weights_T)
        self.words[key] = min(learned.texts[key].vocabulary.words, EMBEDDED_FEATURES)
        if any(learned.gaps.get(key, ())):
            self.columns.append(values[f"{key}.blank"].float()[:, None])
        if f"{key}.vector" in values:
            standardiser = learned.embeddings[key].standardiser
            vector_NW = values[f"{key}.vector"]
            known_NK = ~vector_NW.isnan()[:, _kept(standardiser)]
            standard_NK = _standardise(torch.nan_to_num(vector_NW), standardiser)
            self.columns.append(torch.where(known_NK, standard_NK, 0.0))


def _bin_features(number_N1: Tensor, bins: QuantileBins) -> Tensor:
    edges = _double(bins.edges)
    shares_NB = (number_N1 - edges[:-1]) / edges.diff()
    low_B, high_B = torch.zeros(len(edges) - 1), torch.ones(len(edges) - 1)
    low_B[0], high_B[-1] = -torch.inf, torch.inf
    shares_NB = torch.minimum(torch.maximum(shares_NB, low_B.double()), high_B.double())
    return _standardise(shares_NB, bins.standardiser)


def _standardise(squeezed_NC: Tensor, standardiser: Standardiser) -> Tensor:
    """Standardised kept dimensions of finite numbers, ``[N, K]`` float32."""
    standard_NC = (squeezed_NC - _double(standardiser.mean)) / _double(standardiser.scale)
    return standard_NC.clamp(-CLIP, CLIP)[:, _kept(standardiser)].float()


def _kept(standardiser: Standardiser) -> list[int]:
    return [number for number, kept in enumerate(standardiser.kept) if kept]


def _double(numbers: Sequence[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _columns(value: Tensor) -> Tensor:
    return value if value.dim() == 2 else value[:, None]
