"""The live switch: everything that changes when the precision changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from infrastructure.events import PrecisionState
from infrastructure.training.distributed.modules import policy_dtype
from infrastructure.training.precision.compiled_calls import CompiledCalls
from infrastructure.training.precision.forward import PrecisionForward
from infrastructure.training.precision.keep_fp32 import RaisedModules
from infrastructure.training.precision.master_weights import MasterWeights
from infrastructure.training.precision.precision import Precision, resolve


class PinnedPrecisionError(RuntimeError):
    """The precision cannot change until the process restarts.

    Args:
        pinned: Precision of the model's `MixedPrecisionPolicy`.
        wanted: Precision, or modules in FP32, that were requested.
    """

    def __init__(self, pinned: Precision, wanted: str) -> None:
        super().__init__(
            f"FSDP2's MixedPrecisionPolicy holds the model to {pinned} and cannot be changed to "
            f"{wanted}: save a checkpoint and restart, or shard the model without param_dtype"
        )


class PrecisionSwitch:
    """Holds the precision in force, the model's `Forward` under it, and the master weights.

    Args:
        model: Model on one device, whose parameters are float32.
        parameters: Parameters the optimizer updates, at least one; the list is changed in place, so
            that it always holds the ones it updates now.
        wish: The precision to begin with.
        compiled: Compiles the model's calls; None for eager ones.

    Attributes:
        state: Requested, effective and the reason.
        precision: The effective precision.
        forward: The model under it.
        cast_requested: Whether the model is held in FP16 whenever FP16 is in force.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        parameters: list[Parameter],
        *,
        cpu_half: bool,
        wish: PrecisionState,
        compiled: CompiledCalls | None = None,
    ) -> None:
        self._model, self._optimizer, self._parameters = model, optimizer, parameters
        self._device, self._cpu_half = parameters[0].device, cpu_half
        self._compiled = compiled
        self.cast_requested = False
        self._masters: MasterWeights | None = None
        self._raised = RaisedModules(model, self._device)
        pinned = policy_dtype(model)
        self._pinned = next((p for p in Precision if p.compute == pinned), None)
        self.apply(wish)

    def apply(self, wish: PrecisionState) -> PrecisionState:
        """Put *wish* in force where the hardware allows it, else FP32; return the state in force.

        Raises:
            PinnedPrecisionError: The model is held to another precision; nothing has changed.
            UnknownModuleError: A module to raise is not the model's; nothing has changed.
        """
        state = resolve(wish, self._device, cpu_half=self._cpu_half)
        precision = Precision(state.effective)
        if self._pinned not in {None, precision}:
            raise PinnedPrecisionError(self._pinned, precision)
        if self._pinned is not None and state.modules:
            raise PinnedPrecisionError(self._pinned, f"FP32 in {', '.join(state.modules)}")
        self._raised.replace(state.modules)
        self.state, self.precision = state, precision
        self._update_cast()
        self.forward = PrecisionForward(
            self._model, self._device, precision, self._compiled, raised=state.modules
        )
        return self.state

    def cast_model(self) -> None:
        """Hold the parameters in FP16 whenever FP16 is in force, from now on."""
        self.cast_requested = True
        self._update_cast()

    @contextmanager
    def float32_parameters(self) -> Iterator[None]:
        """Restore the model's float32 parameters inside the block."""
        self._uncast()
        try:
            yield
        finally:
            self._update_cast()

    def clear_gradients(self) -> None:
        """Leave no gradient in the parameters that the optimizer updates."""
        for parameter in self._parameters:
            parameter.grad = None
        if self._masters is not None:
            self._masters.clear_gradients()

    def after_backward(self) -> None:
        """Move the gradients of a cast model to its masters."""
        if self._masters is not None:
            self._masters.take_gradients()

    def after_step(self) -> None:
        """Copy the masters of a cast model into it, and drop autocast's copies of old weights.

        A caller's own autocast around several steps would keep those.
        """
        torch.clear_autocast_cache()
        if self._masters is not None:
            self._masters.update_model()

    def _update_cast(self) -> None:
        if not (self.cast_requested and self.precision is Precision.FP16):
            self._uncast()
        elif self._masters is None:
            self._masters = MasterWeights(self._model, self._optimizer, self._parameters[:])
            self._parameters[:] = self._masters.parameters

    def _uncast(self) -> None:
        if self._masters is not None:
            self._parameters[:] = self._masters.remove()
            self._masters = None
