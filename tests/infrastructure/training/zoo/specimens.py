"""Models as people have them, none wider than 64, each with its batches and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

Batch = dict[str, Tensor]
Call = Callable[..., Any]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

VOCABULARY = 40


@dataclass(frozen=True, kw_only=True)
class Specimen:
    """A kind of model and how it is trained.

    Attributes:
        build: Makes the model; called after the seed is set.
        batch: Makes a batch of the given number.
        loss: Loss from the model as it is called, and a batch; casts what it uses to float32
            itself, as a textbook loop has to.
        keep_fp32: Modules that FP16 has no kernel for on a CPU.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[Call, Batch], Tensor]
    keep_fp32: Sequence[str] = ()


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, fused=True)


# Batches.


def _generator(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def tokens(number: int) -> Batch:
    ids = torch.randint(2, VOCABULARY, (4, 10), generator=_generator(number))
    return {"input_ids": ids, "labels": ids}


def classified_tokens(number: int) -> Batch:
    batch = tokens(number)
    return {"input_ids": batch["input_ids"], "labels": batch["input_ids"][:, 0] % 3}


def images(number: int) -> Batch:
    generator = _generator(number)
    pixels = torch.randn(4, 3, 8, 8, generator=generator)
    return {"pixel_values": pixels, "labels": torch.randint(3, (4,), generator=generator)}


def vectors(number: int) -> Batch:
    x = torch.randn(8, 16, generator=_generator(number))
    return {"x": x, "y": x[:, :4].tanh()}


def sequences(number: int) -> Batch:
    x = torch.randn(4, 6, 16, generator=_generator(number))
    return {"x": x, "y": x[..., :4].cumsum(1).tanh()}


# Losses.


def own_loss(call: Call, batch: Batch) -> Tensor:
    """The loss that a model of transformers computes from the labels."""
    result: Tensor = call(**batch).loss.float()
    return result


def next_token_loss(call: Call, batch: Batch) -> Tensor:
    logits = call(input_ids=batch["input_ids"]).logits.float()
    return nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten()
    )


def pooled_loss(call: Call, batch: Batch) -> Tensor:
    output = call(input_ids=batch["input_ids"], output_hidden_states=True)
    pooled = output.last_hidden_state.float().mean((1, 2))
    return (
        nn.functional.mse_loss(pooled, batch["labels"].float()) + output[1].float().square().mean()
    )


def class_loss(call: Call, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(call(batch["pixel_values"]).float(), batch["labels"])


def squared_error(call: Call, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(call(batch["x"]).float(), batch["y"])


def likelihood(call: Call, batch: Batch) -> Tensor:
    policy = call(batch["x"])
    own = torch.distributions.Normal(policy.base_dist.loc.float(), policy.base_dist.scale.float())
    return -own.log_prob(batch["y"]).mean()


# Models of transformers; its import takes seconds, so it comes late.


def _decoder_config(**own: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
        **own,
    }


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(**_decoder_config(n_embd=32, n_layer=2, n_head=2, n_positions=24))
    )


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            **_decoder_config(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                intermediate_size=64,
                max_position_embeddings=24,
            )
        )
    )


_ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
}


def bert_classifier() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**_ENCODER, num_labels=3))


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**_ENCODER))


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            **_decoder_config(
                d_model=32, num_layers=2, num_heads=2, d_ff=64, d_kv=16, decoder_start_token_id=0
            )
        )
    )


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            image_size=8,
            patch_size=4,
            num_labels=3,
        )
    )


def checkpointed_gpt2(*, reentrant: bool) -> nn.Module:
    model: Any = gpt2()
    model.config.use_cache = False
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    module: nn.Module = model
    return module


# Plain models.


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(16, 32), nn.SiLU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 4)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


class Recurrent(nn.Module):
    """A recurrent net over whole or packed sequences."""

    def __init__(self, kind: type[nn.RNNBase], *, packed: bool = False) -> None:
        super().__init__()
        self.rnn = kind(16, 24, num_layers=2, batch_first=True)  # type: ignore[call-arg]
        self.head, self.packed = nn.Linear(24, 4), packed

    def forward(self, x: Tensor) -> Tensor:
        if self.packed:
            lengths = torch.tensor([6, 5, 4, 6])
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        hidden = self.rnn(x)[0]
        if self.packed:
            hidden, _ = pad_packed_sequence(hidden, batch_first=True)
        result: Tensor = self.head(hidden)
        return result


class Cells(nn.Module):
    """Cells stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(16, 24), nn.GRUCell(24, 24)
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = hidden = None
        outputs = []
        for step in x.unbind(1):
            state = self.first(step, state)
            hidden = self.second(state[0], hidden)
            outputs.append(self.head(hidden))
        return torch.stack(outputs, 1)


class Checkpointed(nn.Module):
    """Blocks that are computed again in the backward pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1)) for _ in range(2)
        )
        self.head, self.reentrant = nn.Linear(32, 4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        result: Tensor = self.head(x)
        return result


class Tied(nn.Module):
    """An autoencoder whose decoder is its encoder's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight
        self.first = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.decoder(self.encoder(self.first(x)).tanh())
        return result


def frozen() -> nn.Module:
    model = mlp()
    model[0].requires_grad_(False)
    return model


def compiled() -> nn.Module:
    model: nn.Module = torch.compile(mlp()[:3].append(nn.Linear(32, 4)), backend="aot_eager")
    return model


def normed(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(norm(nn.Linear(16, 32)), nn.Tanh(), norm(nn.Linear(32, 4)))


def transformer_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 4)
    )


class Policy(nn.Module):
    """Returns a distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> torch.distributions.Distribution:
        spread = nn.functional.softplus(self.spread(x)) + 0.1
        return torch.distributions.Independent(torch.distributions.Normal(self.mean(x), spread), 1)


def _plain(build: Callable[[], nn.Module], batch: Any = vectors, **own: Any) -> Specimen:
    return Specimen(build=build, batch=batch, loss=squared_error, **own)


SPECIMENS: dict[str, Specimen] = {
    "decoder, labels": Specimen(build=gpt2, batch=tokens, loss=own_loss),
    "decoder, no labels": Specimen(build=llama, batch=tokens, loss=next_token_loss),
    "encoder, labels": Specimen(build=bert_classifier, batch=classified_tokens, loss=own_loss),
    "encoder, no labels": Specimen(build=bert, batch=classified_tokens, loss=pooled_loss),
    "encoder-decoder": Specimen(build=t5, batch=tokens, loss=own_loss),
    "vision": Specimen(build=vit, batch=images, loss=own_loss),
    "decoder, reentrant checkpoints": Specimen(
        build=lambda: checkpointed_gpt2(reentrant=True), batch=tokens, loss=own_loss
    ),
    "decoder, checkpoints": Specimen(
        build=lambda: checkpointed_gpt2(reentrant=False), batch=tokens, loss=own_loss
    ),
    "mlp": _plain(mlp),
    "convolutions, batch norm": Specimen(build=cnn, batch=images, loss=class_loss),
    "lstm": _plain(lambda: Recurrent(nn.LSTM), sequences, keep_fp32=["rnn"]),
    "lstm, packed": _plain(lambda: Recurrent(nn.LSTM, packed=True), sequences, keep_fp32=["rnn"]),
    "gru": _plain(lambda: Recurrent(nn.GRU), sequences),
    "rnn": _plain(lambda: Recurrent(nn.RNN), sequences),
    "cells": _plain(Cells, sequences),
    "reentrant checkpoints": _plain(lambda: Checkpointed(reentrant=True)),
    "checkpoints": _plain(lambda: Checkpointed(reentrant=False)),
    "tied": _plain(Tied),
    "frozen": _plain(frozen),
    "compiled": _plain(compiled),
    "weight norm": _plain(lambda: normed(parametrizations.weight_norm)),
    "spectral norm": _plain(lambda: normed(parametrizations.spectral_norm)),
    "spectral norm, by a hook": _plain(lambda: normed(spectral_norm)),
    "attention": _plain(transformer_encoder, sequences),
    "distribution": Specimen(build=Policy, batch=vectors, loss=likelihood),
}

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "Muon": lambda p: torch.optim.Muon([each for each in p if each.ndim == 2], lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.001),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "SGD, fused": sgd,
}
