"""The search raises the modules to blame, and nothing where FP32 fails too.

B examples, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from infrastructure.events import Role
from infrastructure.events.role_precision import PRESETS
from infrastructure.precision_lab.bisect.bisect import bisect
from infrastructure.precision_lab.experiments import WorldModelExperiment
from infrastructure.precision_lab.rung import LossHistory, RungRequest
from infrastructure.precision_lab.rung.search import PartLosses, search_rung


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Large(nn.Module):
    """A product of its own that overflows in FP16, and a child that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x_BD: Tensor) -> Tensor:
        large_DD = torch.full((16, 16), 60000.0)
        result_BD: Tensor = (self.linear(x_BD) + 3) @ large_DD / 60000
        return result_BD


class Own(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.function(x_BD)


class Network(nn.Module):
    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
        self.middle, self.head = middle or nn.Tanh(), nn.Linear(16, 1)

    def forward(self, x_BD: Tensor) -> Tensor:
        result_BD: Tensor = self.head(self.middle(self.trunk(x_BD)))
        return result_BD


def loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.mse_loss(forward(batch["x"]), batch["y"])


def experiment(model: nn.Module, scale: float = 1.0) -> WorldModelExperiment:
    torch.manual_seed(1)
    batches = [{"x": scale * torch.randn(8, 16), "y": torch.randn(8, 1)} for _ in range(2)]
    return WorldModelExperiment(models={Role.WORLD_MODEL: model.eval()}, batches=batches, loss=loss)


def request(**given: Any) -> RungRequest:
    return RungRequest(half="fp16", **{"step": 1, **given})


def network(middle: nn.Module | None = None) -> Network:
    torch.manual_seed(0)
    return Network(middle)


def test_the_module_with_its_own_operations_is_raised() -> None:
    found = search_rung(experiment(network(Large())), request(step=7))
    assert (found.cause, found.modules, found.step) == ("modules", ("middle",), 7)
    assert found.half_deviation is not None
    assert found.deviation is not None
    assert found.deviation <= 8 < found.half_deviation
    assert found.fp32_share == pytest.approx(512 / (6 * 256 + 16))
    assert "keep_fp32=['middle'] suffices" in found.reason
    again = search_rung(experiment(network(Large())), request(suspects=("middle", "no")))
    assert again.modules == ("middle",)
    assert again.replays < found.replays


def test_a_module_deep_inside_is_raised_alone() -> None:
    model = network()
    with torch.no_grad():
        model.trunk[2].weight.mul_(1e5)  # its result is beyond FP16
        model.trunk[3].weight.mul_(1e-5)
    found = search_rung(experiment(model), request())
    assert found.modules == ("trunk.2", "trunk.3")


def test_a_healthy_model_raises_nothing() -> None:
    found = search_rung(experiment(network()), request())
    assert (found.cause, found.modules) == ("unexplained", ())
    assert "agrees with FP32" in found.reason


@pytest.mark.parametrize(("middle", "raised"), [(nn.Tanh, ()), (Large, ("6",))])
def test_gradients_that_are_rounding_alone_blame_nothing(middle: Any, raised: Any) -> None:
    """Those of the biases before batch normalisations."""
    torch.manual_seed(1)
    normalised = (nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.SiLU()) for _ in range(6))
    model = nn.Sequential(*normalised, middle(), nn.Linear(16, 1))
    searched = experiment(model)
    model.train()
    found = search_rung(searched, request(loss_scale=256.0))
    assert found.modules == raised, found.reason


def test_gradients_in_which_large_terms_cancel_blame_nothing() -> None:
    """A normalisation takes out the scale of the only weight of each unit before it."""
    torch.manual_seed(0)
    one = (Own(lambda x_BD: x_BD[:, :1]), nn.Linear(1, 16), nn.BatchNorm1d(16), nn.ReLU())
    model = nn.Sequential(*one, *(nn.Linear(16, 16) for _ in range(3)), nn.Linear(16, 1))
    searched = experiment(model)
    model.train()
    found = search_rung(searched, request(loss_scale=256.0))
    assert not found.modules, found.reason


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_repeats_what_the_forward_pass_did(reentrant: bool) -> None:
    class Repeated(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x_BD: Tensor) -> Tensor:
            result_BD: Tensor = checkpoint(self.inner, x_BD, use_reentrant=reentrant)
            return result_BD

    found = search_rung(experiment(network(Repeated(Large()))), request())
    assert found.modules == ("middle.inner",), found.reason
    assert not search_rung(experiment(network(Repeated(nn.Linear(16, 16)))), request()).modules
    model = network(Repeated(Large()))
    found_places = bisect(experiment(model), PRESETS["fp16"])
    assert [str(c.place) for c in found_places.culprits] == ["world_model:middle.inner:compute"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_lies_outside_of_all_modules_raises_nothing() -> None:
    class Root(Network):
        def forward(self, x_BD: Tensor) -> Tensor:
            return (super().forward(x_BD).half() * 60000).float()

    torch.manual_seed(0)
    found = search_rung(experiment(Root(), scale=50.0), request())
    assert found.modules == ()
    assert found.cause in {"unexplained", "optimisation"}


def test_faults_that_fp32_shows_too_are_told_apart() -> None:
    broken = experiment(network())
    broken.batches[1]["x"][0, 0] = torch.nan
    assert search_rung(broken, request()).cause == "data"
    assert search_rung(broken, request(generated=True)).cause == "unexplained"

    def masked(forward: Any, batch: dict[str, Tensor]) -> Tensor:
        return loss(forward, {**batch, "x": batch["x"].nan_to_num()})

    unharmed = replace(broken, loss=masked, models=experiment(network(Large())).models)
    assert search_rung(unharmed, request()).modules == ("middle",)
    divided = experiment(network(Own(lambda x_BD: x_BD / 0)))
    assert search_rung(divided, request()).cause == "optimisation"
    history = LossHistory().after(0.1).after(0.01)
    found = search_rung(experiment(network()), request(history=history))
    assert (found.cause, found.modules) == ("optimisation", ())
    assert "diverged" in found.reason


def test_fp32_stays_where_most_of_the_model_would_be_raised() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.big, self.last = Large(), nn.Linear(16, 1)

        def forward(self, x_BD: Tensor) -> Tensor:
            result_BD: Tensor = self.last(self.big(x_BD))
            return result_BD

    torch.manual_seed(0)
    found = search_rung(experiment(Wide()), request())
    assert (found.cause, found.modules) == ("modules", ())
    assert "FP32 for all costs hardly more" in found.reason
    assert found.fp32_share is not None
    assert found.fp32_share > 0.5
    other = search_rung(experiment(Wide()), request(other_half="bf16"))
    assert (other.cause, other.half_type, other.fp32_share) == ("half_type", "bf16", 0.0)


def test_a_search_that_runs_out_of_time_raises_nothing() -> None:
    ticks = iter(range(1000))
    found = search_rung(experiment(network(Large())), request(seconds=2), clock=lambda: next(ticks))
    assert (found.cause, found.modules) == ("unfinished", ())
    assert "GENESIS_GUARD_SEARCH_SECONDS" in found.reason


def test_the_other_half_type_where_no_module_is_to_blame() -> None:
    class Root(Network):
        """Its own product, outside of its modules, is beyond FP16 and within BF16."""

        def forward(self, x_BD: Tensor) -> Tensor:
            large_DD = torch.full((16, 16), 60000.0)
            result_BD: Tensor = super().forward((x_BD + 3) @ large_DD / 1e6)
            return result_BD

    torch.manual_seed(0)
    found = search_rung(experiment(Root()), request(other_half="bf16"))
    assert (found.cause, found.modules, found.half_type) == ("half_type", (), "bf16")
    assert "BF16 suffices in all of the model" in found.reason
    assert found.proposal.startswith("BF16 in place of")
    chosen = search_rung(experiment(Root()), request())
    assert (chosen.cause, chosen.half_type) == ("unexplained", None), "somebody has chosen FP16"


@pytest.mark.parametrize(("scale", "wrong"), [(2.0**40, "too high"), (2.0**-16, "too low")])
def test_a_wrong_loss_scale_is_told_from_a_module(scale: float, wrong: str) -> None:
    healthy = experiment(network())
    found = search_rung(healthy, request(loss_scale=scale))
    assert (found.cause, found.modules, found.half_type) == ("scale", (), None)
    assert f"the loss scale {scale:g} is {wrong}" in found.reason
    assert found.proposal == found.reason
    unknown = search_rung(healthy, request(loss_scale=None))
    assert unknown.cause == "unexplained", "no training has had one"


def test_operations_are_counted_in_the_whole_job() -> None:
    def whole(forward: Any, batch: dict[str, Tensor]) -> Tensor:
        return sum((loss(forward, batch) for _ in range(2)), loss(forward, batch))

    model = network(Large())
    parts = PartLosses(names=(), are_all=True, loss=lambda _: loss, whole=lambda _: whole)
    [alone, with_others] = [
        search_rung(experiment(model), request(), parts=one) for one in (None, parts)
    ]
    assert alone.fp32_share == pytest.approx(with_others.fp32_share)
    assert alone.modules == with_others.modules == ("middle",)


def test_of_a_policy_only_the_half_type_changes() -> None:
    of_policy = request(raises_modules=False, other_half="bf16")
    found = search_rung(experiment(network(Large())), of_policy)
    assert (found.cause, found.modules, found.half_type) == ("half_type", (), "bf16")
    assert "its rollout would round differently" in found.reason
    assert search_rung(experiment(network(Large())), request(raises_modules=False)).modules == ()
