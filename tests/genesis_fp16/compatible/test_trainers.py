from __future__ import annotations

import pytest
import torch

from genesis_fp16.compatible import (
    ExtendedFP16Config,
    ExtendedFP16Trainer,
    FP16Trainer,
    PrecisionMode,
    cleanup_distributed,
    init_distributed,
)
from infrastructure.training import FP16TrainingConfig

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _loss(forward, batch):
    return torch.nn.functional.mse_loss(forward(batch[0]), batch[1])


def _batch():
    return torch.randn(8, 10), torch.randn(8, 1)


def _model_and_optimizer():
    model = torch.nn.Linear(10, 1)
    return model, torch.optim.Adam(model.parameters())


def test_a_fresh_trainer_counts_nothing_and_runs_in_fp32_on_a_cpu():
    trainer = FP16Trainer(*_model_and_optimizer())
    assert trainer.get_stats()["fp16_enabled"] is False
    assert (trainer.training_steps, trainer.overflow_steps) == (0, 0)
    assert trainer.fp16_enabled is False
    assert trainer._fp16_active is False
    assert trainer.scaler is None


def test_a_step_gives_a_float32_loss_and_true():
    trainer = FP16Trainer(*_model_and_optimizer())
    loss = trainer.training_step(_batch(), _loss)
    assert loss.dtype == torch.float32
    assert trainer.backward_and_step(loss) is True
    assert trainer.training_steps == 1


def test_a_checkpoint_restores_the_counters(tmp_path):
    config = FP16TrainingConfig(loss_scale=2.0**40, cpu_half=True)
    trainer = FP16Trainer(*_model_and_optimizer(), config)
    assert trainer.scaler is not None
    before = trainer.scaler.get_scale()
    features, targets = _batch()
    loss = trainer.training_step((features * 1e4, targets * 1e4), _loss)
    assert trainer.backward_and_step(loss) is False
    assert trainer.overflow_steps == 1
    assert trainer.get_stats()["overflow_rate"] == 1.0
    assert trainer.scaler.get_scale() == before / 2
    trainer.save_checkpoint(str(tmp_path / "ckpt.pt"))
    other = FP16Trainer(*_model_and_optimizer())
    other.load_checkpoint(str(tmp_path / "ckpt.pt"))
    assert (other.training_steps, other.overflow_steps) == (1, 1)


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        (PrecisionMode.MIXED_FP16, torch.float16),
        (PrecisionMode.BF16, torch.bfloat16),
        (PrecisionMode.FP32, None),
    ],
)
def test_a_mode_chooses_the_precision(monkeypatch, mode, dtype):
    config = ExtendedFP16Config(precision_mode=mode)
    half = FP16TrainingConfig(precision=config.to_config().precision, cpu_half=True)
    monkeypatch.setattr(config, "to_config", lambda: half)  # of this instance: a CPU has no half
    with pytest.warns(DeprecationWarning, match=r"infrastructure\.training\.FP16Trainer"):
        trainer = ExtendedFP16Trainer(*_model_and_optimizer(), config)
    assert trainer.autocast_dtype == dtype
    assert trainer.precision_active is (dtype is not None)
    assert (trainer.scaler is not None) is (dtype is torch.float16)


def test_without_the_half_type_the_extended_trainer_runs_in_fp32():
    trainer = ExtendedFP16Trainer(*_model_and_optimizer())
    assert trainer.precision_active is False
    assert trainer.get_stats()["precision_reason"] == "no_accelerator"


def test_accumulation_steps_once_in_so_many_micro_batches():
    config = ExtendedFP16Config(gradient_accumulation_steps=2, max_grad_norm=0)
    trainer = ExtendedFP16Trainer(*_model_and_optimizer(), config)
    results = [trainer.backward_and_step(trainer.training_step(_batch(), _loss)) for _ in range(3)]
    assert results == [False, True, False]
    stats = trainer.get_stats()
    assert (stats["update_steps"], stats["accumulated_steps"]) == (1, 1)
    assert (stats["rank"], stats["world_size"]) == (0, 1)
    assert stats["precision_mode"] == "mixed_fp16"


def test_ddp_without_a_process_group_is_refused():
    with pytest.raises(RuntimeError, match="init_distributed"):
        ExtendedFP16Trainer(*_model_and_optimizer(), ExtendedFP16Config(use_ddp=True), world_size=2)


def test_a_single_process_joins_no_group(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.warns(DeprecationWarning, match="under torchrun"):
        assert init_distributed() == (0, 1)
    cleanup_distributed()
    assert not torch.distributed.is_initialized()
