"""``genesis-fp16 lab compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genesis_fp16.cli.lab.errors import plain_errors
from genesis_fp16.cli.lab.options import RESULTS, SMALL, BaseModelOption, DeviceOption
from genesis_fp16.cli.lab.progress import progress_lines
from genesis_fp16.cli.output import print_line, print_table

if TYPE_CHECKING:
    from infrastructure.precision_lab.static_comparison import ComparisonResult


def compare(
    output: Annotated[
        Path, typer.Option("--output", help="Folder of the results; files go into probe/.")
    ] = RESULTS,
    base_model: BaseModelOption = SMALL,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Number of sequences.")] = 8,
    lengths: Annotated[
        list[int] | None,
        typer.Option("--length", min=2, help="Tokens of a sequence; by default 64, 128, 256."),
    ] = None,
    temperatures: Annotated[
        list[float] | None,
        typer.Option("--temperature", help="Divisor of the logits; by default 0.5 and 1."),
    ] = None,
    dtypes: Annotated[
        list[str] | None, typer.Option("--dtype", help="bf16 or fp16; by default both.")
    ] = None,
    device: DeviceOption = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Decides weights and sequences.")] = 0,
) -> None:
    """Compare one forward pass in FP32 with the same in BF16 and FP16; train nothing."""
    with plain_errors():
        from infrastructure.precision_lab.static_comparison import (
            ComparisonRequest,
            half_types,
            run_comparison,
        )

        result = run_comparison(
            ComparisonRequest(
                base_model=base_model,
                prompts=prompts,
                lengths=tuple(lengths or (64, 128, 256)),
                temperatures=tuple(temperatures or (0.5, 1.0)),
                dtypes=half_types(dtypes or ("bf16", "fp16")),
                device=device,
                seed=seed,
            ),
            output,
            progress=progress_lines(),
        )
    _print_result(result)
    print_line(f"written to {output / 'probe'}")


def _print_result(result: ComparisonResult) -> None:
    print_table(
        ("dtype", "temperature", "length", "tokens", "logits rounded", "real", "kernels add", "KL"),
        [
            (
                row.dtype,
                row.temperature,
                row.seq_length,
                row.tokens,
                _short(row.simulated_logp_error_mean),
                _short(row.real_logp_error_mean),
                _short(row.kernel_contribution),
                _short(row.real_kl),
            )
            for row in result.by_length
        ],
    )
    print_line("mean error of log-probabilities and mean KL of a token, in nats")
    for reason in result.not_measured:
        print_line(f"not measured: {reason}")


def _short(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2e}"
