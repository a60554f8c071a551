"""The search finds planted places, their interactions, and a cure that the trainer honours.

Legend: B examples, D width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Role
from infrastructure.events.role_precision import FP32, RolePrecision
from infrastructure.precision_lab.bisect import NotFiniteError, bisect
from infrastructure.precision_lab.experiment import ExperimentResult, Region
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision


class Chain(nn.Module):
    """Layers, one of which may lose what half precision cannot hold."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.middle = middle
        self.last = nn.Linear(8, 4)

    def forward(self, x_BD: Tensor) -> Tensor:
        result_BD: Tensor = self.last(self.middle(self.first(x_BD)))
        return result_BD


class Own(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.function(x_BD)


def squared_and_back(x_BD: Tensor) -> Tensor:
    """Overflows in FP16 on the way."""
    return ((x_BD * 1000).square() + 1).sqrt() / 1000


def summed(x_BD: Tensor) -> Tensor:
    """Overflows in FP16 in the sum, and again in what takes it."""
    return (x_BD * 20000).abs().sum(-1, keepdim=True) / 100000 + x_BD


@dataclass(frozen=True, kw_only=True)
class Regression:
    models: Mapping[Role, nn.Module]
    batches: Sequence[Batch]
    keep_fp32: Sequence[str] = ()

    def run(self, region: Region) -> ExperimentResult:
        (batch,) = self.batches
        with region(Role.WORLD_MODEL):
            predicted_BD = self.models[Role.WORLD_MODEL](batch["x_BD"])
        with region(Role.ADVANTAGE):
            error_BD = predicted_BD - batch["y_BD"]
        loss = error_BD.float().square().mean()
        parameters = dict(self.models[Role.WORLD_MODEL].named_parameters())
        gradients = torch.autograd.grad(loss, tuple(parameters.values()))
        found = {"predicted": predicted_BD, "error": error_BD, "loss": loss}
        quantities = {name: value.detach().float().flatten() for name, value in found.items()}
        named = zip(parameters, gradients, strict=True)
        return ExperimentResult(
            quantities=quantities | {f"gradient:{n}": each for n, each in named}
        )


@dataclass(frozen=True, kw_only=True)
class Computation:
    models: Mapping[Role, nn.Module]
    batches: Sequence[Batch]
    computation: Callable[[Region], ExperimentResult]
    keep_fp32: Sequence[str] = ()

    def run(self, region: Region) -> ExperimentResult:
        return self.computation(region)


def regression(middle: nn.Module) -> Regression:
    torch.manual_seed(0)
    model = Chain(middle).eval()
    batch = {"x_BD": torch.randn(16, 8), "y_BD": torch.randn(16, 4)}
    return Regression(models={Role.WORLD_MODEL: model}, batches=[batch])


def types(text: str) -> Mapping[Role, RolePrecision]:
    return {Role.WORLD_MODEL: RolePrecision.parse(text)}


FP16 = types("fp16/fp16/fp32")


def test_a_fault_is_found_and_nothing_else() -> None:
    found = bisect(regression(Own(squared_and_back)), FP16)
    (culprit,) = found.culprits
    assert str(culprit.place) == "world_model:middle:compute"
    assert found.half.ratio == culprit.without.ratio == culprit.alone.ratio == float("inf")
    assert culprit.share == 1
    assert culprit.partners == ()
    assert found.cured.ratio <= found.tolerance
    assert found.cure.keep_fp32 == {Role.WORLD_MODEL: ("middle",)}
    assert found.cure.roles == {}
    assert found.with_cure.ratio <= found.tolerance
    assert found.runs < 30


def test_two_operations_that_must_both_be_in_fp32_are_both_named() -> None:
    found = bisect(regression(Own(summed)), FP16)
    assert {str(each.place) for each in found.culprits} == {
        "world_model:middle:compute",
        "world_model:middle:reduction",
    }


class Larger(nn.Module):
    """The larger of two results that are equal but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Own(lambda x_BD: x_BD.abs() / 1e5 / 1e5 * 1e10)  # 0 in FP16
        self.other = Own(lambda x_BD: x_BD.abs() / 1e5 / 1e5 * 1e10)

    def forward(self, x_BD: Tensor) -> Tensor:
        return torch.maximum(self.one(x_BD), self.other(x_BD))


def test_what_is_harmless_alone_is_named_with_its_partner() -> None:
    """As long as one of two equal computations is in FP32, the other does no harm."""
    found = bisect(regression(Larger()), FP16)
    (culprit,) = found.culprits
    pair = {"world_model:middle.one:compute", "world_model:middle.other:compute"}
    assert culprit.alone.ratio <= found.tolerance < culprit.without.ratio
    assert {str(culprit.place), *map(str, culprit.partners)} == pair


def test_a_role_without_a_model_is_cured_as_a_whole() -> None:
    def loss(region: Region) -> ExperimentResult:
        with region(Role.ADVANTAGE):
            advantages_B = rewards_B - rewards_B.mean()
        return ExperimentResult(quantities={"advantages": advantages_B.float()})

    rewards_B = 1000 + torch.linspace(0, 1, 10)
    experiment = Computation(models={}, batches=[], computation=loss)
    half = {Role.ADVANTAGE: RolePrecision.parse("bf16/bf16/bf16")}
    found = bisect(experiment, half)
    assert {str(each.place) for each in found.culprits} == {
        "advantage::compute",
        "advantage::reduction",
    }
    assert found.cure.roles == {Role.ADVANTAGE: FP32}
    assert found.with_cure.ratio == 0


@pytest.mark.parametrize("text", ["fp16/fp16/fp16", "bf16/bf16/fp32", "fp32/bf16/fp32"])
def test_a_healthy_model_has_no_culprit(text: str) -> None:
    found = bisect(regression(nn.LayerNorm(8)), types(text))
    assert found.culprits == ()
    assert 0 < found.half.ratio < found.tolerance
    assert found.cure.lines() == []


def test_a_result_that_is_not_finite_in_fp32_is_not_blamed_on_half_precision() -> None:
    with pytest.raises(NotFiniteError, match="predicted"):
        bisect(regression(Own(lambda x_BD: x_BD / 0)), FP16)


def test_an_operation_that_half_precision_refuses_is_the_culprit() -> None:
    def masked(x_BD: Tensor) -> Tensor:
        return x_BD.masked_fill(x_BD < 0, -1e9).exp()

    found = bisect(regression(Own(masked)), FP16)
    assert [str(each.place) for each in found.culprits] == ["world_model:middle:compute"]
    assert "without overflow" in found.half.error


def test_the_trainer_honours_the_cure() -> None:
    """Training in FP16 overflows without the printed setting, and not with it."""
    experiment = regression(Own(lambda x_BD: (x_BD @ (300 * torch.ones(8, 8)) ** 2).tanh()))
    found = bisect(experiment, types("fp32/fp16/fp32"))
    assert found.cure.lines() == ["keep_fp32=['middle']  # modules of the role world_model"]
    (batch,) = experiment.batches
    model = experiment.models[Role.WORLD_MODEL]

    def loss_of(keep_fp32: tuple[str, ...]) -> float:
        config = FP16TrainingConfig(
            precision=Precision.FP16, cpu_half=True, keep_fp32=keep_fp32, loss_scale=1.0
        )
        trainer = FP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), config)
        loss = trainer.training_step(
            batch, lambda forward, data: (forward(data["x_BD"]) - data["y_BD"]).square().mean()
        )
        trainer.step(loss)
        return float(loss.detach())

    with torch.no_grad():
        exact = float((model(batch["x_BD"]) - batch["y_BD"]).square().mean())
    assert not abs(loss_of(()) - exact) < 0.01 * exact
    assert loss_of(found.cure.keep_fp32[Role.WORLD_MODEL]) == pytest.approx(exact, rel=0.01)


class NearNumbers(nn.Module):
    """The difference of near numbers, of which a child computes one."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(8, 8)

    def forward(self, x_BD: Tensor) -> Tensor:
        moved_BD = self.child(x_BD) + 300
        difference_BD: Tensor = moved_BD - (x_BD + 300)
        return difference_BD


def test_a_module_is_preferred_to_its_neighbour_with_its_child() -> None:
    """Both in FP32 cure it too, as its own operations then take float32."""
    experiment = regression(NearNumbers())
    experiment.models[Role.WORLD_MODEL].first = nn.Linear(8, 8)
    found = bisect(experiment, types("fp32/bf16/fp32"))
    assert found.cure.keep_fp32 == {Role.WORLD_MODEL: ("middle",)}
    assert found.with_cure.ratio <= found.tolerance < found.half.ratio
