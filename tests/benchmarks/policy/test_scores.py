from pathlib import Path

import pytest
import torch

from benchmarks.policy.scores import Kept, OtherSettingsError, Way, generate, role_forward, score
from benchmarks.policy.subjects import Subject
from infrastructure.policy import Sampling, token_log_probs

SAMPLINGS = {"all": Sampling(), "top-p": Sampling(top_p=0.8)}


@pytest.mark.parametrize("forward", ["full", "cached"])
@pytest.mark.parametrize("shape", ["together", "alone"])
@pytest.mark.parametrize("fp32_head", [False, True])
def test_every_way_gives_the_same_in_fp32(
    subject: Subject, forward: str, shape: str, fp32_head: bool
) -> None:
    batch = generate(subject, "fp32", SAMPLINGS["top-p"], new_tokens=6, group=2, seed=0)
    way = Way(
        side="rollout",
        precision="fp32",
        forward=forward,  # type: ignore[arg-type]
        shape=shape,  # type: ignore[arg-type]
        fp32_head=fp32_head,
    )

    scores = score(subject, batch, way, SAMPLINGS)

    plain = role_forward(subject, Way(side="trainer", precision="fp32"))
    for name, sampling in SAMPLINGS.items():
        expected = token_log_probs(plain, batch, sampling)
        torch.testing.assert_close(scores[name], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores["top-p"], batch.log_probs_BS, rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", ["rollout", "trainer"])
def test_a_head_in_fp32_brings_half_precision_closer(subject: Subject, side: str) -> None:
    batch = generate(subject, "fp32", Sampling(), new_tokens=8, group=4, seed=0)
    exact = batch.log_probs_BS
    assert exact is not None

    def error(fp32_head: bool) -> float:
        way = Way(side=side, precision="bf16", fp32_head=fp32_head)  # type: ignore[arg-type]
        scores = score(subject, batch, way, {"all": Sampling()})
        return (scores["all"] - exact).square().sum().item()

    assert 0 < error(True) < error(False)
    assert not hasattr(subject.model.lm_head, "keeps_fp32")  # the subject is left as it was


def test_what_is_kept_is_not_made_again(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, torch.Tensor]:
        made.append(1)
        return {"x": torch.arange(3)}

    for _ in range(2):
        kept = Kept(tmp_path / "a", {"seed": 0})
        assert kept.get("x", make)["x"].tolist() == [0, 1, 2]
    assert len(made) == 1
    with pytest.raises(OtherSettingsError, match="choose another --output"):
        Kept(tmp_path / "a", {"seed": 1})
