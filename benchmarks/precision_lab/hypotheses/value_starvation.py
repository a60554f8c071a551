"""H3: does a value head in BF16 starve at high magnitudes?

One change: the type of the role ``value``. A linear head on the frozen policy's features learns
returns that are a random linear function of them plus noise (standard deviations 1 and 1/2),
standardised, times a scale, plus an offset. Magnitude comes from either of the two, because a type
rounds relative to the magnitude of a number, while what a head must tell apart is the spread of its
returns.

The learning rate is proportional to the scale, so that the FP32 head learns equally well at each,
and every head begins at the returns' mean, as one that has learned them before.

Shapes: N tokens of all completions, H features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.policy.subjects import CPU
from benchmarks.precision_lab.hypotheses.material import Material
from benchmarks.precision_lab.hypotheses.verdicts import Claim
from infrastructure.events.role_precision import RolePrecision
from infrastructure.precision_lab.metrics import measure_values, stagnation_rate
from infrastructure.training.precision import Precision, PrecisionForward

WAYS: Mapping[str, str] = {
    "fp32 value": "fp32/fp32/fp32",
    "bf16 value": "bf16/bf16/bf16",
    "bf16 value with FP32 weights": "fp32/bf16/bf16",
}
RETURNS: Mapping[str, tuple[float, float]] = {
    "scale 1": (1.0, 0.0),
    "scale 100": (100.0, 0.0),
    "scale 10000": (10000.0, 0.0),
    "offset 100": (1.0, 100.0),
    "offset 10000": (1.0, 10000.0),
}
"""Scale and offset of the returns."""

_CURED = "share of the loss at offset 10000 that FP32 weights cure"
CLAIMS = (
    Claim(
        hypothesis="H3",
        text=(
            "returns 10,000 times as large starve a BF16 head: it "
            "explains less of them than of returns of size 1, beyond what FP32 loses"
        ),
        figure="bf16 value: variance lost by scale 10000 beyond scale 1",
        confirmed_above=0.1,
        refuted_below=0.02,
        would_decide="more seeds: every seed has other features and returns",
    ),
    Claim(
        hypothesis="H3",
        text="returns of spread 1 around 10,000 starve it likewise",
        figure="bf16 value: variance lost by offset 10000 beyond scale 1",
        confirmed_above=0.1,
        refuted_below=0.02,
        would_decide="more seeds: every seed has other features and returns",
    ),
    Claim(
        hypothesis="H3",
        text="FP32 weights under BF16 operations and results cure it",
        figure=_CURED,
        confirmed_above=0.5,
        refuted_below=0.1,
        would_decide="more seeds",
        necessary=False,
    ),
)
_NOISE = 0.5
_STEPS = 150
_LEARNING_RATE = 0.03
_WATCHED = 20  # last updates whose stagnation is measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """How well a trained value head predicts, and how fine its values are.

    Attributes:
        explained: Share of the returns' variance that the head explains; 0 if it is worse than
            their mean.
        stagnation: Mean share of values that an update leaves unchanged, over the last updates.
        quant_step: `value_quant_step_median` divided by the spread of the returns.
        ulp: `value_ulp_median` divided by it.
    """

    explained: float
    stagnation: float
    quant_step: float
    ulp: float


def measure_starvation(material: Material) -> dict[str, float]:
    """Figures of one seed, by name, for each of `WAYS` and `RETURNS`."""
    features_NH, returns_N = features_and_returns(material)
    figures: dict[str, float] = {}
    for way, types in WAYS.items():
        for name, (scale, offset) in RETURNS.items():
            found = train_head(
                features_NH,
                returns_N,
                RolePrecision.parse(types),
                scale=scale,
                offset=offset,
                seed=material.seed,
            )
            figures |= {
                f"{way}, {name}: explained variance": found.explained,
                f"{way}, {name}: value_stagnation_rate": found.stagnation,
                f"{way}, {name}: value_quant_step_median / spread": found.quant_step,
                f"{way}, {name}: spacing / spread": found.ulp,
            }
    return figures | _differences(figures)


def _differences(figures: Mapping[str, float]) -> dict[str, float]:
    def lost(way: str, name: str) -> float:
        """Variance that FP32 explains and *way* does not."""
        of_fp32 = figures[f"fp32 value, {name}: explained variance"]
        return of_fp32 - figures[f"{way}, {name}: explained variance"]

    beyond = {
        f"bf16 value: variance lost by {name} beyond scale 1": lost("bf16 value", name)
        - lost("bf16 value", "scale 1")
        for name in RETURNS
        if name != "scale 1"
    }
    pure = lost("bf16 value", "offset 10000")
    masters = lost("bf16 value with FP32 weights", "offset 10000")
    return {
        **beyond,
        "share of the loss at offset 10000 that FP32 weights cure": 1 - masters / pure,
    }


def features_and_returns(material: Material) -> tuple[Tensor, Tensor]:
    """Standardised features [N, H] and returns [N], float32, of the tokens of all completions."""
    batch = material.completions
    mask_BS = batch.response_mask_BS
    features_NH = material.features_BTH[:, :-1][mask_BS]
    features_NH = (features_NH - features_NH.mean(0)) / (features_NH.std(0) + 1e-6)
    generator = torch.Generator().manual_seed(material.seed)
    signal_N = features_NH @ torch.randn(features_NH.shape[1], generator=generator)
    noise_N = torch.randn(len(signal_N), generator=generator)
    returns_N = signal_N / signal_N.std() + _NOISE * noise_N
    return features_NH, (returns_N - returns_N.mean()) / returns_N.std()


def train_head(
    features_NH: Tensor,
    returns_N: Tensor,
    types: RolePrecision,
    *,
    scale: float,
    offset: float,
    seed: int,
) -> Trained:
    """Train a linear head in *types* on ``scale * returns_N + offset`` with AdamW."""
    targets_N = returns_N * scale + offset
    torch.manual_seed(seed)
    head = nn.Linear(features_NH.shape[1], 1)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(offset)
    head.to(Precision(types.store).compute)
    forward = PrecisionForward(head, CPU, Precision(types.compute))
    out = Precision(types.out).compute
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=_LEARNING_RATE * scale, weight_decay=0.0, eps=1e-7
    )
    stagnation: list[float] = []
    values_N = torch.empty(0)
    for step in range(_STEPS):
        before_N = values_N
        values_N = forward(features_NH)[:, 0].to(out)
        if step >= _STEPS - _WATCHED:
            stagnation.append(stagnation_rate(values_N, before_N, precision=types.out))
        error_N = (values_N - targets_N.to(out)) / scale
        optimizer.zero_grad()
        error_N.square().mean().backward()
        optimizer.step()
    values_N = forward(features_NH)[:, 0].to(out).detach()
    spread = targets_N.double().std().item()
    seen = measure_values(
        values_N[None], torch.ones(1, len(values_N), dtype=torch.bool), precision=types.out
    )
    error = (values_N.double() - targets_N.double()).square().mean().item()
    return Trained(
        explained=max(1 - error / spread**2, 0.0),
        stagnation=sum(stagnation) / len(stagnation),
        quant_step=seen.value_quant_step_median / spread,
        ulp=seen.value_ulp_median / spread,
    )
