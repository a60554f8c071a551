"""A state that does not fit is refused by the name of what is wrong, and nothing changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.checkpoints import CheckpointError, write_checkpoint
from infrastructure.training.checkpoints.fit import compare_model, compare_optimizer

EVERY = [
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD"),
]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 1))


@pytest.fixture
def trainer() -> FP16Trainer:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    return FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True, adaptive_clip=True))


@pytest.fixture
def saved(trainer, batch, loss_fn) -> dict[str, Any]:
    """The state of the trainer after one step; another step follows."""
    trainer.step(trainer.training_step(batch, loss_fn))
    state = copy.deepcopy(trainer.state_dict())
    trainer.step(trainer.training_step(batch, loss_fn))
    return state


def flat(trainer: FP16Trainer) -> list[torch.Tensor]:
    state = trainer.state_dict()
    moments = [m for each in state["optimizer"]["state"].values() for m in each.values()]
    numbers = [*state["loss_scale"].values(), *state["record"].values()]
    numbers += [*state["adaptive_clip"].values(), state["optimizer"]["param_groups"][0]["lr"]]
    tensors = [*state["model"].values(), *moments, torch.tensor(numbers, dtype=torch.float64)]
    return [each.clone() for each in tensors]


@pytest.fixture
def refused(trainer, batch, loss_fn, tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """The error of loading a state from a file; nothing has changed, and training goes on."""

    def refused(state: dict[str, Any]) -> str:
        before = flat(trainer)
        write_checkpoint(tmp_path / "c.pt", state)
        with pytest.raises(CheckpointError) as caught:
            trainer.load_checkpoint(tmp_path / "c.pt")
        assert all(torch.equal(a, b) for a, b in zip(flat(trainer), before, strict=True))
        trainer.step(trainer.training_step(batch, loss_fn))
        return str(caught.value)

    return refused


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value

    return change


def remove(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        for key in path[:-1]:
            state = state[key]
        del state[path[-1]]

    return change


OF_FIRST = ("optimizer", "state", 0)
GROUP = ("optimizer", "param_groups", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove(*OF_FIRST, "exp_avg_sq"), "exp_avg_sq of 0.weight"),
        (put(*OF_FIRST, "exp_avg", value=None), "lacks exp_avg of 0.weight"),
        (put(*OF_FIRST, "exp_avg", value=torch.zeros(3)), "exp_avg of 0.weight of shape (3,)"),
        (put(*OF_FIRST, "exp_avg", value="x"), "exp_avg of 0.weight a str"),
        (put(*OF_FIRST, "exp_avg", value=torch.zeros(6, 4).to_sparse()), "a real sparse_coo"),
        (put(*OF_FIRST, "step", value=torch.zeros(2)), "step of 0.weight a real strided"),
        (put(*GROUP, "params", value=[0, 1]), "of [2] parameters by group where this one has [4]"),
        (put(*GROUP, "params", value=[0, 0, 1, 2]), "without state and param_groups"),
        (put("optimizer", "param_groups", value=[]), "of [] parameters"),
        (put("optimizer", "state", value=[1]), "without state and param_groups"),
        (put("optimizer", value=3), "without state and param_groups"),
        (put(*GROUP, "lr", value="fast"), "Adam refuses ("),
        (put(*GROUP, "lr", value=-1.0), "learning rate: -1.0"),
        (remove(*GROUP, "betas"), "but not betas"),
        (put("loss_scale", "loss_scale", value=float("inf")), "loss_scale: loss_scale is inf"),
        (put("loss_scale", "growth_tracker", value=-1), "loss_scale: growth_tracker is -1"),
        (put("loss_scale", value=None), "loss_scale a NoneType"),
        (put("record", "training_steps", value=1.5), "record: training_steps is 1.5"),
        (remove("record", "overflow_steps"), "record: overflow_steps is None"),
        (put("adaptive_clip", "mean", value="x"), "adaptive_clip: mean is 'x'"),
        (remove("model", "2.bias"), "lacks 2.bias"),
        (put("model", "2.bias", value=torch.zeros(5)), "2.bias of shape (5,)"),
        (put("model", "2.bias", value="x"), "2.bias a str"),
        (put("model", value=[1]), "not tensors by name"),
        (put("model", 7, value=torch.zeros(1)), "not tensors by name"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_changes(saved, refused, change, message):
    change(saved)
    error = refused(saved)
    assert message in error
    assert "c.pt does not fit (" in error


@pytest.mark.parametrize("name", EVERY)
def test_every_optimizer_takes_its_own_state_and_no_damaged_one(name, batch, loss_fn):
    model = network()
    options = {"momentum": 0.9} if name in {"SGD", "RMSprop"} else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    assert list(compare_optimizer(optimizer.state_dict(), optimizer, model)) == []
    trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(enabled=False))
    trainer.step(trainer.training_step(batch, loss_fn))
    state = copy.deepcopy(optimizer.state_dict())
    assert list(compare_optimizer(state, optimizer, model)) == []
    for key, value in state["state"][2].items():
        others = {k: v for k, v in state["state"][2].items() if k != key}
        for damage, message in (({}, "lacks"), ({key: torch.zeros(5, 5)}, "has")):
            if not others and not damage:
                continue  # as for a parameter that has had no gradient
            damaged = {**state, "state": {**state["state"], 2: {**others, **damage}}}
            (problem,) = compare_optimizer(damaged, optimizer, model)
            assert problem.startswith(message)
            assert f"{key} of 2.weight" in problem
        assert isinstance(value, torch.Tensor)


class Scheduled(torch.optim.SGD):
    """Not torch's own: what it keeps is unknown."""


@pytest.mark.parametrize(
    "stored",
    [
        lambda value: value.t().contiguous().t() if value.ndim == 2 else value,
        lambda value: torch.zeros(1).expand(value.shape),
        lambda value: value.requires_grad_(),
    ],
    ids=["other strides", "overlapping", "a leaf of autograd"],
)
def test_a_state_trains_the_same_however_its_tensors_are_stored(
    trainer, saved, batch, loss_fn, stored
):
    """Else a fused kernel takes the memory for that of the parameter, and writes beyond it."""
    plain = copy.deepcopy(saved)
    for entry, odd in zip(
        plain["optimizer"]["state"].values(), saved["optimizer"]["state"].values(), strict=True
    ):
        odd["exp_avg"] = stored(odd["exp_avg"])
        entry["exp_avg"] = odd["exp_avg"].detach().clone(memory_format=torch.contiguous_format)
    odd_trained, plain_trained = [], []
    for state, trained in ((plain, plain_trained), (saved, odd_trained)):
        trainer.load_state_dict(copy.deepcopy(state))
        for entry in trainer.optimizer.state.values():
            assert entry["exp_avg"].is_contiguous()
        trainer.train_batch(batch, loss_fn)
        trained += [parameter.detach().clone() for parameter in trainer.model.parameters()]
    assert all(map(torch.equal, odd_trained, plain_trained))


def test_moments_that_share_memory_are_separated(trainer, saved):
    for entry in saved["optimizer"]["state"].values():
        entry["exp_avg"] = entry["exp_avg_sq"]
    saved["optimizer"]["state"][99] = {"exp_avg": torch.zeros(1)}  # of no parameter
    trainer.load_state_dict(saved)
    for parameter in trainer.model.parameters():
        entry = trainer.optimizer.state[parameter]
        assert entry["exp_avg"].data_ptr() != entry["exp_avg_sq"].data_ptr()


def test_the_state_of_an_unknown_optimizer_passes():
    model = network()
    optimizer = Scheduled(model.parameters(), lr=0.1, momentum=0.9)
    state = optimizer.state_dict()
    state["state"] = {0: {"momentum_buffer": torch.zeros(3)}}
    assert list(compare_optimizer(state, optimizer, model)) == []
    state["param_groups"][0].pop("lr")
    assert list(compare_optimizer(state, optimizer, model)) != []


class Renamed(nn.Module):
    """Loads states of its earlier version, whose layer had another name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_load_state_dict_pre_hook(self._rename)

    @staticmethod
    def _rename(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        for name in ("weight", "bias"):
            if f"{prefix}old.{name}" in state:
                state[f"{prefix}layer.{name}"] = state.pop(f"{prefix}old.{name}")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_a_model_may_translate_an_earlier_state_of_its_own():
    model = Renamed()
    trainer = FP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    state = copy.deepcopy(trainer.state_dict())
    state["model"] = {f"old.{name.partition('.')[2]}": v + 1 for name, v in state["model"].items()}
    expected = model.layer.bias.detach() + 1
    trainer.load_state_dict(state)
    assert torch.equal(model.layer.bias, expected)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    # Shapes that fit and others
    | st.sampled_from([torch.zeros(6, 4), torch.zeros(6), torch.zeros(()), torch.zeros(2, 0)]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([0, 1, "exp_avg", "step", "lr", "params", "x"]), inner)
    ),
    max_leaves=5,
)
PLACES = [
    ("optimizer",),
    ("optimizer", "state"),
    ("optimizer", "param_groups"),
    GROUP,
    (*GROUP, "params"),
    (*GROUP, "lr"),
    (*GROUP, "betas"),
    ("optimizer", "state", 2),
    (*OF_FIRST, "exp_avg"),
    (*OF_FIRST, "step"),
    ("model",),
    ("model", "0.weight"),
    ("frozen_base",),
    ("loss_scale",),
    ("loss_scale", "loss_scale"),
    ("record",),
    ("adaptive_clip",),
]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=min(60, settings.default.max_examples),
)
@given(place=st.sampled_from(PLACES), value=VALUES)
@example(place=("adaptive_clip",), value=torch.ones(2))
def test_any_state_is_loaded_and_trains_or_is_refused(place, value, trainer, saved, batch, loss_fn):
    state = copy.deepcopy(saved)
    put(*place, value=value)(state)
    before = flat(trainer)
    try:
        trainer.load_state_dict(state)
    except ValueError:
        assert all(torch.equal(a, b) for a, b in zip(flat(trainer), before, strict=True))
    trainer.step(trainer.training_step(batch, loss_fn))
    trainer.load_state_dict(saved)


def test_problems_of_a_model_are_listed():
    assert list(compare_model(network().state_dict(), network())) == []
    problems = list(compare_model(nn.Linear(2, 2).state_dict(), nn.Linear(2, 3)))
    assert problems[0] == "has weight of shape (2, 2) where the model has (3, 2)"
