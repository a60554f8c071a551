"""The options of step and loop on their way from the settings to a worker."""

import dataclasses
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from genesis_fp16.domain.run_spec import RunSpec, TrainerOptions
from genesis_fp16.settings import Settings
from infrastructure.events import PrecisionState
from infrastructure.options import LoopSettings, StepOptions
from infrastructure.training import FP16TrainingConfig

EARLIER = Path(__file__).with_name("earlier_spec.json")  # written by 5e565fe8


def test_a_specification_of_an_earlier_release_is_read() -> None:
    text = EARLIER.read_text()
    read = RunSpec.model_validate_json(text)
    assert read.loop == LoopSettings(
        stats_interval_steps=7,
        baseline_interval_steps=300,
        telemetry_interval_steps=0,
        checkpoint_interval_seconds=4.5,
        keep_checkpoints=3,
        profile_steps=2,
    )
    assert read.mismatch_interval_rounds == 10
    assert read.trainer == TrainerOptions()
    written = json.loads(read.model_dump_json())["trainer"]
    assert json.loads(text)["trainer"].items() <= written.items(), "under the same names"
    assert RunSpec.model_validate_json(read.model_dump_json()) == read


def test_of_an_earlier_release_without_an_option_that_option_is_off() -> None:
    fields = json.loads(EARLIER.read_text())
    del fields["telemetry_interval_steps"], fields["profile_steps"]
    read = RunSpec.model_validate(fields)
    assert (read.loop.telemetry_interval_steps, read.loop.profile_steps) == (0, 0)


def test_without_options_of_the_loop_it_is_refused() -> None:
    fields = json.loads(EARLIER.read_text())
    rest = {name: fields[name] for name in fields if name not in LoopSettings.model_fields}
    with pytest.raises(ValidationError, match="loop\n"):
        RunSpec.model_validate(rest)


def test_a_misspelt_option_is_refused() -> None:
    fields = json.loads(EARLIER.read_text()) | {"keep_checkpoint": 3}
    with pytest.raises(ValidationError, match="keep_checkpoint\n"):
        RunSpec.model_validate(fields)


def test_a_specification_carries_the_options_unchanged(tmp_path: Path) -> None:
    settings = Settings(growth_factor=3.0, max_grad_norm=0.0, fp16_preset="fast-growth")
    spec = RunSpec(
        run_id="r",
        attempt=1,
        incarnation="i",
        agent="a",
        entry_point="x:y",
        agent_folder=tmp_path,
        run_folder=tmp_path,
        attempt_folder=tmp_path,
        seed=0,
        device="cpu",
        threads=1,
        precision=PrecisionState(requested="fp16", effective="fp16", reason="default"),
        trainer=settings.trainer_options(),
        loop=settings.loop_settings(),
        budget_seconds=1.0,
        budget_transitions=1,
        settings={},
    )
    read = RunSpec.model_validate_json(spec.model_dump_json())
    assert read == spec
    assert type(read.trainer) is TrainerOptions
    assert {name: getattr(settings, name) for name in TrainerOptions.model_fields} == dict(
        read.trainer
    )


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(StepOptions)])
def test_an_option_of_the_step_is_the_same_for_settings_and_library(name: str) -> None:
    ours, theirs = Settings.model_fields[name], FP16TrainingConfig.__pydantic_fields__[name]
    assert ours.annotation == theirs.annotation
    assert ours.metadata == theirs.metadata
    assert ours.default == theirs.default == getattr(StepOptions, name)


@pytest.mark.parametrize("factor", [1.0, 1025.0])
def test_bounds_hold_for_settings_and_library(factor: float) -> None:
    for options in (Settings, TrainerOptions, FP16TrainingConfig):
        with pytest.raises(ValidationError, match="growth_factor\n"):
            options(growth_factor=factor)


def test_a_preset_is_accepted_by_its_name_of_release_0_1() -> None:
    assert Settings(fp16_preset="precision-rl").fp16_preset == "fast-growth"
