"""``python -m ....rehearsal DRIVER``: the trainer on fake tensors of ``cuda:0``; prints JSON.

The driver must be loaded before torch is imported, so this is a process of its own.
"""

import ctypes
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_found = importlib.util.find_spec("torch")
assert _found is not None
assert _found.origin is not None
_LIB = Path(_found.origin).parent / "lib"
for _name in (*sorted(path.name for path in _LIB.glob("libgomp*")), "libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(str(_LIB / _name), ctypes.RTLD_GLOBAL)
ctypes.CDLL(sys.argv[1])

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch._subclasses.fake_tensor import (  # noqa: E402
    DataDependentOutputException,
    FakeTensorMode,
)

from infrastructure.events import PrecisionState  # noqa: E402
from infrastructure.training import FP16Trainer, FP16TrainingConfig, optimizer_step  # noqa: E402
from infrastructure.training.cuda_graphs import GraphedTrainer  # noqa: E402

DEVICE = torch.device("cuda:0")


class Recorder:
    """Takes the step where a CUDA graph would record it: a read of the device is an error there."""

    def __init__(self) -> None:
        self.recorded = 0

    def run(self, step: Callable[[], None]) -> None:
        step()

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        step()
        self.recorded += 1
        return lambda: None


def trainer_of(*, fused: bool = True, **options: Any) -> FP16Trainer:
    with DEVICE:
        model = nn.Sequential(
            nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.BatchNorm1d(16), nn.Linear(16, 1)
        )
    kind: Any = {"fused": True} if fused else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **kind)
    return FP16Trainer(model, optimizer, FP16TrainingConfig(**options))


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 8, device=DEVICE), torch.randn(4, 1, device=DEVICE)


def loss_of(forward: Any, rows: Any) -> Tensor:
    return nn.functional.mse_loss(forward(rows[0]), rows[1])


def reading_loss(forward: Any, rows: Any) -> Tensor:
    loss = loss_of(forward, rows)
    return loss * float(loss > 0)  # what a step must not do


def reads(action: Callable[[], object]) -> bool:
    """Whether *action* reads the device: a fake tensor has no number to give."""
    try:
        action()
    except DataDependentOutputException:
        return True
    return False


def dtype_of_products(trainer: FP16Trainer) -> str:
    """Type in which the first layer computes under the precision in force."""
    seen: list[str] = []
    layer = next(module for module in trainer.model.modules() if isinstance(module, nn.Linear))
    handle = layer.register_forward_hook(lambda _, __, output: seen.append(str(output.dtype)))
    steps(trainer, count=1)
    handle.remove()
    return seen[0]


def steps(trainer: FP16Trainer, loss: Any = loss_of, count: int = 3) -> None:
    for _ in range(count):
        trainer.train_batch(batch(), loss)


def devices(tree: object) -> set[str]:
    if isinstance(tree, Tensor):
        return {str(tree.device)}
    if isinstance(tree, dict):
        return {device for value in tree.values() for device in devices(value)}
    if isinstance(tree, list | tuple):
        return {device for value in tree for device in devices(value)}
    return set()


def state(effective: Any) -> PrecisionState:
    return PrecisionState(requested="fp16", effective=effective, reason="operator")


def telemetry() -> dict[str, Any]:
    """The asynchronous copy of the statistics to the host, which is read later."""
    noted: list[str] = []

    class Event:  # of CUDA's; it has happened at once
        def record(self, _stream: object) -> None:
            noted.append("recorded")

        def query(self) -> bool:
            return True

    vars(torch.cuda).update(Event=Event, current_stream=lambda *_: None)
    trainer, polls = trainer_of(), list[Any]()
    steps(trainer)
    started = reads(lambda: polls.append(trainer.start_reading()))
    steps(trainer)
    return {
        "telemetry_reads": started,
        "telemetry_copies": noted,
        "telemetry_poll_reads": reads(polls[0]),
    }


def main() -> None:
    found: dict[str, Any] = {}
    # The start-up check compares numbers, which no fake tensor has; the CPU's tests run it.
    assert "skips_and_unscales" in vars(optimizer_step)
    vars(optimizer_step)["skips_and_unscales"] = lambda *_: True
    # Else autocast computes in FP32, with a warning.
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    meta = torch.library.Library("aten", "IMPL", "Meta")  # torch has none of this overload
    meta.impl("_fused_adamw_.tensor_lr", lambda *_, **__: None)
    torch.cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
    torch.cuda.set_rng_state = lambda *_: None
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.is_bf16_supported = lambda **_: True
    with FakeTensorMode():
        trainer = trainer_of()
        found["device"] = str(trainer.device)
        found["precision"] = str(trainer.precision)
        found["fused_refused"] = trainer.fused_step_unavailable_reason
        found["step_reads"], found["computes_in"] = {}, {}
        for name in ("fp16", "fp32", "bf16", "fp16"):
            trainer.set_precision(state(name))
            found["step_reads"][str(trainer.precision)] = reads(lambda: steps(trainer))
            found["computes_in"][str(trainer.precision)] = dtype_of_products(trainer)
        found["planted_read_reads"] = reads(lambda: steps(trainer_of(), reading_loss))
        found["accumulated_reads"] = reads(lambda: steps(trainer_of(accumulate=2), count=4))
        found["textbook_reads"] = reads(lambda: steps(trainer_of(fused=False)))
        found["backward_and_step_reads"] = reads(
            lambda: trainer.backward_and_step(trainer.training_step(batch(), loss_of))
        )
        found["stats_read"] = reads(lambda: trainer_of().get_stats())

        found |= telemetry()

        saved = trainer_of()
        steps(saved)
        found["weights_on"] = sorted(devices(saved.model.state_dict()))
        found["moments_on"] = sorted(devices(saved.optimizer.state_dict()))
        loaded = trainer_of()
        loaded.optimizer.load_state_dict(saved.optimizer.state_dict())
        loaded.model.load_state_dict(saved.model.state_dict())
        found["loaded_reads"] = reads(lambda: steps(loaded))

        for name, loss in (("graph", loss_of), ("graph_with_a_read", reading_loss)):
            recorder = Recorder()
            stepper = GraphedTrainer(trainer_of(), recorder)
            rows = batch()  # outside the batch: a graph's input is a plain tensor, not a fake one

            def of_rows(forward: Any, _: int, rows: Any = rows, loss: Any = loss) -> Any:
                return loss(forward, rows)

            def take(stepper: GraphedTrainer = stepper, loss: Any = of_rows) -> None:
                for _ in range(5):
                    stepper.train_batch(0, loss)

            found[f"{name}_reads"] = reads(take)
            found[f"{name}_recorded"] = recorder.recorded
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
