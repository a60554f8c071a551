"""Networks with planted faults of half precision, and healthy ones.

B examples, D = `WIDTH` inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from benchmarks.guard.faults import overflow_backward

WIDTH = 32


def _product(x: Tensor) -> Tensor:
    return (x + 2) @ torch.full((WIDTH, WIDTH), 60000.0) / 60000 / WIDTH


def _backward(x: Tensor) -> Tensor:
    return overflow_backward(x @ torch.eye(WIDTH), 0)


FAULTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "product": _product,
    "backward": _backward,
    "sum_of_squares": lambda x: x / ((x * 1000).square().sum(-1, keepdim=True) + 1).sqrt() * 1000,
    "softmax_1e5": lambda x: (x * 1e6).softmax(-1) + x,
    "epsilon": lambda x: x / (x.abs().clamp(max=0) + 1e-8) * 1e-8,
    "near_numbers": lambda x: (x + 8192) - 8192,
    "exponentials": lambda x: (x * 12 + 6).exp() / (1 + (x * 12 + 6).exp()) + x,
    "cumulated": lambda x: (x.abs() * 9000 + 9000).cumsum(-1) / 9e5 + x,
    "variance": lambda x: ((x + 300).square().mean(-1, keepdim=True) - 9e4) / 600 + x,
    "larger_of_two": lambda x: torch.maximum(x.abs() / 1e5 / 1e5 * 1e10, -x / 1e5 / 1e5 * 1e10),
}


class Faulty(nn.Module):
    """A linear layer, then the fault."""

    def __init__(self, fault: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self._fault = nn.Linear(WIDTH, WIDTH), fault

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        result: Tensor = self._fault(self.linear(x))
        return result


class GatedCells(nn.Module):
    """An LSTM over four steps whose gates are ``exp(z) / (1 + exp(z))``, which FP16 cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(WIDTH // 4 + WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last hidden state, ``[B, D]``."""
        hidden = cell = x.new_zeros(len(x), WIDTH)
        for step in x.view(len(x), 4, WIDTH // 4).unbind(1):
            gates = self.gates(torch.cat([step, hidden.to(step.dtype)], -1))
            raised = 2.0 ** (gates * 12 + 12)
            i, f, o, _ = (raised / (1 + raised)).chunk(4, -1)
            cell = f * cell + i * torch.tanh(gates.chunk(4, -1)[3])
            hidden = o * torch.tanh(cell)
        return hidden


def planted(name: str, seed: int, *, shallow: bool = True) -> tuple[nn.Module, str]:
    """A network with the fault somewhere, and the name of the module to blame.

    Of two that only together do harm, the names are joined by a comma.
    """
    generator = torch.Generator().manual_seed(seed)
    least, most = (4, 8) if shallow else (7, 11)
    depth = int(torch.randint(least, most, (), generator=generator))
    place = int(torch.randint(1, depth, (), generator=generator))
    linears = [nn.Linear(WIDTH, WIDTH) for _ in range(depth)]
    layers = [nn.Sequential(linear, nn.SiLU()) for linear in linears]
    head = nn.Linear(WIDTH, 1)
    model = nn.Sequential(*layers, head)
    if name == "head_6e4":
        with torch.no_grad():
            head.bias.fill_(7e4)
        return model, str(depth)
    if name == "exploding_layer":
        with torch.no_grad():
            linears[place].weight.mul_(3e5)
        layers[place].append(nn.Tanh())
        return model, str(place)
    if name == "lstm_gate":
        model[place] = nn.Sequential(GatedCells(), nn.Linear(WIDTH, WIDTH))
        return model, f"{place}.0"
    if name == "two_places":
        model[place] = nn.Sequential(Faulty(lambda x: x * 300), Faulty(lambda x: x * 300 / 9e4))
        return model, f"{place}.0,{place}.1"
    model[place] = Faulty(FAULTS[name])
    return model, str(place)


class _Rows(nn.Module):
    """Rows of WIDTH numbers as sequences of four steps for *inner*, then a linear layer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, nn.LazyLinear(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, 1]``."""
        out = self.inner(x.view(len(x), 4, WIDTH // 4))
        out = out[0] if isinstance(out, tuple) else out
        result: Tensor = self.last(out.flatten(1))
        return result


def healthy(number: int) -> nn.Module:
    """One of ten architectures, most of torch's own modules."""
    part = WIDTH // 4
    wide, out = nn.Linear(WIDTH, 64), nn.Linear(64, 1)
    layer = nn.TransformerEncoderLayer(part, 2, 16, dropout=0.0, batch_first=True)
    makers: tuple[Callable[[], nn.Module], ...] = (
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)),
        lambda: nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 1)
        ),
        lambda: nn.Sequential(
            nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.SiLU(), nn.Linear(64, 1)
        ),
        lambda: _Rows(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)),
        lambda: _Rows(nn.GRU(part, 16, batch_first=True)),
        lambda: _Rows(nn.Sequential(nn.Conv1d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 4, 3))),
        lambda: _Rows(nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.Tanh())),
        lambda: nn.Sequential(wide, nn.RMSNorm(64), nn.Mish(), out),
        lambda: nn.Sequential(wide, nn.PReLU(), out, nn.Softplus()),
        lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)), nn.Linear(WIDTH, 1)),
    )
    return makers[number % len(makers)]()


class _Foreign(nn.Module):
    """Rows of WIDTH numbers as embeddings of two tokens for a model of transformers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, 1]``."""
        out = self.inner(inputs_embeds=x.view(len(x), 2, WIDTH // 2))
        result: Tensor = self.last(out.last_hidden_state.flatten(1))
        return result


FOREIGN = (
    *("Bert", "Electra", "Roberta", "GPT2", "GPTNeoX", "OPT", "Llama", "Mistral", "Qwen2"),
    "Gemma",
)


def foreign(name: str) -> nn.Module:
    """A small model of ``transformers``, which nobody here wrote."""
    import transformers

    sizes: dict[str, int] = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64}
    if name == "GPT2":
        sizes = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    if name == "OPT":
        sizes |= {"ffn_dim": 32, "word_embed_proj_dim": 16}
    if name == "Gemma":
        sizes |= {"head_dim": 8}
    if name in ("Llama", "Mistral", "Qwen2", "Gemma"):
        sizes |= {"num_key_value_heads": 2}
    if name == "Electra":
        sizes |= {"embedding_size": 16}
    config = getattr(transformers, f"{name}Config")(**sizes)
    return _Foreign(getattr(transformers, f"{name}Model")(config))
