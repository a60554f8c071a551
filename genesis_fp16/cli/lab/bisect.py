"""``genesis-fp16 lab bisect``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from genesis_fp16.cli.lab.errors import plain_errors
from genesis_fp16.cli.lab.frozen import repeat
from genesis_fp16.cli.lab.options import RESULTS, DeviceOrSettingOption, FrozenArgument
from genesis_fp16.cli.output import print_line, print_table


def bisect(
    frozen: FrozenArgument,
    preset: Annotated[
        str | None,
        typer.Option("--preset", help="Preset; by default fp16, of a policy bf16_pure."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", help="Folder of the results; writes bisect.json.")
    ] = RESULTS,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=1, help="Allowed multiple of the noise floor.")
    ] = 8.0,
    device: DeviceOrSettingOption = None,
) -> None:
    """Find the role, module and operation that lose most under PRESET, and the cure."""
    with plain_errors():
        from infrastructure.events.role_precision import default_preset, find_preset
        from infrastructure.precision_lab.bisect import bisect_folder
        from infrastructure.precision_lab.frozen import FrozenFolder
        from infrastructure.precision_lab.results import read_object

        if preset is not None:
            find_preset(preset)
        folder = FrozenFolder(frozen)
        preset = preset or default_preset(folder.manifest.kind)
        repeat(
            folder,
            "bisect",
            {"preset": preset, "tolerance": tolerance},
            output=output,
            device=device,
            here=lambda experiment, progress: bisect_folder(
                folder, experiment, preset, output, tolerance, progress
            ),
        )
        result = read_object(output / "bisect.json")
    _print_result(result)
    print_line(f"written to {output / 'bisect.json'}")


def _print_result(result: Mapping[str, Any]) -> None:
    half, trainer, culprits = result["half"], result["trainer"], result["culprits"]
    print_line(
        f"half precision: {_times(half)}; by the trainer's own forward passes: {_times(trainer)}"
    )
    if not culprits:
        print_line(
            f"no culprit: up to {float(result['tolerance']):g} times the noise floor is expected"
        )
    else:
        columns = ("place", "share of the error", "alone in half", "only together with")
        rows = [
            (
                culprit["place"],
                f"{float(culprit['share']):.0%}",
                _times(culprit["alone"]),
                ", ".join(culprit["partners"]),
            )
            for culprit in culprits
        ]
        print_table(columns, rows)
        print_line(
            f"with these settings: {_times(result['with_cure'])}, and "
            f"{result['time_ratio']:.2f} times the duration on this device"
        )
        for line in result["settings"]:
            print_line(f"  {line}")
    print_line(
        f"{result['runs']} repetitions, {result['seconds']:.1f} s, {result['places']} places"
    )


def _times(deviation: Mapping[str, Any]) -> str:
    ratio, quantity = float(deviation["ratio"]), deviation["quantity"]
    if not math.isfinite(ratio):
        return f"{quantity} not finite" if quantity else str(deviation["error"])
    return f"{ratio:.1f} times the noise floor in {quantity}" if ratio else "as in FP32"
