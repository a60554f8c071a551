import pytest
import torch
from torch.nn import Parameter

from infrastructure.precision_lab.ppo.joint_update import JointUpdate

pytestmark = pytest.mark.process  # trains for seconds


def _update(
    *dtypes: torch.dtype, scaled: bool = False, value: float = 1.0, learning_rate: float = 0.1
) -> tuple[JointUpdate, list[Parameter]]:
    parameters = [Parameter(torch.full((4,), value, dtype=dtype)) for dtype in dtypes]
    update = JointUpdate(
        [[each] for each in parameters],
        learning_rate=learning_rate,
        max_grad_norm=1.0,
        scaled=scaled,
    )
    return update, parameters


def test_float32_weights_move_as_under_torchs_own_optimizer_and_clip() -> None:
    update, (one, other) = _update(torch.float32, torch.float32)
    twins = [Parameter(torch.ones(4)), Parameter(torch.ones(4))]
    optimizer = torch.optim.AdamW(twins, lr=0.1, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for _ in range(3):
        outcome = update.step((one**2).sum() + 3 * (other**3).sum())
        optimizer.zero_grad()
        ((twins[0] ** 2).sum() + 3 * (twins[1] ** 3).sum()).backward()
        norm = torch.nn.utils.clip_grad_norm_(twins, 1.0)
        optimizer.step()
        assert outcome.gradient_norm == pytest.approx(norm.item(), rel=1e-5)
    torch.testing.assert_close([one.detach(), other.detach()], [t.detach() for t in twins])
    assert update.has_masters


@pytest.mark.parametrize("size", [1.0, 1e-9])  # below AdamW's epsilon, a scale would show
def test_a_loss_scale_changes_nothing_but_is_reported(size: float) -> None:
    plain, (one,) = _update(torch.float32)
    scaled, (other,) = _update(torch.float32, scaled=True)
    first, second = (
        update.step(size * (weight**2).sum()) for update, weight in ((plain, one), (scaled, other))
    )
    assert (first.loss_scale, second.loss_scale) == (1.0, 65536.0)
    assert first.gradient_norm == pytest.approx(second.gradient_norm)
    torch.testing.assert_close(one.detach(), other.detach())


def test_small_updates_are_lost_without_masters_and_only_there() -> None:
    for dtype, lost in ((torch.bfloat16, True), (torch.float32, False)):
        update, (parameter,) = _update(dtype, learning_rate=1e-3)
        for _ in range(20):
            outcome = update.step(parameter.float().sum())
        assert update.has_masters is not lost
        assert outcome.update_stagnation_rate == float(lost)
        assert bool((parameter == 1).all()) is lost


def test_an_overflow_is_skipped_and_lowers_the_scale() -> None:
    update, (parameter,) = _update(torch.float16, scaled=True, value=2.0)
    outcome = update.step((parameter.float() * 100).sum())  # 100 * 65536 exceeds FP16
    assert not outcome.applied
    assert outcome.update_stagnation_rate == 1.0
    for _ in range(10):
        outcome = update.step((parameter.float() * 100).sum())
    assert outcome.applied
    assert outcome.loss_scale < 1024
    assert bool((parameter < 2).all())


def test_a_nan_loss_is_skipped_and_keeps_the_scale() -> None:
    update, (parameter,) = _update(torch.float32, scaled=True)
    assert not update.step((parameter * torch.nan).sum()).applied
    outcome = update.step(parameter.sum())
    assert outcome.applied
    assert outcome.loss_scale == 65536.0
