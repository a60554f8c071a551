"""The options of the training step on their way from the settings to a worker."""

from pathlib import Path

from genesis_fp16.domain.run_spec import RunSpec, TrainerOptions
from genesis_fp16.settings import Settings
from infrastructure.events import PrecisionState


def test_a_specification_carries_the_options_unchanged(tmp_path: Path) -> None:
    settings = Settings(fp16_growth_factor=3.0, max_grad_norm=0.0, fp16_preset="precision-rl")
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
        budget_seconds=1.0,
        budget_transitions=1,
        stats_interval_steps=1,
        baseline_interval_steps=0,
        checkpoint_interval_seconds=1.0,
        keep_checkpoints=1,
        settings={},
    )
    read = RunSpec.model_validate_json(spec.model_dump_json())
    assert read == spec
    assert type(read.trainer) is TrainerOptions
    assert {name: getattr(settings, name) for name in TrainerOptions.model_fields} == dict(
        read.trainer
    )
