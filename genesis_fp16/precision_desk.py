"""Gathers the voices on precision - settings, overrides, hardware - and asks the policy."""

from __future__ import annotations

from collections.abc import Sequence

from genesis_fp16.plugins import Hardware
from genesis_fp16.precision_policy import Device, Override, decide
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import PrecisionState


class PrecisionDesk:
    """The precision in force for each agent.

    Args:
        store: Keeps the operators' overrides.
        hardware: What the device can do.
        settings: In force; assign `settings` anew after a reload.

    Attributes:
        settings: In force.
    """

    def __init__(self, store: Store, hardware: Hardware, settings: Settings) -> None:
        self.settings = settings
        self._store = store
        self._device = Device(
            accelerator=not hardware.device.startswith("cpu"),
            fp16=hardware.fp16,
            bf16=hardware.bf16,
            cpu_half=settings.cpu_half,
        )
        self._overrides: Sequence[Override] = ()
        self.refresh()

    def refresh(self) -> None:
        """Read the overrides that are in force now; once a round is enough."""
        self._overrides = self._store.overrides.in_force()

    def __call__(self, agent: str) -> PrecisionState:
        """The decision for *agent*."""
        return decide(
            flag=self.settings.enable_fp16_training,
            default=self.settings.precision,
            agent=self.settings.for_agent(agent).precision,
            overrides=[o for o in self._overrides if o.agent in (None, agent)],
            device=self._device,
        )
