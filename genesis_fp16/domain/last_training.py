"""What an agent's last training says about training it together with others."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class LastTraining(BaseModel):
    """Written by the worker into the agent's folder; read by the daemon, which imports no torch.

    Attributes:
        shape: Equal for trainings that can be stepped together; empty if this one trains alone.
        alone_reason: Why it trains alone; empty if it need not.
        collect_seconds: Seconds that collecting took.
        train_seconds: Seconds that the training took; in a fleet of N, one N-th of the fleet's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    shape: str
    alone_reason: str = ""
    collect_seconds: float = Field(ge=0)
    train_seconds: float = Field(ge=0)
