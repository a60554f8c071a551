"""``genesis-fp16 lab``: the precision lab. Every command imports what it needs when called."""

from __future__ import annotations

import errno
import math
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from genesis_fp16.cli.output import print_line, print_table, print_warning
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.settings import load_settings

if TYPE_CHECKING:
    import torch

    from genesis_fp16.settings import Settings
    from infrastructure.precision_lab.sweep import SweepPlan

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

SMALL = "small"
OutputOption = Annotated[Path, typer.Option("--output", help="Folder of the results.")]
BaseModelOption = Annotated[
    str, typer.Option("--base-model", help="Folder of a model; small is a policy trained here.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
UpdatesOption = Annotated[
    int | None, typer.Option("--updates", min=1, help="Optimizer updates of a cell.")
]
BatchSizeOption = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="Completions of a round.")
]
TaskRewardFlag = Annotated[
    bool, typer.Option("--task-reward", help="Reward by the task's score, without a reward model.")
]
QuickFlag = Annotated[
    bool, typer.Option("--quick", help="Few updates: shows that it works, compares nothing.")
]


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
    except (LabError, MisconfiguredError, PresetError) as error:
        raise LabFailedError(str(error)) from error
    except OSError as error:
        kept = "; free some space and repeat the command: finished results are kept"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise LabFailedError(f"{error}{kept if full else ''}") from error


@app.command("probe")
def probe(
    output: Annotated[
        Path, typer.Option("--output", help="Folder of the results; files go into probe/.")
    ] = Path("results"),
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


@app.command("freeze")
def freeze(
    folder: Annotated[Path, typer.Argument(help="New folder for the frozen experiment.")],
    agent: Annotated[
        str | None,
        typer.Option("--agent", help="Installed agent whose job is frozen; by default policy."),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            "--base-model",
            help="Language model in place of an agent: a folder, FOLDER/FILE.gguf, or small.",
        ),
    ] = None,
    batches: Annotated[int, typer.Option("--batches", min=1, help="Batches to freeze.")] = 4,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=2, help="Sequences in a batch of a policy.")
    ] = 8,
    steps: Annotated[
        int, typer.Option("--steps", min=0, help="Steps of a world model before the freeze.")
    ] = 100,
    rounds: Annotated[
        int, typer.Option("--rounds", min=0, help="Rounds of a policy after its warm-up.")
    ] = 5,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="Of a completion of the base model.")
    ] = 32,
    updates: Annotated[
        int, typer.Option("--updates", min=1, help="Updates of the base model between its weights.")
    ] = 2,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", min=0.0, help="Of these updates.")
    ] = 1e-5,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of everything that is drawn.")] = 0,
    device: Annotated[
        str | None,
        typer.Option("--device", help="auto, cpu, cuda or cuda:N; by default GENESIS_DEVICE."),
    ] = None,
) -> None:
    """Freeze weights, batches and everything else that a repetition in any precision needs.

    An agent's code runs in a child process, which trains its job a little in FP32 first.
    """
    settings = load_settings()
    if device is not None:
        settings = settings.model_copy(update={"device": device})
    if base_model is None:
        size = {"batches": batches, "batch_size": batch_size, "steps": steps, "rounds": rounds}
        _in_worker(settings, agent or "policy", "freeze", folder, folder, seed, dict(size))
    elif agent is not None:
        raise LabFailedError("--agent and --base-model exclude each other: name one of them")
    else:
        with plain_errors():
            _freeze_base_model(
                folder,
                base_model,
                _device(settings.device),
                seed,
                {
                    "batches": batches,
                    "batch_size": batch_size,
                    "max_new_tokens": max_new_tokens,
                    "updates": updates,
                    "learning_rate": learning_rate,
                },
            )
    print_line(f"frozen in {folder}")


def _freeze_base_model(
    folder: Path, base_model: str, device: torch.device, seed: int, size: dict[str, Any]
) -> None:
    from infrastructure.precision_lab.freezing import BaseModelSize, base_model_experiment
    from infrastructure.precision_lab.frozen import check_new, save_policy_experiment
    from infrastructure.precision_lab.small_policy import base_policy

    check_new(folder)
    sizes = BaseModelSize(**size)
    base = base_policy(base_model, seed=seed, prompts=sizes.batches * sizes.batch_size)
    experiment = base_model_experiment(base, device, sizes, seed=seed)
    save_policy_experiment(folder, experiment, source={"base_model": base.name}, seed=seed)


def _in_worker(
    settings: Settings,
    agent: str,
    command: str,
    frozen: Path,
    results: Path,
    seed: int,
    options: dict[str, Any],
) -> None:
    """Have a worker do a command with *agent*'s job.

    Raises:
        AgentTaskError: It was not done.
    """
    from genesis_fp16.daemon.agent_task import run_agent_task
    from genesis_fp16.domain.run_spec import LabRequest

    request = LabRequest(
        command=command,
        frozen=frozen.absolute(),
        results=results.absolute(),
        seed=seed,
        options=options,
    )
    done = "frozen" if command == "freeze" else "repeated"
    run_agent_task(settings, agent, "lab", "fp32", done=done, lab=request)


@app.command("replay")
def replay(
    frozen: Annotated[Path, typer.Argument(help="Folder that lab freeze has written.")],
    preset: Annotated[str, typer.Option("--preset", help="Name of a preset, or all.")] = "all",
    output: Annotated[
        Path, typer.Option("--output", help="Folder of the results; files go into replay/.")
    ] = Path("results"),
    device: Annotated[
        str | None,
        typer.Option("--device", help="auto, cpu, cuda or cuda:N; by default GENESIS_DEVICE."),
    ] = None,
) -> None:
    """Repeat a frozen experiment under PRESET and measure what differs from FP32."""
    settings = load_settings()
    if device is not None:
        settings = settings.model_copy(update={"device": device})
    with plain_errors():
        from infrastructure.precision_lab.frozen import FrozenFolder, load_policy_experiment
        from infrastructure.precision_lab.replay import chosen_presets, replay_folder
        from infrastructure.precision_lab.results import read_object

        folder = FrozenFolder(frozen)
        of_agent = folder.manifest.agent
        presets = chosen_presets(preset, folder.manifest.weights)
        if of_agent is None:
            folder.verify()
            experiment = load_policy_experiment(folder, _device(settings.device))
            replay_folder(folder, experiment, preset, output)
        else:
            _in_worker(
                *(settings, of_agent.name, "replay", frozen, output, of_agent.seed),
                {"preset": preset},
            )
        found = [read_object(output / "replay" / f"{each.name}.json") for each in presets]
    _print_replays(found)
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


@app.command("bisect")
def bisect(
    frozen: Annotated[Path, typer.Argument(help="Folder that lab freeze has written.")],
    preset: Annotated[str, typer.Option("--preset", help="Name of a preset.")] = "bf16_pure",
    output: Annotated[
        Path, typer.Option("--output", help="Folder of the results; writes bisect.json.")
    ] = Path("results"),
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=1, help="Allowed multiple of the noise floor.")
    ] = 8.0,
    device: Annotated[
        str | None,
        typer.Option("--device", help="auto, cpu, cuda or cuda:N; by default GENESIS_DEVICE."),
    ] = None,
) -> None:
    """Find the role, module and operation that lose most under PRESET, and the cure."""
    settings = load_settings()
    if device is not None:
        settings = settings.model_copy(update={"device": device})
    with plain_errors():
        from infrastructure.events.role_precision import find_preset
        from infrastructure.precision_lab.bisect import bisect_folder
        from infrastructure.precision_lab.frozen import FrozenFolder, load_policy_experiment
        from infrastructure.precision_lab.results import read_object

        find_preset(preset)
        folder = FrozenFolder(frozen)
        of_agent = folder.manifest.agent
        if of_agent is None:
            folder.verify()
            experiment = load_policy_experiment(folder, _device(settings.device))
            bisect_folder(folder, experiment, preset, output, tolerance)
        else:
            _in_worker(
                *(settings, of_agent.name, "bisect", frozen, output, of_agent.seed),
                {"preset": preset, "tolerance": tolerance},
            )
        result = read_object(output / "bisect.json")
    _print_bisection(result)
    print_line(f"written to {output / 'bisect.json'}")


def _print_bisection(result: Mapping[str, Any]) -> None:
    half, trainer, culprits = result["half"], result["trainer"], result["culprits"]
    print_line(
        f"half precision: {_times(half)}; by the trainer's own forward passes: {_times(trainer)}"
    )
    if not culprits:
        print_line(f"no culprit: up to {result['tolerance']:g} times the noise floor is expected")
    else:
        columns = ("place", "share of the error", "alone in half", "only together with")
        rows = [
            (
                each["place"],
                f"{float(each['share']):.0%}",
                _times(each["alone"]),
                ", ".join(each["partners"]),
            )
            for each in culprits
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


class _CellOptions(NamedTuple):
    """What all cells of a sweep share; None for the default."""

    updates: int | None
    batch_size: int | None
    base_model: str
    task_reward: bool
    device: str
    quick: bool
    timeout: float | None = None


@app.command("ppo-sweep")
def ppo_sweep(
    preset: Annotated[str, typer.Argument(help="Preset of precisions, such as bf16_pure.")],
    output: OutputOption = Path("results"),
    seed: Annotated[int, typer.Option("--seed", help="Decides weights and completions.")] = 0,
    updates: UpdatesOption = None,
    batch_size: BatchSizeOption = None,
    base_model: BaseModelOption = SMALL,
    task_reward: TaskRewardFlag = False,
    device: DeviceOption = "auto",
    quick: QuickFlag = False,
) -> None:
    """Train a policy by PPO under one preset from one seed: one cell of a sweep."""
    options = _CellOptions(updates, batch_size, base_model, task_reward, device, quick)
    _run_sweep(output, _plan([preset], [seed], options), jobs=1)


@app.command("sweep")
def sweep(
    output: OutputOption = Path("results"),
    presets: Annotated[
        list[str] | None, typer.Option("--preset", help="One of several; by default all.")
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="One of several; by default 0 to 4.")
    ] = None,
    updates: UpdatesOption = None,
    batch_size: BatchSizeOption = None,
    base_model: BaseModelOption = SMALL,
    task_reward: TaskRewardFlag = False,
    device: DeviceOption = "auto",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Cells that run at once.")] = 1,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds after which a cell has failed.")
    ] = None,
    quick: QuickFlag = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, and write nothing.")
    ] = False,
    repeat_failed: Annotated[
        bool, typer.Option("--repeat-failed", help="Run cells again that have failed.")
    ] = False,
) -> None:
    """Train a policy by PPO under every preset, from each seed. Repeat the command to resume."""
    from infrastructure.events.role_precision import PRESETS

    options = _CellOptions(updates, batch_size, base_model, task_reward, device, quick, timeout)
    plan = _plan(presets or list(PRESETS), seeds or list(range(1 if quick else 5)), options)
    if dry_run:
        _show_plan(output, plan, repeat_failed=repeat_failed)
    else:
        _run_sweep(output, plan, jobs=jobs, repeat_failed=repeat_failed)


def _plan(presets: list[str], seeds: list[int], options: _CellOptions) -> SweepPlan:
    with plain_errors():
        from infrastructure.precision_lab.ppo.settings import CellSettings
        from infrastructure.precision_lab.sweep import SweepPlan
        from infrastructure.training.precision import resolve_device

        settings = CellSettings(
            device=str(resolve_device(options.device)), task_reward=options.task_reward
        )
        if options.quick:
            settings = settings.quick()
        given: dict[str, Any] = {
            "updates": options.updates,
            "completions": options.batch_size,
            "timeout_seconds": options.timeout,
            "base_model": None
            if options.base_model == SMALL
            else str(Path(options.base_model).resolve()),
        }
        chosen = {name: value for name, value in given.items() if value is not None}
        settings = replace(settings, **chosen)
        return SweepPlan(presets=tuple(presets), seeds=tuple(seeds), settings=settings)


def _show_plan(output: Path, plan: SweepPlan, *, repeat_failed: bool) -> None:
    with plain_errors():
        from infrastructure.precision_lab.sweep import cells_to_run

        waiting = cells_to_run(plan, output, repeat_failed=repeat_failed)
    print_table(
        ("preset", "seed", "state"),
        [(c.preset, c.seed, "would run" if c in waiting else "has ended") for c in plan.cells],
    )
    print_line(
        f"{len(waiting)} of {len(plan.cells)} cells would run, {plan.settings.updates} updates each"
    )


def _run_sweep(output: Path, plan: SweepPlan, *, jobs: int, repeat_failed: bool = False) -> None:
    with plain_errors(), _interrupted_by_sigterm():
        from infrastructure.precision_lab.sweep import run_sweep

        result = run_sweep(
            plan,
            output,
            jobs=jobs,
            repeat_failed=repeat_failed,
            emit=lambda line: typer.echo(line, err=True),
        )
    print_table(("cells", "number"), result.counts.items())
    if result.interrupted:
        print_line(f"interrupted; repeat the command to run the rest; written to {output}")
        raise typer.Exit(128 + signal.SIGINT)
    print_line(f"written to {output}")


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """End a sweep at SIGTERM as at Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
