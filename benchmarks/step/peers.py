"""The same loop for Lightning Fabric and for Accelerate, as in their documentation."""

from __future__ import annotations

import logging
from typing import Any

from torch.nn import functional

from benchmarks.measuring.not_run import NotRunError
from benchmarks.step.loops import MAX_NORM, Loop, Setup, adamw, require_eager
from benchmarks.step.models import Batch

_INSTALL = "is not installed; run: pip install --constraint constraints.txt --editable '.[peers]'"


def fabric(setup: Setup) -> Loop:
    """Build the loop of Lightning Fabric.

    In FP16 Fabric refuses to clip with a fused optimizer, so it gets an unfused one. On a CPU it
    would compute in BF16 instead, so its FP16 plugin is set explicitly.

    Raises:
        NotRunError: Lightning is not installed.
    """
    require_eager(setup)
    try:
        from lightning.fabric import Fabric
        from lightning.fabric.plugins import MixedPrecision
    except ImportError as error:
        raise NotRunError(f"lightning {_INSTALL}") from error

    for name in ("lightning.fabric", "lightning.pytorch"):  # they log each set-up of AMP
        logging.getLogger(name).setLevel(logging.WARNING)
    fp16 = setup.precision == "fp16"
    options: dict[str, Any] = {"precision": "bf16-mixed" if setup.half_dtype else "32-true"}
    devices = [setup.device.index or 0] if setup.device.type == "cuda" else 1
    note = ""
    if fp16:
        options = {"plugins": [MixedPrecision("16-mixed", setup.device.type)]}
        note = "AdamW not fused (refused together with clipping); non-finite norms allowed"
    lightning = Fabric(accelerator=setup.device.type, devices=devices, **options)
    raw = adamw(setup.model, fused=not fp16)
    model, optimizer = lightning.setup(setup.model, raw)

    def step(batch: Batch) -> None:
        loss = functional.mse_loss(model(batch.x), batch.y)
        lightning.backward(loss)
        lightning.clip_gradients(model, optimizer, max_norm=MAX_NORM, error_if_nonfinite=not fp16)
        optimizer.step()
        optimizer.zero_grad()

    return Loop(step=step, model=model, optimizer=raw, note=note)


def accelerate(setup: Setup) -> Loop:
    """Build the loop of Hugging Face Accelerate.

    Raises:
        NotRunError: Accelerate is not installed.
    """
    require_eager(setup)
    try:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, PartialState
    except ImportError as error:
        raise NotRunError(f"accelerate {_INSTALL}") from error

    # Accelerate keeps one precision per process; `enter` swaps its state to measure several.
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(
        cpu=setup.device.type == "cpu",
        mixed_precision=setup.precision if setup.half_dtype else "no",
    )
    whole, partial = dict(AcceleratorState._shared_state), dict(PartialState._shared_state)
    raw = adamw(setup.model)
    model, optimizer = accelerator.prepare(setup.model, raw)

    def enter() -> None:
        PartialState._shared_state.update(partial)
        AcceleratorState._shared_state.update(whole)

    def step(batch: Batch) -> None:
        loss = functional.mse_loss(model(batch.x), batch.y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return Loop(step=step, model=model, optimizer=raw, enter=enter)
