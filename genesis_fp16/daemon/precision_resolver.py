"""Resolves the precision of each run from settings, overrides, guard, fallback and hardware."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from genesis_fp16.domain.guard import is_canary
from genesis_fp16.domain.precision import (
    Device,
    Override,
    PrecisionInputs,
    applicable_overrides,
    resolve_precision,
)
from genesis_fp16.domain.run import Run
from genesis_fp16.executors.choice import job_gpus
from genesis_fp16.guard import Guard
from genesis_fp16.plugins.probe import Hardware
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import PrecisionState


class PrecisionResolver:
    """Resolves the precision of each run, by the rules in `genesis_fp16.domain.precision`.

    Attributes:
        settings: Settings in force; assign it after a reload.
        overrides: Overrides in force, as of the last `refresh`.
        hardware: The device, assigned once it is known; until then every run is in FP32.
    """

    def __init__(
        self,
        store: Store,
        hardware: Hardware | None,
        settings: Settings,
        guard: Guard,
    ) -> None:
        self.settings, self.hardware = settings, hardware
        self._store, self._guard = store, guard
        self.overrides: Sequence[Override] = ()
        self.refresh()

    def refresh(self) -> None:
        """Read the overrides in force, and let the guard store and read decisions; once a round."""
        self.overrides = self._store.overrides.in_force()
        self._guard.refresh()

    def __call__(self, run: Run) -> PrecisionState:
        """The precision of *run*; a run that has not begun counts as beginning now."""
        began_at = math.inf if run.started_at is None else run.started_at
        return self._decide(
            run.agent,
            began_at,
            fell_back_at=run.fell_back_at,
            canary=is_canary(run.agent, run.number, self.settings),
            baseline=run.baseline_of is not None,
        )

    def for_agent(self, agent: str) -> PrecisionState:
        """The precision of runs of *agent* that begin now and are canaries."""
        return self._decide(agent, math.inf, canary=is_canary(agent, 1, self.settings))

    @property
    def device(self) -> Device | None:
        """The device under the settings in force; None until it is known."""
        hardware = self.hardware
        if hardware is None:
            return None
        return Device(
            accelerator=not hardware.device.startswith("cpu"),
            fp16=hardware.fp16,
            bf16=hardware.bf16,
            cpu_half=self.settings.cpu_half,
            name=hardware.device,
        )

    def _decide(
        self,
        agent: str,
        began_at: float,
        *,
        canary: bool,
        baseline: bool = False,
        fell_back_at: float | None = None,
    ) -> PrecisionState:
        inputs = inputs_of_agent(
            self.settings,
            agent,
            self.device,
            applicable_overrides(self.overrides, agent, began_at),
        )
        guard = self._guard.in_force(agent)
        return resolve_precision(
            replace(
                inputs,
                guard=guard.demands_fp32,
                guard_roles=guard.roles,
                guard_modules=guard.modules,
                guard_parts=guard.parts,
                guard_decided_at=guard.returned_at,
                fell_back_at=fell_back_at,
                canary=canary,
                baseline=baseline,
            )
        )


def inputs_of_agent(
    settings: Settings, agent: str, device: Device | None, overrides: Sequence[Override]
) -> PrecisionInputs:
    """What decides the precision of runs of *agent*, but for the guard and the single run.

    Args:
        settings: Settings in force.
        agent: The agent.
        device: The device of this machine, if it is known; jobs elsewhere have what they ask for.
        overrides: Overrides that apply to the runs, one per scope at most.
    """
    agent_settings = settings.for_agent(agent)
    return PrecisionInputs(
        flag=settings.enable_fp16_training,
        default=settings.precision,
        agent=agent_settings.precision,
        preset=agent_settings.role_preset,
        overrides=overrides,
        device=device if settings.executor == "local" else _device_of_job(settings, agent, device),
    )


def _device_of_job(settings: Settings, agent: str, here: Device | None) -> Device | None:
    """What the job of *agent* asks for; its worker falls back to FP32 where that is not so.

    None until the device *here* is known: nothing starts before.
    """
    if here is None:
        return None
    if job_gpus(settings, agent) and settings.device != "cpu":
        return replace(here, accelerator=True, fp16=True, bf16=True, name="cuda")
    return replace(here, accelerator=False, name="cpu")
