"""Fits the linear baseline: convex, full batch, FP32; held-out groups select the L2 penalty."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from infrastructure.trajectories.encoding import TargetCodec, Tokens
from infrastructure.trajectories.encoding.targets import MIN_LOG_VARIANCE
from infrastructure.world_model.distributions import predictive_distributions
from infrastructure.world_model.fitting.ranking_loss import RANKING_WEIGHT, ranking_nll
from infrastructure.world_model.fitting.scoring import selection_loss
from infrastructure.world_model.fitting.training_data import DataPart, TrainingData
from infrastructure.world_model.networks import LinearNetwork, NetworkShape
from infrastructure.world_model.networks.text import TextBags

PENALTIES = (3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
MAX_ITERATIONS = 100


def fit_linear(data: TrainingData) -> LinearNetwork:
    """Fit logistic and ridge regression together on the training groups.

    The L2 penalty is the one with the lowest `selection_loss` on the calibration groups.
    """
    network = LinearNetwork(NetworkShape.of(data.encoder, data.codec, spare_rows=False))
    outputs = _outputs(network, data.train)
    best, best_loss = network, float("inf")
    for penalty in PENALTIES:  # from strong to weak; each fit starts from the previous one
        _minimise(network, outputs, partial(_fit_loss, part=data.train, codec=data.codec), penalty)
        _set_variances(network, data.calibration)
        loss = _held_out_loss(network, data.calibration, data.codec)
        if loss >= best_loss:
            break
        best, best_loss = copy.deepcopy(network), loss
    return best.eval()


def _outputs(network: LinearNetwork, part: DataPart) -> Callable[[], Tensor]:
    """Return a function that computes the outputs for *part*, ``[N, O]``, from current weights."""
    dense = network.expand(part.features.dense)
    texts = part.features.linear_texts or part.features.texts
    tables = [table.get_parameter("bag.weight") for table in network.embeddings]
    embed = [_embedding(texts[name], buckets) for name, buckets in network.texts.items()]

    def compute() -> Tensor:
        output_NO = network.dense_outputs(dense)
        for embed_field, table in zip(embed, tables, strict=True):
            output_NO = output_NO + embed_field(table)
        return output_NO

    return compute


def _embedding(tokens: Tokens, buckets: int) -> Callable[[Tensor], Tensor]:
    """Function from a table to the embeddings of *tokens*."""
    shares_NB = tokens.shares
    if shares_NB is not None:
        return lambda table_BO: shares_NB @ table_BO
    return TextBags(tokens.buckets, tokens.offsets, tokens.weights, buckets).embed


def _minimise(
    network: LinearNetwork,
    outputs: Callable[[], Tensor],
    fit_loss: Callable[[Mapping[str, Tensor]], Tensor],
    penalty: float,
) -> None:
    weights = [parameter for parameter in network.parameters() if parameter is not network.bias]
    optimizer = torch.optim.LBFGS(
        network.parameters(), max_iter=MAX_ITERATIONS, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        l2 = torch.stack([weight.square().sum() for weight in weights]).sum()
        loss = fit_loss(network.heads(outputs())) + penalty * l2
        loss.backward()
        return loss

    optimizer.step(closure)


def _fit_loss(raw: Mapping[str, Tensor], part: DataPart, codec: TargetCodec) -> Tensor:
    losses = [
        functional.cross_entropy(raw[f"{name}.logits"][0], target)
        if f"{name}.logits" in raw
        else 0.5 * functional.mse_loss(raw[f"{name}.mean"][0], target)
        for name, target in part.targets.items()
    ]
    success = codec.success_label
    if success is not None:
        name, label = success
        logits_NL = raw[f"{name}.logits"][0]
        others_NL = logits_NL.index_fill(1, torch.tensor(label), float("-inf"))
        log_odds_N = logits_NL[:, label] - others_NL.logsumexp(1)
        succeeded_N = part.targets[name] == label
        losses.append(RANKING_WEIGHT * ranking_nll(log_odds_N, succeeded_N, part.states))
    return torch.stack(losses).sum()


@torch.no_grad()
def _held_out_loss(network: LinearNetwork, part: DataPart, codec: TargetCodec) -> float:
    predicted = predictive_distributions(network(part.features.inputs()), codec, len(part.features))
    return selection_loss(predicted, part, codec)


@torch.no_grad()
def _set_variances(network: LinearNetwork, part: DataPart) -> None:
    raw = network(part.features.inputs())
    residuals = [
        (raw[f"{name}.mean"][0] - part.targets[name]).square().mean(0)
        for name in network.shape.boxes
    ]
    if residuals:
        network.log_variance.copy_(torch.cat(residuals).log().clamp(min=MIN_LOG_VARIANCE))
