import copy

import pytest
import torch
from torch import nn

from infrastructure.fleet import Fleet, FleetMember, not_stackable_reason
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.precision.compiled_calls import CompiledCalls


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2))

    def forward(self, x):
        return self.layers(x)


def hooked():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_hook(lambda *_: None)
    return model


def shared():
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.ReLU(), layer)


def frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (Wrapped, "Wrapped has a forward()"),
        (hooked, "'0' has hooks"),
        (shared, "share parameters"),
        (frozen, "0.bias is frozen"),
        (lambda: nn.Sequential(nn.LayerNorm(2)), "'0' is a LayerNorm"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), "'1' works in place"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.SiLU()), None),
    ],
)
def test_the_reason_names_what_is_in_the_way(build, reason):
    found = not_stackable_reason(build())
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"accumulate": 2}, "accumulated over micro-batches"),
        ({"keep_fp32": ["0"]}, "replaced forward"),
        ({"detect_anomaly": True}, "detects anomalies"),
        ({"cuda_graph": True}, "CUDA graphs"),
    ],
)
def test_what_a_trainer_does_in_its_step_can_be_in_the_way(config, reason):
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    fleet = Fleet()
    trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(**config))
    fleet.join("a", FleetMember(trainer=trainer, loss=lambda f, b: f(b["x"]).mean()))
    assert reason in fleet.alone["a"]


def test_a_compiled_model_trains_alone():
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    fleet = Fleet()
    trainer = FP16Trainer(model, optimizer, compiled=CompiledCalls())
    fleet.join("a", FleetMember(trainer=trainer, loss=lambda f, b: f(b["x"]).mean()))
    assert "its model is compiled" in fleet.alone["a"]


def test_an_optimizer_of_some_parameters_trains_alone():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    trainers = [
        FP16Trainer(each, torch.optim.AdamW(chosen(each), fused=True))
        for each, chosen in (
            (model, lambda m: m[0].parameters()),
            (copy.deepcopy(model), lambda m: reversed(list(m.parameters()))),
        )
    ]
    fleet = Fleet()
    for name, trainer in enumerate(trainers):
        fleet.join(str(name), FleetMember(trainer=trainer, loss=lambda f, b: f(b["x"]).mean()))
    assert all("only some" in why for why in fleet.alone.values())
