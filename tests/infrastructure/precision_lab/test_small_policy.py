"""The small local policy: it learns, it repeats, and it continues prompts to any length."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from infrastructure.policy import Sampling, token_log_probs
from infrastructure.policy.models import PolicyModelError
from infrastructure.precision_lab.small_policy import base_policy, small_policy
from infrastructure.precision_lab.static_comparison.compare import ComparisonError, continuations
from infrastructure.precision_lab.weights_hash import weights_sha256
from infrastructure.training.precision import Precision, PrecisionForward

pytestmark = pytest.mark.process  # trains for seconds

CPU = torch.device("cpu")


def test_training_repeats_and_its_text_has_no_end() -> None:
    base, again = (small_policy(seed=1, prompts=3, steps=3) for _ in range(2))
    assert weights_sha256({"policy": base.model}) == weights_sha256({"policy": again.model})
    assert base.prompts == again.prompts
    batch = continuations(
        base.model, base.prompts, length=40, special=base.special, device=CPU, seed=0
    )
    assert batch.tokens_BT.shape[1] <= 40
    assert all(base.tokenizer.decode(each).endswith(" is") for each in base.prompts)
    forward = PrecisionForward(base.model, CPU, Precision.FP32)
    with torch.no_grad():
        found_BS = token_log_probs(forward, batch, Sampling())
    assert batch.log_probs_BS is not None
    torch.testing.assert_close(found_BS, batch.log_probs_BS, atol=1e-4, rtol=1e-4)
    with pytest.raises(ComparisonError, match="no room"):
        continuations(base.model, base.prompts, length=5, special=base.special, device=CPU, seed=0)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyModelError, match="not a folder"):
        base_policy(str(tmp_path / "nowhere"), seed=0, prompts=1)
    with pytest.raises(PolicyModelError, match=r"'model\.gguf'"):
        base_policy(str(tmp_path / "model.gguf"), seed=0, prompts=1)
