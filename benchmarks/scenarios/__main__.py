"""``python -m benchmarks.scenarios``: whole trainings in half precision and in FP32.

A small world model on synthetic trajectories: the same data, seeds and steps in each precision.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch
from torch.nn import functional

from benchmarks.measuring.machine import describe
from benchmarks.measuring.not_run import NotRunError
from benchmarks.measuring.observe import effective_precision, refuse_precisions
from benchmarks.measuring.plot import plot_bars
from benchmarks.measuring.spread import Spread
from benchmarks.measuring.table import format_table, write_csv
from benchmarks.measuring.timing import interleave, seconds_of
from benchmarks.scenarios.trajectories import build_data, build_world_model
from benchmarks.step.loops import HALF_DTYPES, Requested, adamw, mse
from benchmarks.step.models import Batch
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.precision import resolve_device

COLUMNS = (
    "device", "torch", "scenario", "epochs", "trajectories", "requested", "effective", "reason",
    "fp32_duration_s", "duration_s", "speedup", "low_quartile", "high_quartile", "overflow_rate",
    "fp32_held_out_loss", "held_out_loss", "remark",
)  # fmt: skip
OUTPUT = Path("benchmark_results")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Size of a training: epochs, and trajectories in each."""

    name: str
    epochs: int
    trajectories: int


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="warmup", epochs=1, trajectories=128),
        Scenario(name="standard", epochs=3, trajectories=256),
        Scenario(name="stress", epochs=5, trajectories=512),
    )
}


class Training:
    """A scenario in one precision; every `run` starts with the same weights.

    Args:
        scenario: Size of the training.
        precision: Requested precision.
        device: Device to train on.
        cpu_half: See `FP16TrainingConfig`.
        seed: Seed of data and weights.

    Attributes:
        effective: Precision in which products were computed.
        trainer: Trainer of the last run.
    """

    def __init__(
        self,
        scenario: Scenario,
        precision: Requested,
        device: torch.device,
        *,
        cpu_half: bool,
        seed: int,
    ) -> None:
        self._scenario, self._device, self._seed = scenario, device, seed
        self._config = FP16TrainingConfig(precision=Precision(precision), cpu_half=cpu_half)
        self._batches, self._held_out = build_data(scenario.trajectories, device, seed)
        self.trainer = self._new_trainer()
        self.effective = effective_precision(lambda: self._train(self._batches[:2]), device)

    def _new_trainer(self) -> FP16Trainer:
        model = build_world_model(self._device, self._seed)
        return FP16Trainer(model, adamw(model), self._config)

    def _train(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self.trainer.step(self.trainer.training_step(batch, mse))

    def run(self) -> float:
        """Train from the start; return the seconds."""
        self.trainer = self._new_trainer()
        batches = self._batches * self._scenario.epochs
        return seconds_of(lambda: self._train(batches), self._device)

    def held_out_loss(self) -> float:
        """Return the held-out loss of the current model, evaluated in FP32."""
        with torch.no_grad():
            predicted = self.trainer.model(self._held_out.x)
            return functional.mse_loss(predicted, self._held_out.y).item()


def compare(
    scenario: Scenario,
    precisions: Sequence[Requested],
    device: torch.device,
    *,
    cpu_half: bool,
    rounds: int,
    seed: int,
) -> list[dict[str, str]]:
    """Train in FP32 and each of *precisions*, interleaved; return a row of `COLUMNS` for each.

    The speed-up is FP32's time ÷ the other's; it is refused if both computed the same.
    """
    trainings = {
        precision: Training(scenario, precision, device, cpu_half=cpu_half, seed=seed)
        for precision in dict.fromkeys(["fp32", *precisions])
    }
    costs = interleave({name: one.run for name, one in trainings.items()}, rounds, seed)
    seconds = {name: [cost[name] for cost in costs] for name in trainings}
    return [_row(scenario, precision, trainings, seconds) for precision in precisions]


def _row(
    scenario: Scenario,
    precision: Requested,
    trainings: dict[Requested, Training],
    seconds: dict[Requested, list[float]],
) -> dict[str, str]:
    half, full = trainings[precision], trainings["fp32"]
    row = {
        "scenario": scenario.name,
        "epochs": str(scenario.epochs),
        "trajectories": str(scenario.trajectories),
        "requested": precision,
        "effective": half.effective,
        "reason": half.trainer.precision_state.reason,
        "fp32_duration_s": f"{Spread.of(seconds['fp32']).median:.3f}",
        "duration_s": f"{Spread.of(seconds[precision]).median:.3f}",
        "overflow_rate": f"{half.trainer.get_stats()['overflow_rate']:.4f}",
        "fp32_held_out_loss": f"{full.held_out_loss():.6f}",
        "held_out_loss": f"{half.held_out_loss():.6f}",
    }
    if refusal := refuse_precisions(half.effective, full.effective):
        return {**dict.fromkeys(COLUMNS, ""), **row, "remark": f"speed-up refused: {refusal}"}
    pairs = zip(seconds["fp32"], seconds[precision], strict=True)
    spread = Spread.of([below / above for below, above in pairs])
    figures = {"speedup": spread.median, "low_quartile": spread.low, "high_quartile": spread.high}
    return {
        **dict.fromkeys(COLUMNS, ""),
        **row,
        **{name: f"{value:.3f}" for name, value in figures.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print, and write ``fp16_vs_fp32_results.csv`` and ``fp16_vs_fp32_plot.png``."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    # The table contains what the trainer would log about its precision.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    device = resolve_device(options.device)
    machine = describe(device)
    print(f"{machine['device']}, torch {machine['torch']}", flush=True)
    rows = [
        row
        for name in options.scenario or SCENARIOS
        for row in compare(
            SCENARIOS[name],
            options.precision,
            device,
            cpu_half=options.cpu_half,
            rounds=options.rounds,
            seed=options.seed,
        )
    ]
    print(format_table(rows, COLUMNS))
    path = options.output / "fp16_vs_fp32_results.csv"
    write_csv(path, [{**row, **machine} for row in rows], COLUMNS)
    print(f"Benchmark results saved to {path}; {_plot(options.output, rows)}")
    return 0


def _plot(folder: Path, rows: Sequence[dict[str, str]]) -> str:
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        bars = groups.setdefault(row["scenario"], {"fp32": float(row["fp32_duration_s"])})
        requested, computed = row["requested"], row["effective"]
        label = requested if requested == computed else f"{requested} (computed {computed})"
        bars[label] = float(row["duration_s"])
    path = folder / "fp16_vs_fp32_plot.png"
    try:
        plot_bars(path, "training a small world model", "seconds", groups)
    except NotRunError as error:
        return f"no plot: {error}"
    return f"plot at {path}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, help="default: all")
    parser.add_argument(
        "--precision", nargs="+", choices=HALF_DTYPES, default=["fp16"], help="compared with fp32"
    )
    parser.add_argument("--cpu-half", action="store_true", help="half precision on a CPU too; slow")
    parser.add_argument("--rounds", type=int, default=5, help="trainings in each precision")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, data and orders")
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help="folder of the CSV file and the plot"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
