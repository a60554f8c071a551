"""``genesis-fp16 lab replay``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from genesis_fp16.cli.lab.errors import plain_errors
from genesis_fp16.cli.lab.frozen import repeat
from genesis_fp16.cli.lab.options import RESULTS, DeviceOrSettingOption, FrozenArgument
from genesis_fp16.cli.output import print_line, print_table


def replay(
    frozen: FrozenArgument,
    preset: Annotated[str, typer.Option("--preset", help="Name of a preset, or all.")] = "all",
    output: Annotated[
        Path, typer.Option("--output", help="Folder of the results; files go into replay/.")
    ] = RESULTS,
    device: DeviceOrSettingOption = None,
) -> None:
    """Repeat a frozen experiment under PRESET and measure what differs from FP32."""
    with plain_errors():
        from infrastructure.precision_lab.frozen import FrozenFolder
        from infrastructure.precision_lab.replay import chosen_presets, replay_folder
        from infrastructure.precision_lab.results import read_object

        folder = FrozenFolder(frozen)
        presets = chosen_presets(preset, folder.manifest.weights)
        repeat(
            folder,
            "replay",
            {"preset": preset},
            output=output,
            device=device,
            here=lambda experiment, progress: replay_folder(
                folder, experiment, preset, output, progress
            ),
        )
        results = [read_object(output / "replay" / f"{chosen.name}.json") for chosen in presets]
    _print_results(results)
    print_line(f"written to {output / 'replay'}")


def _print_results(results: Iterable[Mapping[str, Any]]) -> None:
    columns = ("preset", "loss", "gradient", "log-probs", "KL", "mismatch", "loss scale", "")
    rows = []
    for result in results:
        metrics = result.get("metrics", {})
        rows.append(
            (
                result["preset"],
                _short(result["errors"]["loss"]["abs_err_mean"]),
                _short(result["gradients"]["relative_error"]),
                _short(result["errors"].get("log_probs", {}).get("abs_err_mean")),
                _short(metrics.get("kl_penalty_mean")),
                _short(metrics.get("mismatch_k3")),
                f"{result['loss_scale']:g}",
                f"not finite: {', '.join(result['not_finite'][:3])}"
                if result["not_finite"]
                else "",
            )
        )
    print_table(columns, rows)
    print_line(
        "loss and log-probs: mean absolute error against FP32; gradient: relative error; KL: mean "
        "penalty of a token; mismatch: k3 of rollout and trainer with the same weights, in nats"
    )


def _short(value: float | str | None) -> str:
    """A figure of a result, where those that are not finite are text."""
    if value is None:
        return ""
    number = float(value)
    return f"{number:.2e}" if math.isfinite(number) else "not finite"
