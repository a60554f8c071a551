"""Pauses: an operator keeps one agent, or all of them, from starting runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import StringConstraints

from infrastructure.agent_contract.agent import AGENT_NAME


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """A pause in force, as stored.

    Attributes:
        agent: Agent that starts no run; None for all agents.
        reason, actor: Why it was paused, and by whom.
        created_at: Unix time in seconds.
        stops_runs: Whether a run under way is stopped after a checkpoint, to go on when resumed.
    """

    agent: Annotated[str, StringConstraints(pattern=f"^{AGENT_NAME.pattern}$")] | None
    reason: str
    actor: str
    created_at: float
    stops_runs: bool = False


PausesInForce: TypeAlias = Mapping[str | None, Pause]
"""Agent to the pause of that agent; None to the pause of all agents."""


def pauses_of(pauses: PausesInForce, agent: str) -> tuple[Pause, ...]:
    """The pauses that keep *agent* from starting runs: its own, then that of all agents."""
    return tuple(pauses[scope] for scope in (agent, None) if scope in pauses)
