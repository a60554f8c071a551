"""``genesis-fp16 lab sweep`` and ``lab ppo-sweep``."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from genesis_fp16.cli.lab.errors import plain_errors
from genesis_fp16.cli.lab.frozen import resolved_device
from genesis_fp16.cli.lab.options import RESULTS, SMALL, BaseModelOption, DeviceOption
from genesis_fp16.cli.lab.progress import print_progress
from genesis_fp16.cli.output import print_line, print_table

if TYPE_CHECKING:
    from infrastructure.precision_lab.sweep import SweepPlan

OutputOption = Annotated[Path, typer.Option("--output", help="Folder of the results.")]
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


class _CellOptions(NamedTuple):
    """What all cells of a sweep share; None for the default."""

    updates: int | None
    batch_size: int | None
    base_model: str
    task_reward: bool
    device: str
    quick: bool
    timeout: float | None = None


def ppo_sweep(
    preset: Annotated[str, typer.Argument(help="Preset of precisions, such as bf16_pure.")],
    output: OutputOption = RESULTS,
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


def sweep(
    output: OutputOption = RESULTS,
    presets: Annotated[
        list[str] | None, typer.Option("--preset", help="Preset; may be repeated; by default all.")
    ] = None,
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="Seed; may be repeated; by default 0 to 4.")
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

        settings = CellSettings(
            device=str(resolved_device(options.device)), task_reward=options.task_reward
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
            emit=print_progress,
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
