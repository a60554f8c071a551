from __future__ import annotations

import pytest
import torch
from torch import nn

from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.precision import NoHalfKernelError, PrecisionForward

CPU = torch.device("cpu")


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({"rnn": nn.LSTM(4, 4, batch_first=True)})
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.encoder["rnn"](x)[0])


def test_a_missing_kernel_names_its_module_and_the_remedy_which_helps():
    model, x = Recurrent(), torch.randn(2, 3, 4)
    with pytest.raises(NoHalfKernelError) as caught:
        PrecisionForward(model, CPU, Precision.FP16)(x)
    message = str(caught.value)
    assert message.startswith("module 'encoder.rnn' (LSTM) cannot compute in fp16 on cpu")
    assert "keep_fp32=['encoder.rnn']" in message
    assert isinstance(caught.value.__cause__, RuntimeError)
    trainer = FP16Trainer(
        model,
        torch.optim.AdamW(model.parameters(), fused=True),
        FP16TrainingConfig(cpu_half=True, keep_fp32=[caught.value.module]),
    )
    trainer.train_batch(x, lambda f, b: f(b).square().mean())
    assert trainer.get_stats()["applied_steps"] == 1


def test_an_operation_of_the_model_itself():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return torch.addbmm(x.double(), self.linear(x)[None], x[None])

    with pytest.raises(NoHalfKernelError, match=r"\(Mixing\).*\.float\(\)"):
        PrecisionForward(Mixing(), CPU, Precision.BF16)(torch.randn(4, 4))


def test_other_errors_stay_as_they_are():
    class Wrong(nn.Linear):
        def forward(self, x):
            raise RuntimeError("the half of it is missing")

    for model in (nn.Linear(3, 3), Wrong(4, 4)):
        with pytest.raises(RuntimeError) as caught:
            PrecisionForward(model, CPU, Precision.FP16)(torch.randn(2, 4))
        assert not isinstance(caught.value, NoHalfKernelError)
