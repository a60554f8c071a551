"""Models whose FP16 ranges differ, and jobs on them."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.training.diagnostics.job_copy import JobCopy

CPU = torch.device("cpu")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.gru(x[:, None, :].expand(-1, 5, -1))[0])


class Attention(nn.Module):
    """Composite operations, an FP32 embedding, and residuals that stay FP32."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.layer(self.embedding((x.abs() * 10).long() % 50)))


class Shared(nn.Module):
    """One weight used twice, functional operations, and an encoder reached by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def encode(self, x):
        return torch.tanh(self.inner(x)) * 2.0

    def forward(self, x):
        return self.encode(self.encode(x)).square()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 32), nn.Linear(32, 4)),
    "norm": lambda: nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)),
    "conv": lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 4, 3), nn.Flatten()),
    "recurrent": Recurrent,
    "attention": Attention,
    "shared": Shared,
}


@pytest.fixture
def models() -> dict[str, Callable[[], nn.Module]]:
    return MODELS


@pytest.fixture
def probe_job() -> Callable[..., TrainingJob]:
    """A regression to zero whose loss has any magnitude."""

    def make(
        model: str | nn.Module = "mlp",
        magnitude: float = 1.0,
        seed: int = 0,
        rows: int = 32,
        loss: Callable[..., torch.Tensor] | None = None,
        **changes: object,
    ) -> TrainingJob:
        torch.manual_seed(seed)
        module = MODELS[model]() if isinstance(model, str) else model

        def batches(epoch: int):
            generator = torch.Generator().manual_seed(seed + epoch)
            for _ in range(6):
                yield {"x": torch.randn(rows, 8, generator=generator)}

        def square(forward, batch):
            return forward(batch["x"]).pow(2).mean() * magnitude

        values = {
            "model": module,
            "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
            "batches": batches,
            "loss": loss or square,
            "evaluate": lambda forward: Evaluation(
                metrics={"x": 0.0}, primary="x", higher_is_better=True
            ),
            "epochs": 1,
        }
        return TrainingJob(**(values | changes))

    return make


@pytest.fixture
def bench(probe_job: Callable[..., TrainingJob]) -> Callable[..., JobCopy]:
    def make(*arguments: object, batches: int = 2, **changes: object) -> JobCopy:
        return JobCopy(probe_job(*arguments, **changes), CPU, batches)

    return make
