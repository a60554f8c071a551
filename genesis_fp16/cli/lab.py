"""``genesis-fp16 lab``: the precision lab. Every command imports what it needs when called."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genesis_fp16.cli.output import print_line, print_table, print_warning
from genesis_fp16.domain.errors import GenesisError

if TYPE_CHECKING:
    import torch

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def options() -> None:
    """Freeze a piece of training, repeat it in any precision, find what half precision costs."""


class LabFailedError(GenesisError):
    """A command of the lab cannot do what it was asked to."""

    exit_code = os.EX_DATAERR


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors that name a remedy, of the library and the disk, into one message.

    Raises:
        LabFailedError: One of them was raised inside.
    """
    from infrastructure.agent_contract.agent import MisconfiguredError
    from infrastructure.events.role_precision import PresetError
    from infrastructure.precision_lab import LabError

    try:
        yield
    except (LabError, MisconfiguredError, PresetError, OSError) as error:
        raise LabFailedError(str(error)) from error


@app.command("probe")
def probe(
    output: Annotated[
        Path, typer.Option("--output", help="Folder of the results; files go into probe/.")
    ] = Path("results"),
    base_model: Annotated[
        str, typer.Option("--base-model", help="Folder of a model; small is a policy trained here.")
    ] = "small",
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
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Decides weights and sequences.")] = 0,
) -> None:
    """Compare one forward pass in FP32 with the same in BF16 and FP16; train nothing."""
    with plain_errors():
        from infrastructure.precision_lab.probe import ProbeRequest, half_types, run_probe

        result = run_probe(
            ProbeRequest(
                base_model=base_model,
                prompts=prompts,
                lengths=tuple(lengths or (64, 128, 256)),
                temperatures=tuple(temperatures or (0.5, 1.0)),
                dtypes=half_types(dtypes or ("bf16", "fp16")),
                device=device,
                seed=seed,
            ),
            output,
        )
    print_table(
        ("dtype", "temperature", "length", "tokens", "logits rounded", "real", "kernels add", "KL"),
        [
            (
                row.dtype,
                row.temperature,
                row.seq_length,
                row.tokens,
                *map(
                    _short,
                    (
                        row.simulated_logp_error_mean,
                        row.real_logp_error_mean,
                        row.kernel_contribution,
                        row.real_kl,
                    ),
                ),
            )
            for row in result.by_length
        ],
    )
    print_line("mean error of log-probabilities and mean KL of a token, in nats")
    for reason in result.not_measured:
        print_line(f"not measured: {reason}")
    print_line(f"written to {output / 'probe'}")


def _short(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2e}"


@app.command("replay")
def replay(
    frozen: Annotated[Path, typer.Argument(help="Folder that lab freeze has written.")],
    preset: Annotated[str, typer.Option("--preset", help="Name of a preset, or all.")] = "all",
    output: Annotated[
        Path, typer.Option("--output", help="Folder of the results; files go into replay/.")
    ] = Path("results"),
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Repeat a frozen experiment under PRESET and measure what differs from FP32."""
    with plain_errors():
        from infrastructure.precision_lab.frozen import FrozenFolder, load_policy_experiment
        from infrastructure.precision_lab.replay import chosen_presets, replay_folder

        chosen_presets(preset)
        folder = FrozenFolder(frozen)
        folder.verify()
        experiment = load_policy_experiment(folder, _device(device))
        results: list[Mapping[str, Any]] = []
        replay_folder(folder, experiment, preset, output, results.append)
    _print_replays(results)
    print_line(f"written to {output / 'replay'}")


def _print_replays(results: Iterable[Mapping[str, Any]]) -> None:
    columns = ("preset", "loss", "gradient", "log-probs", "KL", "mismatch", "loss scale", "")
    rows = []
    for each in results:
        metrics = each.get("metrics", {})
        rows.append(
            (
                each["preset"],
                _figure(each["errors"]["loss"]["abs_err_mean"]),
                _figure(each["gradients"]["relative_error"]),
                _figure(each["errors"].get("log_probs", {}).get("abs_err_mean")),
                _figure(metrics.get("kl_penalty_mean")),
                _figure(metrics.get("mismatch_k3")),
                f"{each['loss_scale']:g}",
                f"not finite: {', '.join(each['not_finite'][:3])}" if each["not_finite"] else "",
            )
        )
    print_table(columns, rows)
    print_line(
        "loss and log-probs: mean absolute error against FP32; gradient: relative error; KL: mean "
        "penalty of a token; mismatch: k3 of rollout and trainer with the same weights, in nats"
    )


def _device(name: str) -> torch.device:
    from infrastructure.training.precision import resolve_device

    try:
        return resolve_device(name)
    except ValueError as error:
        raise LabFailedError(str(error)) from error


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2e}" if math.isfinite(value) else "not finite"


@app.command("report")
def report(
    results: Annotated[Path, typer.Argument(help="Folder of the results.")] = Path("results"),
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder of the report; that of the results.")
    ] = None,
) -> None:
    """Write report.html, which opens offline, and report.md with its figures."""
    with plain_errors():
        from infrastructure.precision_lab.report import write_report

        written = write_report(results, output or results)
    for problem in written.problems:
        print_warning(problem)
    for sentence in written.verdict:
        print_line(sentence)
    print_line(f"written to {written.html} and {written.markdown}")
