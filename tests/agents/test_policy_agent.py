from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import structlog
import torch

from agents.policy.learner import is_reinforced
from agents.policy.published import save_published
from agents.policy.settings import PolicySettings
from agents.policy.tasks import TASKS
from agents.policy_agent import PolicyAgent
from genesis_fp16.plugins.model_versions import keep_unrecorded, put_back, read_versions
from genesis_fp16.testing import check_agent
from infrastructure.agent_contract import Evaluation, EvaluationReport, RunContext
from infrastructure.agent_contract.run_context import Budget
from infrastructure.policy.adapters import adapter_rank, base_of, merged
from infrastructure.training import Precision
from infrastructure.training.precision import PrecisionForward
from infrastructure.training.rounds.kinds import untrained_roles

pytestmark = pytest.mark.process  # trains for seconds

SMALL = {"prompts_per_round": 4, "rounds_per_epoch": 2, "rounds": 2, "task": "sorting"}
WARM_UP = TASKS["sorting"].warm_up_rounds


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    return context_in(tmp_path)


def context_in(folder: Path) -> RunContext:
    return RunContext(
        run_id="r",
        attempt=1,
        agent="policy",
        device="cpu",
        seed=3,
        agent_folder=folder,
        run_folder=folder / "run",
        budget=Budget(seconds=1.0, transitions=1),
        settings=PolicySettings(**SMALL),
        logger=structlog.get_logger(),
        report_progress=lambda *_, **__: None,
    )


def report(value: float) -> EvaluationReport:
    metrics = {"held_out_reward": value}
    evaluation = Evaluation(metrics=metrics, primary="held_out_reward", higher_is_better=True)
    return EvaluationReport(evaluation=evaluation, steps=1, epochs=1)


@pytest.fixture(scope="module")
def sorter(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    """A policy that needs no more demonstrations."""
    job = PolicyAgent().build_job(context_in(tmp_path_factory.mktemp("sorter")), [])
    optimizer, device = job.optimizer(job.model.parameters()), torch.device("cpu")
    forward = PrecisionForward(job.model, device, Precision.FP32)
    roles = untrained_roles(job, job.model, device)  # of the model as it is at each round
    for round_ in range(job.warm_up_rounds):
        for batch in job.batches(round_, roles):
            if is_reinforced(batch):
                return job.model
            job.loss(forward, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return job.model


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_it_keeps_the_contract(lora_rank: int) -> None:
    check_agent(PolicyAgent, settings={**SMALL, "lora_rank": lora_rank})


def test_only_a_better_policy_is_published_and_the_next_run_begins_with_it(
    context: RunContext, sorter: torch.nn.Module
) -> None:
    agent, model = PolicyAgent(), sorter
    untrained = agent.build_job(context, []).model
    refused = agent.publish(context, untrained, report(0.0))
    assert not refused.published
    assert refused.reason.startswith("not better than no policy")
    published = agent.publish(context, model, report(0.9))
    assert published.published
    assert published.metrics["gain_low"] > 0.0
    again = agent.publish(context, model, report(0.9))
    assert not again.published
    assert "not better" in again.reason
    later = replace(context, run_folder=context.run_folder.with_name("later"))
    job = agent.build_job(later, [])
    assert job.warm_up_rounds == 0
    assert all(map(torch.equal, job.model.parameters(), model.parameters()))
    from_random = replace(later, settings=PolicySettings(**SMALL, start="random"))
    assert agent.build_job(from_random, []).warm_up_rounds == WARM_UP


def test_after_a_rollback_a_policy_begins_with_and_must_beat_the_one_in_use(
    context: RunContext, sorter: torch.nn.Module, tmp_path: Path
) -> None:
    agent = PolicyAgent()
    untrained = agent.build_job(context, []).model
    save_published(agent.published_folder(context), untrained, {})
    keep_unrecorded(context.agent_folder, now=0.0)
    [kept] = read_versions(context.agent_folder)
    assert agent.publish(context, sorter, report(0.9)).published
    assert not agent.publish(context, sorter, report(0.9)).published
    put_back(context.agent_folder, kept.id)
    later = replace(context, run_folder=tmp_path / "later")
    model = agent.build_job(later, []).model
    assert all(map(torch.equal, model.parameters(), untrained.parameters()))
    assert agent.publish(context, sorter, report(0.9)).published


def test_attempts_and_the_repetition_of_a_run_begin_with_what_it_began_with(
    context: RunContext, sorter: torch.nn.Module, tmp_path: Path
) -> None:
    """Although the run itself has published another policy."""
    agent = PolicyAgent()
    first = agent.build_job(context, [])
    assert agent.publish(context, sorter, report(0.9)).published
    twin = replace(context, run_folder=tmp_path / "twin", repeats=context.run_folder)
    for again in (context, twin):
        job = agent.build_job(again, [])
        assert job.warm_up_rounds == first.warm_up_rounds > 0
        assert all(map(torch.equal, job.model.parameters(), first.model.parameters()))
    later = replace(context, run_folder=tmp_path / "later")
    assert agent.build_job(later, []).warm_up_rounds == 0
    (agent.published_folder(context) / "policy.json").unlink()
    repeated = replace(twin, repeats=later.run_folder)
    job = agent.build_job(repeated, [])
    assert job.warm_up_rounds == 0
    assert all(map(torch.equal, job.model.parameters(), sorter.parameters()))


def teach(model: torch.nn.Module, context: RunContext) -> None:
    """Train what is not frozen of *model* with demonstrations."""
    job = PolicyAgent().build_job(context, [])  # of a folder without a policy
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, device = torch.optim.AdamW(trained, lr=5e-3), torch.device("cpu")
    forward = PrecisionForward(model, device, Precision.FP32)
    roles = untrained_roles(job, job.model, device)
    for round_ in range(job.warm_up_rounds):
        for batch in job.batches(round_, roles):
            job.loss(forward, batch).backward()
            optimizer.step()
            optimizer.zero_grad()


def test_an_adapter_is_trained_over_the_policy_in_use_and_published_alone(
    context: RunContext, sorter: torch.nn.Module, tmp_path: Path
) -> None:
    agent, folder = PolicyAgent(), PolicyAgent().published_folder(context)

    def run(name: str, lora_rank: int) -> RunContext:
        settings = PolicySettings(**SMALL, lora_rank=lora_rank)
        return replace(context, run_folder=tmp_path / name, settings=settings)

    with structlog.testing.capture_logs() as logs:
        first = agent.build_job(run("first", 4), [])
    assert [each["event"] for each in logs] == ["lora_rank_without_effect"]
    assert first.warm_up_rounds == WARM_UP
    assert all(parameter.requires_grad for parameter in first.model.parameters())
    assert agent.publish(run("first", 4), sorter, report(0.9)).published

    adapted = agent.build_job(run("second", 4), []).model
    assert adapter_rank(adapted) == 4
    assert all(map(torch.equal, base_of(adapted).parameters(), sorter.parameters()))
    teach(adapted, context_in(tmp_path / "empty"))
    published = agent.publish(run("second", 4), adapted, report(0.9))
    assert published.published, published.reason
    in_use = agent.published_model(context)
    assert all(map(torch.equal, in_use.parameters(), adapted.parameters()))
    assert len(list(folder.glob("base-*"))) == 1

    again = agent.build_job(run("third", 4), []).model
    assert all(map(torch.equal, again.parameters(), adapted.parameters()))
    assert not agent.publish(run("third", 4), again, report(0.9)).published
    expected = merged(adapted).state_dict()
    for rank in (2, 0):
        other = agent.build_job(run(f"rank-{rank}", rank), []).model
        assert adapter_rank(other) == rank
        found = base_of(other).state_dict()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_damaged_policy_in_use_is_reported_and_replaced(
    context: RunContext, sorter: torch.nn.Module
) -> None:
    agent = PolicyAgent()
    agent.publish(context, sorter, report(0.9))
    (agent.published_folder(context) / "policy.json").write_text("{")
    with structlog.testing.capture_logs() as logs:
        assert agent.build_job(context, []).warm_up_rounds == WARM_UP
    assert [each["event"] for each in logs] == ["published_model_unreadable"]
    replaced = agent.publish(context, sorter, report(0.9))
    assert replaced.published
    assert replaced.reason.startswith("better than no policy (")
