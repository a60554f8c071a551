"""The buffers of a model as they were before a step that was skipped.

A forward pass that overflows leaves NaN in running statistics, and no later batch removes it
(pytorch #88474, #115500). So the trainer copies the buffers before an accumulation window, and
puts the copies back if the window's step is skipped. An accelerator decides by itself: the host
does not wait for it.
"""

from __future__ import annotations

from operator import is_

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from infrastructure.torch_internals.modules import buffer_places
from infrastructure.torch_internals.tensor_lists import copy_all


class BufferRestore:
    """Copies the buffers of a model before a window, and restores them if its step is skipped.

    Buffers of every dtype are restored, whether they were changed in place or replaced. These are
    not: a buffer that got another shape or dtype, one that is registered or filled inside the
    window, one on another device than *device* or of a sparse layout, any other attribute of a
    module, a parameter that a forward pass writes, a buffer of another model.

    Args:
        model: Model whose buffers are copied; the copies need as much memory as the buffers.
        device: The device of the model's parameters.

    Attributes:
        host_decides: Whether the host reads if a step was skipped. On a CPU it waits for nothing.
    """

    def __init__(self, model: Module, device: torch.device) -> None:
        self._model, self._device = model, device
        self.host_decides = device.type == "cpu"
        self._is_open = False
        self._windows = 0
        self.find_buffers()

    def find_buffers(self) -> None:
        """Look for the buffers of the model: it may have new modules."""
        self._places = buffer_places(self._model)
        self._before: list[Tensor | None] = []
        self._copies: list[Tensor | None] = []
        self._can_copy_again = False

    def discard(self) -> None:
        """End the window, if there is one; the buffers keep their values."""
        self._is_open = False

    def open_window(self) -> None:
        """Copy the buffers; a window that is open already is settled before."""
        self.settle()
        self._windows += 1
        if not self._windows & (self._windows - 1):  # a power of two: find those made since
            self.find_buffers()
        if not self._places:
            return
        self._is_open = True
        now = [registry.get(name) for registry, name in self._places]
        if not (self._can_copy_again and all(map(is_, now, self._before))):
            self._make_copies(now)
            return
        try:
            copy_all(self._targets, self._sources)
        except RuntimeError:  # a buffer has grown in place
            self._make_copies(now)

    def settle(self) -> None:
        """End an open window whose loss was dropped, or failed.

        A module whose buffers have become non-finite gets all of them from before the window; the
        buffers of other modules stay.
        """
        if not self._is_open:
            return
        self._is_open = False
        with torch.no_grad():
            for registry in {id(registry): registry for registry, _ in self._places}.values():
                self._settle(registry)

    def _settle(self, registry: dict[str, Tensor | None]) -> None:
        held = [
            (now, copy)
            for (place, name), copy in zip(self._places, self._copies, strict=True)
            if place is registry
            and copy is not None
            and (now := registry.get(name)) is not None
            and now is not copy
            and _alike(now, copy)
        ]
        broken = [
            (copy.isfinite() & ~now.isfinite()).any()
            for now, copy in held
            if now.is_floating_point()
        ]
        if broken:
            is_broken = torch.stack(broken).any()
            for now, copy in held:
                torch.where(is_broken, copy, now, out=now.data)

    def _make_copies(self, buffers: list[Tensor | None]) -> None:
        self._before, self._copies = buffers, list(map(self._copy_of, buffers))
        pairs = zip(buffers, self._copies, strict=True)
        copied = [(old, new) for old, new in pairs if new is not None and new is not old]
        self._sources = [old for old, _ in copied if old is not None]
        self._targets = [new for _, new in copied]
        self._can_copy_again = not any(buffer.requires_grad for buffer in self._sources)

    def _copy_of(self, buffer: Tensor | None) -> Tensor | None:
        """A copy; *buffer* itself if nothing can write to it; None if it is not restored."""
        if buffer is None or is_lazy(buffer) or buffer.device != self._device:
            return None
        if buffer.layout is not torch.strided:
            return None
        strides = zip(buffer.stride(), buffer.shape, strict=True)
        is_expanded = any(stride == 0 and size > 1 for stride, size in strides)
        return buffer if is_expanded or buffer.is_inference() else buffer.detach().clone()

    def close_window(self, skipped: Tensor) -> None:
        """Restore the buffers if *skipped*, float32 ``[]``, is 1; leave them if it is 0."""
        if not self._is_open:
            return
        self._is_open = False
        if not self.host_decides or skipped.item():
            self._restore(skipped.bool())

    @torch.no_grad()
    def _restore(self, is_skipped: Tensor) -> None:
        for place, buffer, copy in zip(self._places, self._before, self._copies, strict=True):
            registry, name = place
            now = registry.get(name)
            if now is None or copy is None or now is copy:
                continue
            if not _alike(now, copy):
                self._can_copy_again = False
                continue
            if now is buffer:
                # .data: the backward pass of another loss may still need the buffer
                torch.where(is_skipped, copy, now, out=now.data)
            else:
                registry[name] = torch.where(is_skipped, copy, now)


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
