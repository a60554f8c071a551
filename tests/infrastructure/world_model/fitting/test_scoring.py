from dataclasses import replace

import pytest

from infrastructure.trajectories.encoding import TargetCodec
from infrastructure.world_model.distributions import base_rate_distributions
from infrastructure.world_model.fitting.scoring import measure


def test_the_base_rate_has_no_skill_and_is_calibrated(noise):
    metrics = measure(base_rate_distributions(noise.codec, 4000), noise.outcomes, noise.codec)
    assert metrics["nll_skill"] == 0.0
    assert metrics["label.auroc"] == 0.5
    assert metrics["label.ece"] < 1e-3
    assert metrics["y.coverage_90"] == pytest.approx(0.9, abs=0.02)


def test_with_a_success_label_other_targets_do_not_count(noise):
    """A model that is far off on ``y`` is scored by the success label if the spec has one."""
    off = base_rate_distributions(noise.codec, 4000)
    off["y"] = replace(off["y"], mean=off["y"].mean + 100.0)
    assert measure(off, noise.outcomes, noise.codec)["nll_skill"] == 0.0
    assert measure(off, noise.outcomes, noise.codec)["y.nll_skill"] < -100.0
    without = replace(noise.spec, success=None)
    assert (
        measure(off, noise.outcomes, TargetCodec.fit(without, noise.transitions))["nll_skill"]
        < -50.0
    )
