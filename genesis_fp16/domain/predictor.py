"""What the daemon tells a predictor on its standard input, and what a predictor reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PREDICTION_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Upper bounds of the buckets in which times of answers are counted."""

PREDICTION_OUTCOMES = ("model", "no_model", "refused", "failed")
DECISION_KINDS = ("decision", "choice", "transition")
OUTCOME_STATES = ("recorded", "partial", "late", "repeated")


OWN_SOCKET = "predictor.sock"
"""In an agent's folder: where the process listens that answers for this agent alone."""

_BUCKETS = len(PREDICTION_SECONDS) + 1


class KnownAgent(BaseModel):
    """An agent that is installed.

    Attributes:
        explore: Exploration of its decisions, as `Exploration.parse` reads it.
        entry_point: ``module:attribute`` of its factory; empty while its code may not be run.
        version: Distribution and version of its code.
    """

    model_config = ConfigDict(frozen=True)
    explore: str = ""
    entry_point: str = ""
    version: str = ""


class PredictorOrder(BaseModel):
    """What may change while a predictor runs; one line of its standard input.

    Attributes:
        agents: The known agents by name.
    """

    model_config = ConfigDict(frozen=True)
    agents: dict[str, KnownAgent] = {}


class PredictorSpec(PredictorOrder):
    """What a predictor begins with; the first line of its standard input.

    Attributes:
        parent: Process id of the daemon, with which it ends; None if there is none.
        listeners: File descriptors of the sockets that listen.
        home: GENESIS_HOME.
        most_models: Largest number of models in memory.
        outcome_seconds: Time after a decision in which its outcome counts as the decision's.
        seed: Seed of exploration.
        token: Token that TCP demands; None for none.
        token_file: File of further tokens; None for none.
        own: Agent whose code this process runs, to answer for it alone; None for the process that
            runs no agent's code and answers for all.
    """

    parent: int | None
    listeners: tuple[int, ...]
    home: Path
    most_models: Annotated[int, Field(ge=1)]
    outcome_seconds: Annotated[float, Field(gt=0)]
    seed: int = 0
    token: Annotated[str | None, Field(repr=False)] = None
    token_file: Path | None = None
    own: str | None = None


class Notice(BaseModel):
    """Something that the daemon's log should show."""

    model_config = ConfigDict(frozen=True)
    event: str
    fields: dict[str, str] = {}


class AgentFigures(BaseModel):
    """Counts of one agent since the report before.

    Attributes:
        predictions: Requests to predict, rank or decide, by one of `PREDICTION_OUTCOMES`.
        seconds: Number of their answers by bucket of `PREDICTION_SECONDS`; the last is the rest.
        seconds_sum: Sum of these times.
        decisions: What was recorded, by one of `DECISION_KINDS`.
        outcomes: Reports of outcomes, by one of `OUTCOME_STATES`.
    """

    predictions: dict[str, int] = {}
    seconds: Annotated[list[int], Field(min_length=_BUCKETS, max_length=_BUCKETS)] = [0] * _BUCKETS
    seconds_sum: float = 0.0
    decisions: dict[str, int] = {}
    outcomes: dict[str, int] = {}


class PredictorReport(BaseModel):
    """What a predictor reports at most once a second; one line of its standard output.

    Attributes:
        agents: Counts since the report before, by agent.
        notices: What the daemon's log should show.
        models: Number of models in memory.
        own_networks: Agents asked for whose networks take a process of their own.
    """

    agents: dict[str, AgentFigures] = {}
    notices: list[Notice] = []
    models: int = 0
    own_networks: list[str] = []
