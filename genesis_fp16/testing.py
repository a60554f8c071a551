"""The conformance kit: checks an agent against the contract in its author's own tests.

It does what a worker does, on a small scale: collect, build the job, take one FP32 step, evaluate,
publish. A daemon does not quarantine, and a worker does not refuse, an agent that passes.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pydantic import JsonValue

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.schedule import next_due
from genesis_fp16.plugins.loading import checked_agent, describe_error, validate_settings
from infrastructure.agent_contract import (
    Agent,
    Evaluation,
    EvaluationReport,
    Job,
    Publication,
    RunContext,
    Schedule,
    Transition,
)
from infrastructure.agent_contract.agent import InsufficientDataError, RecordedTransitions
from infrastructure.agent_contract.run_context import Budget

if TYPE_CHECKING:
    import torch

DEFAULT_BUDGET = Budget(seconds=20.0, transitions=5000)
_BATCHES_COMPARED = 3


class AgentCheckError(GenesisError, AssertionError):
    """The agent breaks the contract; the message names the method, the defect and the remedy."""


def check_agent(
    factory: Callable[[], object],
    folder: Path | None = None,
    *,
    budget: Budget = DEFAULT_BUDGET,
    settings: Mapping[str, JsonValue] | None = None,
    seed: int = 0,
) -> None:
    """Check the agent that *factory* makes against the contract; on the CPU, within seconds.

    Each step is announced on stderr, since collecting may take the whole budget.

    Args:
        factory: The factory that the entry point names; called without arguments.
        folder: Folder in which the agent may write; a temporary one by default.
        budget: Limits of collecting. The agent must collect enough within them to train on.
        settings: The operator's settings for the agent.
        seed: Seed of the run.

    Raises:
        AgentCheckError: The agent breaks the contract.
    """
    with tempfile.TemporaryDirectory() as temporary:
        where = Path(temporary) if folder is None else folder
        with _checking("the factory"):
            made = factory()
            agent = checked_agent(made, str(getattr(made, "name", "")))
        context = _check_defaults(agent, where, budget, settings or {}, seed)
        _announce(agent, f"collecting for at most {budget.seconds:g} s")
        transitions = _check_collect(agent, context)
        _announce(agent, f"building the job twice from {len(transitions)} transitions")
        job = _check_job(agent, context, transitions)
        _announce(agent, "taking a step in FP32")
        _check_step(job)
        _announce(agent, "evaluating and publishing")
        _check_publish(agent, context, job)
        _announce(agent, "keeps the contract")


def _announce(agent: Agent, step: str) -> None:
    sys.stderr.write(f"check_agent {agent.name}: {step}\n")
    sys.stderr.flush()


@contextmanager
def _checking(what: str) -> Iterator[None]:
    """Turn any exception, even ``SystemExit``, into an `AgentCheckError` that names *what*."""
    try:
        yield
    except AgentCheckError:
        raise
    except BaseException as error:  # a plugin may raise SystemExit or KeyboardInterrupt
        raise AgentCheckError(f"{what}: {describe_error(error)}") from error


def _require(condition: bool, defect: str, remedy: str) -> None:
    if not condition:
        raise AgentCheckError(f"{defect}; {remedy}")


def _check_defaults(
    agent: Agent, folder: Path, budget: Budget, settings: Mapping[str, JsonValue], seed: int
) -> RunContext:
    with _checking("schedule()"):
        schedule = agent.schedule()
        _require(
            isinstance(schedule, Schedule),
            f"schedule() returned {schedule!r}",
            "return a Schedule, such as Schedule(every_seconds=3600)",
        )
        next_due(schedule, time.time())
    with _checking("settings_model()"):
        validated = validate_settings(agent, settings)
        if validated is not None:
            type(validated).model_json_schema()
    for name in ("agent", "run"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return RunContext(
        run_id="check",
        attempt=1,
        agent=agent.name,
        device="cpu",
        seed=seed,
        agent_folder=folder / "agent",
        run_folder=folder / "run",
        budget=budget,
        settings=validated,
        logger=structlog.get_logger(),
        report_progress=lambda *_, **__: None,
    )


def _check_collect(agent: Agent, context: RunContext) -> RecordedTransitions:
    from infrastructure.trajectories import ReplayBuffer

    deadline = time.monotonic() + context.budget.seconds
    with closing(ReplayBuffer(context.agent_folder / "replay")) as buffer:
        with _checking("collect()"):
            collected = agent.collect(context)
            for transition in itertools.islice(collected, context.budget.transitions):
                _require(
                    isinstance(transition, Transition),
                    f"collect() yielded a {type(transition).__name__}",
                    "yield Transition(group=..., observation=..., action=...)",
                )
                buffer.append(transition)
                if time.monotonic() >= deadline:
                    break
            if isinstance(collected, Iterator) and hasattr(collected, "close"):
                collected.close()
        recorded = buffer.read(buffer.snapshot())
        _require(
            len(recorded) > 0 or _generates_its_data(agent, context, recorded),
            f"collect() yielded nothing within {context.budget.seconds:g} s",
            "yield each transition as it happens, or give check_agent a larger budget",
        )
        groups = {transition.group for transition in recorded}
        _require(
            len(groups) != 1,
            f"all {len(recorded)} transitions belong to the group {groups}",
            "give each episode, task or conversation a group of its own",
        )
        return recorded


def _generates_its_data(
    agent: Agent, context: RunContext, transitions: RecordedTransitions
) -> bool:
    """Whether the agent needs no *transitions*, because its job is an `OnPolicyJob`."""
    from infrastructure.training.rounds import kind_of

    try:
        return kind_of(agent.build_job(context, transitions)).rounds > 0
    except Exception:  # of an agent that has nothing to train on
        return False


def _check_job(agent: Agent, context: RunContext, transitions: RecordedTransitions) -> Job:
    job, again = (_build(agent, context, transitions) for _ in range(2))
    with _checking("batches()"):
        first, second = (_some_batches(job) for _ in range(2))
    _require(bool(first), "batches(0) yields nothing", "yield mappings of tensors")
    _require(
        all(_same(a, b) for a, b in zip(first, second, strict=False)),
        "batches() gives different batches when called again, so a resumed run would differ",
        "derive them from the epoch or round and context.seed alone",
    )
    _require(
        _same(job.model.state_dict(), again.model.state_dict()),
        "build_job() gives different weights when called again, so a resumed run would differ",
        "draw every random number from context.seed",
    )
    return job


def _some_batches(job: Job) -> list[Mapping[str, torch.Tensor]]:
    import torch

    from infrastructure.training.rounds import batches_of_each_kind, kind_of

    kind, cpu = kind_of(job), torch.device("cpu")
    if kind.rounds:
        return batches_of_each_kind(job, job.model, cpu)
    return list(itertools.islice(kind.first_epoch(cpu), _BATCHES_COMPARED))


def _build(agent: Agent, context: RunContext, transitions: RecordedTransitions) -> Job:
    import torch

    torch.manual_seed(context.seed)
    with _checking("build_job()"):
        try:
            job = agent.build_job(context, transitions)
        except InsufficientDataError as error:
            raise AgentCheckError(
                f"build_job() refuses what collect() recorded: {error}; give check_agent a larger "
                "budget"
            ) from error
        _require(
            isinstance(job, Job),
            f"build_job() returned a {type(job).__name__}",
            "return a TrainingJob or an OnPolicyJob",
        )
    half = [
        name
        for name, parameter in job.model.named_parameters()
        if parameter.requires_grad and str(parameter.dtype) != "torch.float32"
    ]
    _require(
        not half,
        f"trained parameters that are not float32: {', '.join(half)}",
        "leave them float32: the trainer chooses the precision",
    )
    return job


def _same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    import torch

    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def _check_step(job: Job) -> None:
    import torch

    from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
    from infrastructure.training.diagnostics import check_fp32_step
    from infrastructure.training.model_copy import copy_model
    from infrastructure.training.parts import make_trainer

    config = FP16TrainingConfig(precision=Precision.FP32, accumulate=job.accumulate)
    with _checking("an FP32 step"):
        check_fp32_step(job, torch.device("cpu"))
        trainer = make_trainer(job, copy_model(job.model), config, wish=config.wish)
        if job.scheduler is not None and isinstance(trainer, FP16Trainer):
            job.scheduler(trainer.optimizer)


def _check_publish(agent: Agent, context: RunContext, job: Job) -> None:
    import torch

    from infrastructure.training import Precision
    from infrastructure.training.precision import PrecisionForward

    model = job.model.eval()
    forward = PrecisionForward(model, torch.device("cpu"), Precision.FP32)
    with _checking("evaluate()"), torch.no_grad():
        evaluation = job.evaluate(forward)
    _require(
        isinstance(evaluation, Evaluation),
        f"evaluate() returned {evaluation!r}",
        "return an Evaluation",
    )
    _require(
        evaluation.primary in evaluation.metrics,
        f"evaluate() names {evaluation.primary!r} as its primary metric, but its metrics are "
        f"{sorted(evaluation.metrics)}",
        "add it to them, or name one of them",
    )
    report = EvaluationReport(evaluation=evaluation, steps=1, epochs=1)
    with _checking("publish()"):
        publication = agent.publish(context, model, report)
    _require(
        isinstance(publication, Publication),
        f"publish() returned {publication!r}",
        "return a Publication with the decision and its reason",
    )
