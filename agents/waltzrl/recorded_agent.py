"""What the two agents share: a world model of recorded conversations."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor
from torch.nn import Module

from agents.waltzrl.conversations import Conversation, decode_conversation
from infrastructure.agent_contract import EvaluationReport, Publication, RunContext, TrainingJob
from infrastructure.agent_contract.agent import InsufficientDataError, RecordedTransitions
from infrastructure.agent_contract.transition import (
    Discrete,
    FieldType,
    Transition,
)
from infrastructure.trajectories.record_source import (
    DecodedRecord,
    RecordSource,
    collect_records,
)
from infrastructure.world_model import WorldModel
from infrastructure.world_model.distributions import (
    DiscreteDistribution,
    TargetDistributions,
    predictive_distributions,
)
from infrastructure.world_model.distributions.metrics import auroc, clustered_standard_error
from infrastructure.world_model.fitting import TrainingData, fit_linear
from infrastructure.world_model.fitting.scoring import row_nll
from infrastructure.world_model.fitting.training_data import encode_split
from infrastructure.world_model_agent import WorldModelAgent

JUDGE_KEY = "judge"
"""Name in `Transition.info` of the program that made the labels."""

NEEDED_CONVERSATIONS = 200
NEEDED_POSITIVES = 30
"""Transitions with the agent's `outcome`; both limits are our judgement, not the paper's."""


class RecordedConversationSettings(BaseModel):
    """Settings of an agent that learns from recorded conversations.

    Attributes:
        folder: Folder with the files; by default ``conversations`` in the agent's folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    folder: Path | None = None


class RecordedConversationAgent(WorldModelAgent):
    """A world model of recorded conversations, judged against a model that reads no feedback.

    Subclasses say what a transition is; the feedback is its input ``feedback``.

    Attributes:
        outcome: Target, and its label that shall be told from the others.
    """

    outcome: tuple[str, str]
    _source: RecordSource | None = None
    _judges: Counter[str] | None = None

    @abstractmethod
    def transitions_of(self, conversation: Conversation) -> Iterator[Transition]:
        """Transitions of one line of a file."""

    def settings_model(self) -> type[BaseModel]:
        """See `RecordedConversationSettings`."""
        return RecordedConversationSettings

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Yield the transitions of lines that earlier runs have not read; see `collect_records`.

        Raises:
            SourceFolderError: The folder is missing or cannot be listed.
        """
        settings = context.settings
        folder = settings.folder if isinstance(settings, RecordedConversationSettings) else None
        if folder is None:
            folder = context.agent_folder / "conversations"
            folder.mkdir(parents=True, exist_ok=True)
        self._source = RecordSource(
            name=self.name,
            folder=folder,
            agent_folder=context.agent_folder,
            spec=self.spec(),
            decode=self._decode,
            format="conversations",
            folder_setting="the agent's setting FOLDER",
        )
        yield from collect_records(self._source, context)

    def _decode(self, line: bytes) -> DecodedRecord:
        conversation = decode_conversation(line)
        transitions = list(self.transitions_of(conversation))
        if judge := conversation.judge:
            transitions = [
                replace(each, info={**each.info, JUDGE_KEY: judge}) for each in transitions
            ]
        return DecodedRecord(transitions=transitions)

    def build_job(self, context: RunContext, transitions: RecordedTransitions) -> TrainingJob:
        """Remember how far the folder was read, and plan the training if there is enough.

        Raises:
            InsufficientDataError: There are fewer than `NEEDED_CONVERSATIONS`, or fewer than
                `NEEDED_POSITIVES` transitions with the `outcome`; or as for every world model.
        """
        if self._source is not None:
            self._source.keep_positions()
        conversations, positives, judges = set[str](), 0, Counter[str]()
        name, label = self.outcome
        for transition in transitions:
            conversations.add(transition.group)
            positives += transition.next_observation.get(name) == label
            judges[str(transition.info.get(JUDGE_KEY, ""))] += 1
        self._judges = judges
        where = f"add files to {self._source.folder}" if self._source else "add conversations"
        if len(conversations) < NEEDED_CONVERSATIONS:
            raise InsufficientDataError(
                "conversations", len(conversations), NEEDED_CONVERSATIONS, where
            )
        if positives < NEEDED_POSITIVES:
            raise InsufficientDataError(
                f"transitions with {name} {label}", positives, NEEDED_POSITIVES, where
            )
        return super().build_job(context, transitions)

    def publish(self, context: RunContext, model: Module, report: EvaluationReport) -> Publication:
        """As for every world model; the metrics also say what the feedback contributes.

        The reason names the programs that made labels.
        """
        publication = super().publish(context, model, report)
        judges = self._judges or Counter()
        total = judges.total()
        for judge, count in sorted(judges.items()):
            if judge:
                marked = f"{publication.reason}; {count} of {total} labels are by {judge!r}"
                publication = replace(publication, reason=marked)
        if self._data is None:
            return publication
        return replace(publication, metrics={**publication.metrics, **self.ablation(self._data)})

    def evaluate(self, model: WorldModel, transitions: Sequence[Transition]) -> Mapping[str, float]:
        """Uplift of choosing the best of several recorded actions; see `best_of_k`.

        Where the `outcome` is not what candidates are ranked by, also how well it is told from the
        others: the area under its ROC curve.
        """
        fitted, success = model.fitted_model, self.spec().success
        if fitted is None or success is None:
            return {}
        predicted = fitted.predict_transitions(transitions)
        metrics = best_of_k(transitions, self._chances(predicted, success).tolist())
        if self.outcome != success:
            name, label = self.outcome
            positive_N = torch.tensor(
                [transition.next_observation[name] == label for transition in transitions]
            )
            metrics[f"{name}.auroc"] = auroc(self._chances(predicted, self.outcome), positive_N)
        return metrics

    def ablation(self, data: TrainingData) -> dict[str, float]:
        """What feedback contributes to predicting the `outcome`'s target on the test groups.

        Returns:
            ``feedback_gain``: gain in nats per transition of a linear model over one that is fitted
            without feedback; with its standard error over conversations.
        """
        spec, (name, _) = self.spec(), self.outcome
        spec = replace(spec, targets={name: spec.targets[name]}, success=self.outcome)
        blind_spec = replace(
            spec,
            observation=_without_feedback(spec.observation),
            action=_without_feedback(spec.action),
        )
        split = {part: subset.transitions for part, subset in data.parts.items()}
        blind_N, seeing_N = (
            _linear_nll(encode_split(variant, split)) for variant in (blind_spec, spec)
        )
        gain_N = blind_N - seeing_N
        return {
            "feedback_gain": float(gain_N.mean()),
            "feedback_gain_standard_error": clustered_standard_error(gain_N, data.test.groups),
        }

    def _chances(self, predicted: TargetDistributions, outcome: tuple[str, str]) -> Tensor:
        """Predicted probability of *outcome* in each transition, [N]."""
        name, label = outcome
        target, distribution = self.spec().targets[name], predicted[name]
        if not isinstance(target, Discrete) or not isinstance(distribution, DiscreteDistribution):
            raise TypeError(f"{name!r} must be a Discrete target of {self.name}")
        return distribution.probabilities[:, target.values.index(label)]


def best_of_k(transitions: Sequence[Transition], scores: Sequence[float]) -> dict[str, float]:
    """What it gains to take the best-scored of the actions that one observation has.

    Args:
        transitions: Held-out transitions; their reward is what counts.
        scores: Score of each; the higher, the better.

    Returns:
        ``best_of_k.uplift``: reward of the action with the highest score (of the first, if several
        have it) minus the mean reward of all actions of that observation, with its standard error
        over conversations; ``best_of_k.possible``: the same for the best action;
        ``best_of_k.states``: number of observations with several actions. Means over these;
        without any, only the number.
    """
    states = defaultdict[tuple[tuple[str, object], ...], list[tuple[float, Transition]]](list)
    for transition, score in zip(transitions, scores, strict=True):
        states[tuple(sorted(transition.observation.items()))].append((score, transition))
    several = [state for state in states.values() if len(state) > 1]
    if not several:
        return {"best_of_k.states": 0.0}
    uplifts, possible = list[float](), list[float]()
    for state in several:
        mean = fmean(transition.reward for _, transition in state)
        uplifts.append(max(state, key=lambda pair: pair[0])[1].reward - mean)
        possible.append(max(transition.reward for _, transition in state) - mean)
    uplift_N = torch.tensor(uplifts, dtype=torch.float64)
    groups = [state[0][1].group for state in several]
    return {
        "best_of_k.states": float(len(several)),
        "best_of_k.uplift": fmean(uplifts),
        "best_of_k.uplift_standard_error": clustered_standard_error(uplift_N, groups),
        "best_of_k.possible": fmean(possible),
    }


def _linear_nll(data: TrainingData) -> Tensor:
    """Negative log-likelihood of each test transition under a linear model, [N] float64."""
    model = fit_linear(data)
    with torch.no_grad():
        raw = model(data.test.features.inputs())
    predicted = predictive_distributions(raw, data.codec, len(data.test.features))
    return row_nll(predicted, data.test.outcomes, data.codec)


def _without_feedback(fields: Mapping[str, FieldType]) -> dict[str, FieldType]:
    return {name: field for name, field in fields.items() if name != "feedback"}
