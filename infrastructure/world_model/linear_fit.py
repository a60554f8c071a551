"""Fits the linear baseline: convex, full batch, FP32, regularised by what held-out groups say."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from infrastructure.trajectories.targets import TargetCodec
from infrastructure.world_model.network import LinearNetwork, NetworkShape
from infrastructure.world_model.outlook import outlook_of
from infrastructure.world_model.scoring import row_nll
from infrastructure.world_model.training_data import DataPart, TrainingData

PENALTIES = (3e-2, 3e-3, 3e-4)
MAX_ITERATIONS = 50


def fit_linear(data: TrainingData) -> LinearNetwork:
    """Fit logistic and ridge regression together on the training groups.

    The L2 penalty is the one that predicts the calibration groups best.
    """
    network = LinearNetwork(NetworkShape.of(data.encoder, data.codec))
    best, best_nll = network, float("inf")
    for penalty in PENALTIES:  # from strong to weak: each starts where the one before ended
        _minimise(network, data.train, penalty)
        nll = _held_out_nll(network, data.calibration, data.codec)
        if nll < best_nll:
            best, best_nll = copy.deepcopy(network), nll
    return best.eval()


def _minimise(network: LinearNetwork, part: DataPart, penalty: float) -> None:
    inputs = part.features.inputs()
    weights = [parameter for parameter in network.parameters() if parameter is not network.bias]
    optimizer = torch.optim.LBFGS(
        network.parameters(), max_iter=MAX_ITERATIONS, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        shrinkage = torch.stack([weight.square().sum() for weight in weights]).sum()
        loss = _fit_loss(network(inputs), part.targets) + penalty * shrinkage
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        raw = network(inputs)
        residuals = [
            (raw[f"{name}.mean"][0] - part.targets[name]).square().mean(0)
            for name in network.shape.boxes
        ]
        if residuals:
            network.log_variance.copy_(torch.cat(residuals).clamp(min=1e-4).log())


def _fit_loss(raw: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Tensor:
    losses = [
        functional.cross_entropy(raw[f"{name}.logits"][0], target)
        if f"{name}.logits" in raw
        else 0.5 * functional.mse_loss(raw[f"{name}.mean"][0], target)
        for name, target in targets.items()
    ]
    return torch.stack(losses).sum()


@torch.no_grad()
def _held_out_nll(network: LinearNetwork, part: DataPart, codec: TargetCodec) -> float:
    outlook = outlook_of(network(part.features.inputs()), codec, len(part.features))
    return float(row_nll(outlook, part.outcomes, codec).mean())
