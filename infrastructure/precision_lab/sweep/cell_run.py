"""Runs one cell and writes its folder; runs in a worker process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from infrastructure.events.role_precision import find_preset
from infrastructure.precision_lab.environment import describe_environment, fixed_numerics
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.failures import Failure, failure_of
from infrastructure.precision_lab.ppo import CellSettings, PPOCell, load, prepare, save
from infrastructure.precision_lab.ppo.cell import CELL_ROLES
from infrastructure.precision_lab.results import COMPLETED, CellFolder, CellSummary


def prepare_seed(path: Path, settings: CellSettings, seed: int) -> str:
    """Make the initial weights of a seed's cells and write them to *path*; return their hash.

    Weights that are there already are kept.

    Raises:
        LabError: The file that is there belongs to other settings, or is damaged.
        OSError: The disk refuses.
    """
    with fixed_numerics():
        if path.exists():
            return load(path, settings, seed).sha256
        return save(path, prepare(settings, seed))


@dataclass(frozen=True, kw_only=True, slots=True)
class CellTask:
    """A cell to run: one preset with one seed.

    Attributes:
        preset: Name of the preset.
        seed: Seed of the cell.
        folder: Where the results go.
        weights: File of the initial weights.
        initial_weights: Hash that these must have.
    """

    preset: str
    seed: int
    folder: Path
    weights: Path
    initial_weights: str


Task = CellTask | tuple[Path, int]  # a cell to run, or weights to make: their file and seed


class RefusedError(LabError):
    """A worker process cannot do a task; the sweep ends."""


def run_cell(task: CellTask, settings: CellSettings, on_step: Callable[[int], None]) -> CellSummary:
    """Train one cell; its failures are results, so they are written and not raised.

    Args:
        task: Which cell.
        settings: What is trained.
        on_step: Called after each update with its number, from 1.

    Raises:
        LabError: The initial weights are not those of the sweep.
        OSError: The disk refuses; the cell has not ended.
    """
    precisions, folder = find_preset(task.preset), CellFolder(task.folder)
    environment = describe_environment(torch.device(settings.device))
    declared = {role.value: str(precisions[role]) for role in CELL_ROLES}
    folder.begin(
        {
            "preset": task.preset,
            "source": precisions.source,
            "pure": precisions.pure,
            "seed": task.seed,
            "precision": declared,
            "settings": settings.as_dict(),
            "initial_weights": task.initial_weights,
            "environment": environment,
        }
    )
    began, cpu_began = time.monotonic(), time.process_time()
    with fixed_numerics():
        cell, failure = _new_cell(task, settings)
        last, failure = ({}, failure) if cell is None else _trained(cell, folder, on_step)
    summary = CellSummary(
        preset=task.preset,
        seed=task.seed,
        category=COMPLETED if failure is None else failure.kind.value,
        reason="" if failure is None else _sentence(failure),
        updates=0 if cell is None else cell.updates,
        planned_updates=settings.updates,
        seconds=time.monotonic() - began,
        cpu_seconds=time.process_time() - cpu_began,
        initial_weights=task.initial_weights,
        precision=declared,
        effective_precision={} if cell is None else cell.effective_precision,
        environment=environment,
        metrics=last,
        totals={} if cell is None else _totals(cell),
    )
    folder.finish(summary)
    return summary


def _new_cell(task: CellTask, settings: CellSettings) -> tuple[PPOCell | None, Failure | None]:
    try:
        models = load(task.weights, settings, task.seed)
        if models.sha256 != task.initial_weights:
            raise LabError(f"{task.weights}: has other weights than the sweep began with")
        return PPOCell(settings, find_preset(task.preset), models, task.seed), None
    except LabError:
        raise
    except Exception as error:
        return None, failure_of(error)


def _trained(
    cell: PPOCell, folder: CellFolder, on_step: Callable[[int], None]
) -> tuple[dict[str, float], Failure | None]:
    """Train and write each step; the last value of each metric, and the failure, if any."""
    steps, last = cell.steps(), dict[str, float]()
    while True:
        try:
            metrics = next(steps)
        except StopIteration:
            return last, next(iter(cell.watch.failures), None)
        except Exception as error:
            return last, next(iter(cell.watch.failures), failure_of(error, step=cell.updates))
        folder.append(metrics)  # an error of the disk ends the sweep, not the cell
        last.update({name: float(value) for name, value in metrics.items() if value is not None})
        on_step(metrics["step"] + 1)


def _sentence(failure: Failure) -> str:
    where = "" if failure.step is None else f"step {failure.step}: "
    return where + failure.detail


def _totals(cell: PPOCell) -> dict[str, float]:
    steps = {f"{kind.value}_steps": float(count) for kind, count in cell.watch.counts.items()}
    return {"skipped_updates": float(cell.skipped), **steps}
