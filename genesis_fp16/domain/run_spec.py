"""Specification of an attempt, in one JSON file: its worker reads no environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from infrastructure.events import PrecisionState
from infrastructure.options import LoopSettings, StepOptions
from infrastructure.options.setting_types import Count, Hot, OrEmpty

SPEC_FILE = "spec.json"  # in the attempt's folder
LONGEST_SPEC = 1 << 24  # bytes

Parallel = Literal["ddp", "fsdp2", "fsdp2-policy"]


def _by_new_name(preset: object) -> object:
    """Accept the name that the preset had in release 0.1, where a preset of roles has it, too."""
    return "fast-growth" if preset == "precision-rl" else preset


_Scale: TypeAlias = Annotated[float, Field(ge=2.0**-16, le=2.0**64)]
_MinScale: TypeAlias = Annotated[float, Field(ge=2.0**-24, le=2.0**64)]
_Preset: TypeAlias = Annotated[Literal["fast-growth"], BeforeValidator(_by_new_name)]


class TrainerOptions(BaseModel, StepOptions):
    """Options of the training step: `Settings` inherits them, a `RunSpec` carries them.

    `StepOptions` declares those that `FP16TrainingConfig` has, too. Those here have other values
    than its fields: None leaves a field to the preset, the pre-flight check or the default.
    mypy knows those of `StepOptions` as attributes here and of `Settings`, not as keywords.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_by_name=True,
        validate_by_alias=True,
        loc_by_alias=False,
        serialize_by_alias=True,
    )

    loss_scale: Hot[OrEmpty[_Scale]] = Field(None, alias="fp16_loss_scale")
    """Initial loss scale of new runs; empty: what preflight recommended, else 65536."""
    growth_interval: Hot[OrEmpty[Count]] = Field(None, alias="fp16_growth_interval")
    """Steps without overflow before the scale grows; empty: the preset's, else 2000."""
    fp16_preset: Hot[OrEmpty[_Preset]] = Field(None, validation_alias="FP16_PRESET")
    """Preset: fast-growth (Qi et al. 2025), a growth interval of 400; empty: none."""
    min_loss_scale: Hot[_MinScale] = Field(2.0**-16, alias="fp16_min_loss_scale")
    """Lowest loss scale."""
    max_grad_norm: Hot[Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]] = 1.0
    """Largest global gradient norm, in every precision; larger ones are clipped; 0: no clipping."""


Task = Literal["train", "preflight", "profile", "lab", "rung"]


class ProfileRequest(BaseModel):
    """How much of a run the task ``profile`` measures.

    Attributes:
        precision: Precision to begin with.
        collect_seconds: Longest time for collecting; 0 collects nothing.
        train_seconds: Time for training, after the first steps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    precision: PrecisionState
    collect_seconds: float = Field(15.0, ge=0.0)
    train_seconds: float = Field(6.0, gt=0.0)


class LabRequest(BaseModel):
    """What the precision lab does with an agent's job.

    Attributes:
        command: ``freeze`` writes a frozen experiment; any other reads one.
        frozen: Folder of the frozen experiment.
        results: Folder of the results, for the commands that have some.
        seed: Seed of the run that builds the job.
        options: Those of the command.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    command: str
    frozen: Path
    results: Path = Path("results")
    seed: int = 0
    options: dict[str, JsonValue] = {}


class RunSpec(BaseModel):
    """Specification of one attempt of one run.

    Attributes:
        attempt: Number of the attempt, from 1.
        incarnation: Random identity of the attempt.
        agent: Entry-point name.
        entry_point: ``module:attribute``.
        definition: File that describes a configured agent; None for an installed one.
        agent_folder: Folder that persists across runs: replay buffer, published model.
        run_folder: Folder that persists across attempts: ``checkpoints/``, the data snapshot.
        repeats: Folder of the run that this one repeats in FP32, on the same data and from the same
            start, without publishing a model; None for a run of its own.
        attempt_folder: Folder of ``spec.json``, ``events.ndjson`` and ``worker.log``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        threads: Torch threads; 0 leaves torch's default.
        precision: The daemon's decision; the worker may still fall back for its hardware.
        trainer: Options of the training step.
        loop: Options of the training loop.
        budget_seconds, budget_transitions: What ``collect`` may spend.
        rung_search_seconds: Time of a search, after a rollback, for the modules to raise; 0: none.
        mismatch_interval_rounds: Rounds between two comparisons of trainer and rollout; 0 for none.
        processes_per_run: Ranks that train together, each a process on this machine.
        parallel: How the ranks share the model; see `distribute` in `infrastructure.training`.
        task: ``train``, ``preflight`` to measure the job without training, ``profile`` to measure
            a run without publishing, ``lab``, or ``rung`` to search the modules to raise to FP32.
        lab: Details of the task ``lab``; else None.
        profile: Details of the task ``profile``; else None.
        keep_models: Number of versions of the published model to keep.
        keep_fp32: Modules that stay in FP32, besides those of the job.
        fp32_head: Whether a policy's output head stays in FP32, too, on all sides.
        preemption_file: File whose appearance announces the end of the machine; None for none.
        preemption_url: URL that announces it, see `genesis_fp16.worker.preemption`; None for none.
        settings: Raw settings of the agent, validated by its ``settings_model``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    run_id: str
    attempt: int
    incarnation: str
    agent: str
    entry_point: str
    definition: Path | None = None
    agent_folder: Path
    run_folder: Path
    repeats: Path | None = None
    attempt_folder: Path
    seed: int
    device: str
    threads: int
    precision: PrecisionState
    trainer: TrainerOptions
    loop: LoopSettings
    budget_seconds: float
    budget_transitions: int
    rung_search_seconds: float = 0.0
    mismatch_interval_rounds: int = 0
    processes_per_run: int = 1
    parallel: Parallel = "ddp"
    keep_models: int = 5
    keep_fp32: tuple[str, ...] = ()
    fp32_head: bool = False
    task: Task = "train"
    lab: LabRequest | None = None
    profile: ProfileRequest | None = None
    preemption_file: Path | None = None
    preemption_url: str | None = None
    settings: dict[str, JsonValue]

    @model_validator(mode="before")
    @classmethod
    def _lift_loop_settings(cls, data: object) -> object:
        """Read a file of an earlier release, in which each option of the loop is a field.

        Without an interval of telemetry, that release did not measure it.
        """
        if not isinstance(data, dict) or "loop" in data:
            return data
        options = {name: data[name] for name in LoopSettings.model_fields if name in data}
        if not options:
            return data
        rest = {name: value for name, value in data.items() if name not in options}
        return {**rest, "loop": {"telemetry_interval_steps": 0, **options}}

    @property
    def events_path(self) -> Path:
        """Where the worker appends its events."""
        return self.attempt_folder / "events.ndjson"

    def exit_report_path(self, rank: int) -> Path:
        """Where one of several ranks reports how it ended."""
        return self.attempt_folder / f"rank-{rank}.ndjson"
