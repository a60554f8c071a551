"""Everything a worker needs to know, in one JSON file: the worker reads no environment."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from infrastructure.events import PrecisionState

Parallel = Literal["ddp", "fsdp2", "fsdp2-policy"]


class TrainerOptions(BaseModel):
    """The trainer's settings, by their names in its configuration; None: the worker decides."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    preset: Literal["precision-rl"] | None = None
    loss_scale: float | None = None
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int | None = None
    adaptive_growth_interval: bool = False
    min_loss_scale: float = 2.0**-16
    floor_policy: Literal["skip", "fallback_fp32", "halt"] = "fallback_fp32"
    max_grad_norm: float | None = 1.0
    adaptive_clip: bool = False
    detect_anomaly: bool = False
    cuda_graph: bool = False


class RunSpec(BaseModel):
    """One attempt of one run.

    Attributes:
        run_id: Identity of the run.
        attempt: 1 for the first.
        incarnation: Random identity of this attempt.
        agent: Entry-point name.
        entry_point: ``module:attribute``.
        agent_folder: Persists across runs: replay buffer, published model.
        run_folder: Persists across attempts: ``checkpoints/``, the data snapshot.
        repeats: Folder of the run that this one repeats in FP32, on the same data; it publishes
            nothing. None for a run of its own.
        attempt_folder: ``spec.json``, ``events.ndjson``, ``worker.log``.
        seed: Of the run.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        threads: Torch threads; 0 leaves torch's default.
        precision: The daemon's decision; the worker still answers for its hardware.
        cpu_half: Whether FP16 may run on a CPU.
        trainer: See `TrainerOptions`.
        budget_seconds, budget_transitions: What ``collect`` may spend.
        stats_interval_steps: Steps between two reads of the device.
        baseline_interval_steps: Steps between two comparisons with FP32; 0 for none.
        checkpoint_interval_seconds: Longest time between two checkpoints.
        keep_checkpoints: How many are kept.
        profile_steps: Steps to profile; 0 for none.
        processes_per_run: Ranks that train together, each a process on this machine.
        parallel: How they share the model; see `spread` in `infrastructure.training`.
        task: ``train``, or ``preflight`` to measure the job and leave it at that.
        settings: Raw settings of the agent, validated by its ``settings_model``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    run_id: str
    attempt: int
    incarnation: str
    agent: str
    entry_point: str
    agent_folder: Path
    run_folder: Path
    repeats: Path | None = None
    attempt_folder: Path
    seed: int
    device: str
    threads: int
    precision: PrecisionState
    cpu_half: bool
    trainer: TrainerOptions
    budget_seconds: float
    budget_transitions: int
    stats_interval_steps: int
    baseline_interval_steps: int
    checkpoint_interval_seconds: float
    keep_checkpoints: int
    profile_steps: int = 0
    processes_per_run: int = 1
    parallel: Parallel = "ddp"
    task: Literal["train", "preflight"] = "train"
    settings: dict[str, JsonValue]

    @property
    def events_path(self) -> Path:
        """Where the worker appends its events."""
        return self.attempt_folder / "events.ndjson"

    def exit_report_path(self, rank: int) -> Path:
        """Where one of several ranks reports how it ended."""
        return self.attempt_folder / f"rank-{rank}.ndjson"
