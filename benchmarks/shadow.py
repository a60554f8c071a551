"""``python -m benchmarks.shadow``: cost per training step of the comparison with FP32."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from benchmarks.measuring.machine import describe
from benchmarks.measuring.spread import Spread
from benchmarks.measuring.timing import interleave, seconds_of
from benchmarks.step.models import SIZES, Size, build_batches, build_model
from genesis_fp16.settings import Settings
from infrastructure.agent_contract import Forward
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.diagnostics import Fp32Shadow
from infrastructure.training.precision import resolve_device

Batch = Mapping[str, Tensor]


def squared_error(forward: Forward, batch: Batch) -> Tensor:
    """Return the mean squared error."""
    return nn.functional.mse_loss(forward(batch["x"]), batch["y"])


def measure_costs(
    size: Size, precision: Precision, device: torch.device, *, rounds: int, seed: int
) -> tuple[Spread, Spread]:
    """Return the seconds of a step, and the ratio of a comparison to a step in the same round."""
    model = build_model(size, device, seed)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    config = FP16TrainingConfig(precision=precision, cpu_half=True)
    trainer = FP16Trainer(model, optimizer, config)
    x, y = build_batches(size, device, seed)[0]
    batch = {"x": x, "y": y}
    shadow = Fp32Shadow(model, squared_error, batch, device)
    trainer_steps, comparisons = max(8, size.cpu_steps), max(2, size.cpu_steps // 4)

    def train() -> None:
        for _ in range(trainer_steps):
            trainer.step(trainer.training_step(batch, squared_error))

    def compare() -> None:
        for _ in range(comparisons):
            scale = float(trainer.get_stats()["current_scale"])
            shadow.compare(step=0, precision=precision, loss_scale=scale)

    train()
    compare()
    found = interleave(
        {
            "step": lambda: seconds_of(train, device) / trainer_steps,
            "comparison": lambda: seconds_of(compare, device) / comparisons,
        },
        rounds,
        seed,
    )
    ratios = [each["comparison"] / each["step"] for each in found]
    return Spread.of([each["step"] for each in found]), Spread.of(ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print, for each size and half precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "small", "medium"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, data and orders")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    device, interval = resolve_device(options.device), Settings().baseline_interval_steps
    machine = describe(device)
    print(f"{machine['device']}, torch {machine['torch']}; one comparison in {interval} steps")
    for name in options.sizes:
        for precision in (Precision.FP16, Precision.BF16):
            size = SIZES[name]
            if device.type == "cpu" and precision is Precision.FP16 and not size.cpu_fp16:
                continue  # emulated: the figure would mean nothing
            step, ratio = measure_costs(
                size, precision, device, rounds=options.rounds, seed=options.seed
            )
            print(
                f"{name} {precision}: a step {1e3 * step.median:.2f} ms, a comparison "
                f"{ratio.median:.1f} steps ({ratio.low:.1f} to {ratio.high:.1f}): "
                f"{ratio.median / interval:.2%} of the training"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
