"""What the daemon tells a predictor on its standard input, and what a predictor reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

PREDICTION_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Upper bounds of the buckets in which times of answers are counted."""

PREDICTION_OUTCOMES = ("model", "no_model", "refused", "failed")
DECISION_KINDS = ("decision", "choice", "transition")
OUTCOME_STATES = ("recorded", "partial", "late", "repeated")


OWN_SOCKET = "predictor.sock"
"""In an agent's folder: where the process listens that answers for this agent alone."""

BETS = (0.05, 0.1, 0.2)
"""Stakes of the sequential test on log losses, in units of one over their standard deviation."""

CALIBRATION_BINS = 10
_BUCKETS = len(PREDICTION_SECONDS) + 1
_ZEROS = [0.0] * CALIBRATION_BINS
_Bins = Annotated[
    list[FiniteFloat], Field(min_length=CALIBRATION_BINS, max_length=CALIBRATION_BINS)
]


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


class PolicySums(BaseModel):
    """Sums over exploring decisions, for the worth of the model's choices and the agent's own.

    With ``w`` one over the propensity where that policy takes the chosen action, else 0, and the
    reward ``r``, a decision has the terms ``w r`` and ``w`` of the model's first choice, then those
    of the first action that the agent gave.

    Attributes:
        count: Number of decisions.
        sums: Sums of the four terms.
        products: Sums of their products, row by row of a matrix of 4 by 4.
    """

    count: Annotated[int, Field(ge=0)] = 0
    sums: Annotated[list[FiniteFloat], Field(min_length=4, max_length=4)] = [0.0] * 4
    products: Annotated[list[FiniteFloat], Field(min_length=16, max_length=16)] = [0.0] * 16

    def add(self, reward: float, model: float, own: float) -> None:
        """Add a decision with the weights of both policies."""
        terms = (model * reward, model, own * reward, own)
        self.count += 1
        self.sums = [total + term for total, term in zip(self.sums, terms, strict=True)]
        products = (first * second for first in terms for second in terms)
        self.products = [a + b for a, b in zip(self.products, products, strict=True)]

    def merge(self, other: PolicySums) -> None:
        """Add the decisions of *other*."""
        self.count += other.count
        self.sums = [a + b for a, b in zip(self.sums, other.sums, strict=True)]
        self.products = [a + b for a, b in zip(self.products, other.products, strict=True)]


class JudgedOutcomes(BaseModel):
    """Outcomes compared with what one version of a model predicts of them.

    Attributes:
        version: The version.
        held_out_loss, base_rate_loss: Mean log losses, in nats, of the model and the base rate on
            the groups that it was tested on before its publication.
        count: Number of outcomes.
        loss_sum: Sum of their log losses.
        expected_loss_sum: Sum of what these are held to: the held-out loss or, where a model
            answered, what it expected if that is more.
        evidence: For each of `BETS`, sum of the logarithms by which the outcomes multiply the
            evidence that the mean loss is above the expected one.
        binned, expected, happened: Number of outcomes, sum of the predicted chances, and number of
            successes, by equal bins of the predicted chance; 0 without a success label.
        covered, intervals: How many 90 % intervals contain the outcome, and of how many.
        input_drift: Largest shift of a number among the inputs, in standard deviations of the
            training; None while there are too few rows.
        policies: What the model's choices and the agent's own order are worth.
    """

    version: Annotated[str, Field(max_length=100)]
    held_out_loss: FiniteFloat
    base_rate_loss: FiniteFloat
    count: Annotated[int, Field(ge=1)]
    loss_sum: FiniteFloat
    expected_loss_sum: FiniteFloat
    evidence: Annotated[list[FiniteFloat], Field(min_length=len(BETS), max_length=len(BETS))]
    binned: _Bins = _ZEROS
    expected: _Bins = _ZEROS
    happened: _Bins = _ZEROS
    covered: Annotated[int, Field(ge=0)] = 0
    intervals: Annotated[int, Field(ge=0)] = 0
    input_drift: FiniteFloat | None = None
    policies: PolicySums = PolicySums()


class AgentFigures(BaseModel):
    """Counts of one agent since the report before.

    Attributes:
        predictions: Requests to predict, rank or decide, by one of `PREDICTION_OUTCOMES`.
        seconds: Number of their answers by bucket of `PREDICTION_SECONDS`; the last is the rest.
        seconds_sum: Sum of these times.
        decisions: What was recorded, by one of `DECISION_KINDS`.
        outcomes: Reports of outcomes, by one of `OUTCOME_STATES`.
        judged: Outcomes compared with predictions; None if there were none.
    """

    predictions: dict[str, int] = {}
    seconds: Annotated[list[int], Field(min_length=_BUCKETS, max_length=_BUCKETS)] = [0] * _BUCKETS
    seconds_sum: float = 0.0
    decisions: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    judged: JudgedOutcomes | None = None


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
