"""What decides the precision of an agent's next run, as the API and the page show it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from genesis_fp16.api import views
from genesis_fp16.daemon.precision_resolver import inputs_of_agent
from genesis_fp16.domain.guard import Decision, is_canary
from genesis_fp16.domain.precision import (
    DECIDED_BY,
    Override,
    applicable_overrides,
    demands,
    resolve_precision,
)
from genesis_fp16.domain.run import Run
from genesis_fp16.settings import Settings
from genesis_fp16.store.daemon_status import DaemonStatus


class PrecisionReading:
    """What decides the precision of several agents, read once.

    Args:
        daemon: Status of the daemon.
        settings: Settings in force.
        overrides: Overrides in force.
        decisions: The guard's last decision on each agent.
        acknowledged: The newest run of each agent whose worker has reported its precision.
    """

    def __init__(
        self,
        daemon: DaemonStatus,
        settings: Settings,
        overrides: Sequence[Override],
        decisions: Mapping[str, Decision],
        acknowledged: Mapping[str, Run],
    ) -> None:
        self.settings = settings
        self._device = daemon.device
        self._overrides, self._decisions = overrides, decisions
        self._acknowledged = acknowledged

    def decision(self, agent: str) -> Decision:
        """The guard's decision in force."""
        return self._decisions.get(agent) or Decision(agent=agent)

    def view(self, agent: str) -> views.PrecisionView:
        """The precision of a run of *agent* that begins now."""
        applicable = applicable_overrides(self._overrides, agent, math.inf)
        guard = self.settings.guard_decision(self.decision(agent))
        inputs = replace(
            inputs_of_agent(self.settings, agent, self._device, applicable),
            guard=guard.demands_fp32,
            guard_roles=guard.roles,
            guard_modules=guard.modules,
            guard_parts=guard.parts,
            canary=is_canary(agent, 1, self.settings),
        )
        resolved = resolve_precision(inputs)
        run = self._acknowledged.get(agent)
        known = None
        if run is not None and run.precision is not None:
            known = views.Acknowledged.model_validate({**run.precision, "run": run.id})
        return views.PrecisionView(
            agent=agent,
            requested=resolved.requested,
            effective=resolved.effective,
            reason=resolved.reason,
            explanation=DECIDED_BY[resolved.reason],
            demands=[
                views.Demand(
                    reason=reason,
                    precision=precision,
                    decides=reason == resolved.reason,
                    explanation=DECIDED_BY[reason],
                )
                for reason, precision in demands(inputs)
            ],
            overrides=[
                views.OverrideView.model_validate(override)
                for override in self._overrides
                if override.agent in (None, agent)
            ],
            acknowledged=known,
        )
