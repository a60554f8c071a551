"""Everything that changes when the precision changes, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from infrastructure.events import PrecisionState
from infrastructure.training.distributed.modules import pinned_precision
from infrastructure.training.precision.forward import PrecisionForward
from infrastructure.training.precision.master_weights import MasterWeights
from infrastructure.training.precision.precision import Precision, resolve


class PinnedPrecisionError(RuntimeError):
    """The precision cannot change while the process lives.

    Args:
        pinned: What the model's `MixedPrecisionPolicy` computes in.
        wanted: What was to be in force.
    """

    def __init__(self, pinned: Precision, wanted: Precision) -> None:
        super().__init__(
            f"FSDP2's MixedPrecisionPolicy holds the model to {pinned} and cannot be changed to "
            f"{wanted}: save a checkpoint and restart, or shard the model without param_dtype"
        )


class PrecisionSwitch:
    """Holds the precision in force, the model's `Forward` under it, and the master weights.

    Args:
        model: With float32 parameters.
        optimizer: Over *parameters*.
        parameters: Those the optimizer updates; the list is changed in place, so that it always
            holds what the optimizer updates now.
        device: Of the model.
        cpu_half: As in `FP16TrainingConfig`.
        wish: The precision to begin with.

    Attributes:
        state: Requested, effective and the reason.
        precision: The effective one.
        forward: The model under it.
        cast_requested: Whether the model is held in FP16 whenever FP16 is in force.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        parameters: list[Parameter],
        *,
        device: torch.device,
        cpu_half: bool,
        wish: PrecisionState,
    ) -> None:
        self._model, self._optimizer, self._parameters = model, optimizer, parameters
        self._device, self._cpu_half = device, cpu_half
        self.cast_requested = False
        self._masters: MasterWeights | None = None
        self._pinned = pinned_precision(model)
        self.apply(wish)

    def apply(self, wish: PrecisionState) -> PrecisionState:
        """Put *wish* in force, held against the hardware; returns what is in force.

        Raises:
            PinnedPrecisionError: The model is held to another precision; nothing has changed.
        """
        state = resolve(wish, self._device, cpu_half=self._cpu_half)
        precision = Precision(state.effective)
        if self._pinned not in {None, precision}:
            raise PinnedPrecisionError(self._pinned, precision)
        self.state, self.precision = state, precision
        self.forward = PrecisionForward(self._model, self._device, self.precision)
        self._cast_or_not()
        return self.state

    def cast_model(self) -> None:
        """From now on hold the parameters in FP16 whenever FP16 is in force."""
        self.cast_requested = True
        self._cast_or_not()

    @contextmanager
    def float32_parameters(self) -> Iterator[None]:
        """Give the model its float32 parameters back for a while."""
        self._uncast()
        try:
            yield
        finally:
            self._cast_or_not()

    def after_backward(self) -> None:
        """Move the gradients of a cast model to its masters."""
        if self._masters is not None:
            self._masters.take_gradients()

    def after_step(self) -> None:
        """Copy the masters of a cast model into it, and forget half copies of the old weights.

        A caller's own autocast around several steps would keep them.
        """
        torch.clear_autocast_cache()
        if self._masters is not None:
            self._masters.update_model()

    def _cast_or_not(self) -> None:
        if not (self.cast_requested and self.precision is Precision.FP16):
            self._uncast()
        elif self._masters is None:
            self._masters = MasterWeights(self._model, self._optimizer, self._parameters[:])
            self._parameters[:] = self._masters.parameters

    def _uncast(self) -> None:
        if self._masters is not None:
            self._parameters[:] = self._masters.remove()
            self._masters = None
