"""Policy: a small language model that learns checkable tasks by reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from pydantic import BaseModel
from torch.nn import Module

from agents.policy.comparison import paired_difference
from agents.policy.learner import PRIMARY, HeldOutProblems, PolicyLearner, new_policy
from agents.policy.objectives import remove_networks
from agents.policy.published import (
    PublishedPolicyError,
    has_published,
    load_published,
    not_in_use,
    save_published,
)
from agents.policy.settings import PolicySettings
from agents.policy.tasks import TASKS
from infrastructure.agent_contract import (
    CONTRACT_VERSION,
    EvaluationReport,
    Job,
    Publication,
    RunContext,
    Schedule,
    Transition,
)
from infrastructure.agent_contract.agent import RecordedTransitions
from infrastructure.policy.adapters import with_adapter
from infrastructure.policy.tokenizer import CharacterTokenizer
from infrastructure.training.precision.devices import native_half_types


class PolicyAgent:
    """Learns a task from its own completions; an agent whose job is an `OnPolicyJob`.

    Attributes:
        name: Name of the agent.
        contract_version: The contract it was written for.
    """

    name = "policy"
    contract_version = CONTRACT_VERSION

    def schedule(self) -> Schedule:
        """Every six hours."""
        return Schedule(every_seconds=6 * 3600.0)

    def settings_model(self) -> type[BaseModel]:
        """See `PolicySettings`."""
        return PolicySettings

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Nothing: a policy's data depend on its weights, so each round generates its own."""
        del context
        return iter(())

    def build_job(self, context: RunContext, transitions: RecordedTransitions) -> Job:
        """A job that begins with the policy in use, or with random weights and demonstrations.

        It is the policy that was in use when the run began, in every attempt and repetition.
        """
        del transitions
        model, settings = None, _settings(context)
        if settings.start == "published":
            model = _load(context, context.at_start(self.published_folder(context), not_in_use))
        learner = self._learner(context, warm=model is not None)
        if model is not None:
            base = _base_type(context)
            model = with_adapter(model, settings.lora_rank, seed=context.seed, base=base)
        elif settings.lora_rank:
            reason = "no policy is in use to freeze, so this run trains all weights"
            context.logger.warning("lora_rank_without_effect", reason=reason)
        problems = HeldOutProblems.of(learner.task).choosing
        return learner.job(model or new_policy(learner.task, context.seed), problems)

    def publish(self, context: RunContext, model: Module, report: EvaluationReport) -> Publication:
        """Publish *model* if it beats the policy in use on held-out problems, beyond chance.

        The evaluations have chosen the epoch that *model* comes from, so other problems decide.

        Raises:
            OSError: Writing failed; the previous policy stays in use.
        """
        remove_networks(model)
        learner = self._learner(context, warm=True)
        problems = HeldOutProblems.of(learner.task).deciding
        new = learner.rewards_of(model, problems)
        in_use = self.published_model(context)
        old = [0.0] * len(new)
        if in_use is not None:
            old = learner.rewards_of(in_use.to(context.device), problems)
        gain = paired_difference(new, old)
        metrics = {
            PRIMARY: sum(new) / len(new),
            "evaluation.held_out_reward": report.evaluation.value,
            **_of_correction(report.evaluation.metrics),
            "in_use.held_out_reward": sum(old) / len(old),
            "gain": gain.mean,
            "gain_low": gain.low,
            "gain_high": gain.high,
            "training_steps": float(report.steps),
        }
        compared = "the policy in use"
        if in_use is None:
            unreadable = has_published(self.published_folder(context))
            compared = "no policy (the one in use is unreadable)" if unreadable else "no policy"
        published = gain.low > 0.0
        if published:
            details = {"task": learner.task.name, "metrics": metrics, "run_id": context.run_id}
            save_published(self.published_folder(context), model, details)
        verdict = "better" if published else "not better"
        reason = (
            f"{verdict} than {compared}: held-out reward {sum(new) / len(new):.3f}, gain "
            f"{gain.mean:+.3f} with 95 % interval [{gain.low:+.3f}, {gain.high:+.3f}] over "
            f"{len(problems)} problems"
        )
        return Publication(published=published, reason=reason, metrics=metrics)

    def published_folder(self, context: RunContext) -> Path:
        """Folder of the policy in use for the task of the settings."""
        return context.agent_folder / "published" / _settings(context).task

    def published_model(self, context: RunContext) -> Module | None:
        """The policy in use; None if there is none or it is unreadable (logs a warning)."""
        return _load(context, self.published_folder(context))

    def _learner(self, context: RunContext, *, warm: bool) -> PolicyLearner:
        settings = _settings(context)
        task = TASKS[settings.task]
        return PolicyLearner(task=task, settings=settings, seed=context.seed, warm=warm)


def _load(context: RunContext, folder: Path) -> Module | None:
    vocabulary = len(CharacterTokenizer(TASKS[_settings(context).task].characters))
    try:
        return load_published(folder, vocabulary)
    except PublishedPolicyError as error:
        context.logger.warning("published_model_unreadable", error=str(error))
        return None


def _base_type(context: RunContext) -> torch.dtype:
    """FP16 where the device computes it, as runs do by default; else float32."""
    fp16 = native_half_types(torch.device(context.device))["fp16"]
    return torch.float16 if fp16 else torch.float32


def _of_correction(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("correction_")}


def _settings(context: RunContext) -> PolicySettings:
    settings = context.settings
    return settings if isinstance(settings, PolicySettings) else PolicySettings()
