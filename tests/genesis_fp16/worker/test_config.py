"""The trainer's configuration that a worker builds from the settings."""

from pathlib import Path

import pytest
import torch

from genesis_fp16.domain.run_spec import RunSpec, TrainerOptions
from genesis_fp16.plugins.agent_folder import write_preflight
from genesis_fp16.runs.spec import spec_of_settings
from genesis_fp16.settings import Settings, load_settings
from genesis_fp16.worker.config import loop_options, trainer_config
from infrastructure.events import PrecisionState
from infrastructure.events.preflight_report import PreflightReport
from infrastructure.options import LoopSettings
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.precision import device_name

CPU = torch.device("cpu")


def spec_of(settings: Settings, home: Path) -> RunSpec:
    settings = settings.model_copy(update={"home": home})
    (home / "agents" / "a").mkdir(parents=True, exist_ok=True)
    return RunSpec(
        run_id="r",
        attempt=1,
        incarnation="i",
        agent="a",
        entry_point="x:y",
        run_folder=home,
        attempt_folder=home,
        seed=0,
        precision=PrecisionState(requested="fp16", effective="fp16", reason="default"),
        **spec_of_settings(settings, "a"),
    )


def config_of(home: Path, **variables: str) -> FP16TrainingConfig:
    settings = load_settings(home / ".env", variables)
    spec = spec_of(settings, home)
    return trainer_config(spec.trainer, spec.agent_folder, CPU)


def test_without_settings_the_library_decides(tmp_path: Path) -> None:
    assert config_of(tmp_path) == FP16TrainingConfig()


def test_every_setting_reaches_the_trainer(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        GENESIS_CPU_HALF="true",
        FP16_LOSS_SCALE="8",
        FP16_GROWTH_FACTOR="3",
        FP16_BACKOFF_FACTOR="0.25",
        FP16_GROWTH_INTERVAL="7",
        FP16_ADAPTIVE_GROWTH_INTERVAL="true",
        FP16_MIN_LOSS_SCALE="0.5",
        FP16_FLOOR_POLICY="halt",
        GENESIS_MAX_GRAD_NORM="0",
        GENESIS_ADAPTIVE_CLIP="true",
        GENESIS_DETECT_ANOMALY="true",
        GENESIS_CUDA_GRAPH="true",
    )
    assert config == FP16TrainingConfig(
        cpu_half=True,
        loss_scale=8.0,
        growth_factor=3.0,
        backoff_factor=0.25,
        growth_interval=7,
        adaptive_growth_interval=True,
        min_loss_scale=0.5,
        floor_policy="halt",
        max_grad_norm=None,
        adaptive_clip=True,
        detect_anomaly=True,
        cuda_graph=True,
    )


def test_every_option_of_the_loop_reaches_it_by_its_name(tmp_path: Path) -> None:
    fields = {"checkpoint_interval_seconds": 2.5}
    fields |= {name: 7 for name in LoopSettings.model_fields if name not in fields}
    variables = {f"GENESIS_{name.upper()}": str(value) for name, value in fields.items()}
    options = loop_options(spec_of(load_settings(tmp_path / ".env", variables), tmp_path))
    assert options.model_dump() == {"seed": 0, "parallel": "ddp", **fields}


def test_every_option_is_a_field_of_the_trainers_configuration() -> None:
    names = {*TrainerOptions.model_fields}
    assert names - {"fp16_preset"} <= set(FP16TrainingConfig.__dataclass_fields__)


@pytest.mark.parametrize(
    ("variables", "interval"),
    [
        ({"FP16_PRESET": "fast-growth"}, 400),
        ({"FP16_PRESET": "fast-growth", "FP16_GROWTH_INTERVAL": "2000"}, 2000),
        ({"FP16_PRESET": ""}, 2000),
    ],
)
def test_a_set_value_outranks_the_preset(tmp_path: Path, variables, interval: int) -> None:
    assert config_of(tmp_path, **variables).growth_interval == interval


def report(scale: float | None, name: str) -> PreflightReport:
    return PreflightReport(
        measured_at=0.0,
        device="cpu",
        device_name=name,
        torch_version="",
        threads=1,
        batches=1,
        measurements=(),
        modules=(),
        largest_safe_scale=scale,
        recommended_scale=scale,
        underflow=0.0,
        verdict="fp16",
        reasons=(),
    )


@pytest.mark.parametrize(
    ("variables", "recommended", "name", "expected"),
    [
        ({}, 1024.0, device_name(CPU), 1024.0),
        ({"FP16_LOSS_SCALE": "8"}, 1024.0, device_name(CPU), 8.0),
        ({}, None, device_name(CPU), 65536.0),
        ({}, 1024.0, "another device", 65536.0),
        ({"FP16_MIN_LOSS_SCALE": "4096"}, 1024.0, device_name(CPU), 4096.0),
    ],
)
def test_preflight_sets_the_scale_unless_the_operator_does(
    tmp_path: Path, variables, recommended: float | None, name: str, expected: float
) -> None:
    folder = tmp_path / "agents" / "a"
    folder.mkdir(parents=True)
    write_preflight(folder, report(recommended, name))
    assert config_of(tmp_path, **variables).loss_scale == expected
