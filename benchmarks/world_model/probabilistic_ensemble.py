"""The ensemble of mbrl-lib (Chua et al., 2018), at its best on the calibration groups."""

from __future__ import annotations

import copy
import sys
import time
from importlib import import_module
from typing import Any

import numpy as np
import torch

from benchmarks.measuring.not_run import NotRunError
from benchmarks.world_model.columns import Columns
from benchmarks.world_model.metrics import Numbers
from benchmarks.world_model.peers import Lesson, Peer
from benchmarks.world_model.sources import WITHOUT_DEPENDENCIES

MEMBERS, LAYERS, WIDTH = 5, 4, 200  # as in mbrl-lib's examples
BATCH, STEPS, SCORED_EVERY = 64, 4000, 200
"""As many steps as decrease the error further; a rate that decays, without which it stays high."""


def fit_ensemble(lesson: Lesson, seed: int) -> Peer:
    """Fit mbrl-lib's ``GaussianMLP`` to the numbers of *lesson*.

    Raises:
        NotRunError: mbrl is not installed.
    """
    gaussian_mlp = _gaussian_mlp()
    begun = time.process_time()
    columns = Columns(lesson.spec, lesson.train)
    outcomes_ND = lesson.outcomes(lesson.train)
    mean_D, scale_D = outcomes_ND.mean(0), outcomes_ND.std(0)
    scale_D[scale_D == 0] = 1.0
    inputs = _tensor(columns.inputs(lesson.train).filled)
    targets = _tensor((outcomes_ND - mean_D) / scale_D)
    held = _tensor(columns.inputs(lesson.calibration).filled)
    held_targets = _tensor((lesson.outcomes(lesson.calibration) - mean_D) / scale_D)
    torch.manual_seed(seed)
    model = gaussian_mlp(
        in_size=inputs.shape[1],
        out_size=targets.shape[1],
        device="cpu",
        num_layers=LAYERS,
        ensemble_size=MEMBERS,
        hid_size=WIDTH,
        activation_fn_cfg=import_module("omegaconf").OmegaConf.create(
            {"_target_": "torch.nn.SiLU"}
        ),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=5e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    drawn = torch.randint(len(inputs), (MEMBERS, len(inputs)))  # a bootstrap of each member
    best, weights = float("inf"), copy.deepcopy(model.state_dict())
    for step in range(1, STEPS + 1):
        chosen = drawn[:, torch.randint(len(inputs), (BATCH,))]
        optimizer.zero_grad()
        model.loss(inputs[chosen], targets[chosen])[0].backward()
        optimizer.step()
        schedule.step()
        if step % SCORED_EVERY == 0:
            score = float(model.eval_score(held, held_targets)[0].mean())
            if score < best:
                best, weights = score, copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)

    def predict(rows: Any) -> Numbers:
        with torch.no_grad():
            members = model(_tensor(columns.inputs(rows).filled), use_propagation=False)[0]
        standard_ND = members.mean(0).double().numpy()
        return np.asarray(standard_ND * scale_D + mean_D)

    return Peer(predict=predict, seconds=time.process_time() - begun)


def _tensor(numbers: Numbers) -> torch.Tensor:
    return torch.from_numpy(numbers.astype(np.float32))


def _gaussian_mlp() -> Any:
    if str(WITHOUT_DEPENDENCIES) not in sys.path:
        sys.path.append(str(WITHOUT_DEPENDENCIES))
    try:
        return import_module("mbrl.models").GaussianMLP
    except ImportError as error:
        raise NotRunError(
            f"mbrl cannot be imported ({error}): run make bench-world-model"
        ) from None
