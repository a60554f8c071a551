from dataclasses import replace

import pytest
import torch

from infrastructure.agent_contract import Agent, EvaluationReport
from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.training.diagnostics import check_fp32_step
from infrastructure.world_model.networks.network import LinearNetwork

pytestmark = pytest.mark.process  # trains for seconds


def _batches(job):
    return [batch for epoch in range(job.epochs) for batch in job.batches(epoch)]


def test_it_meets_the_contract(repair_agent):
    assert isinstance(repair_agent(), Agent)
    assert str(repair_agent().schedule()) == "every 6h"


def test_without_a_published_model_there_is_none(repair_agent, make_context):
    assert repair_agent().published_model(make_context()) is None


def test_the_first_good_model_is_published_and_can_be_used(
    repair_agent, make_context, first_publication
):
    agent, context, publication = repair_agent(), make_context(), first_publication
    assert publication.published
    assert "beats the base rate" in publication.reason
    assert publication.reason.endswith("no model was in use")
    assert publication.metrics["outcome.auroc"] > 0.9
    assert publication.metrics["ensemble.nll_skill"] > 2 * publication.metrics["linear.nll_skill"]
    model = agent.published_model(context)
    actions = [{"edit": "drop the line"}, {"edit": "swap the line"}]
    assert model.rank({"depth": 1.0, "constant": 1.0}, actions) == [1, 0]
    assert model.rank({"depth": -1.0, "constant": 1.0}, actions) == [0, 1]
    assert model.metrics == publication.metrics


@pytest.mark.process
def test_real_half_precision_on_the_cpu_trains_as_well(
    repair_agent, make_context, run_once, first_publication
):
    half = run_once(repair_agent(), make_context("run-2"), precision="fp16")
    skill = first_publication.metrics["ensemble.nll_skill"]
    assert half.metrics["ensemble.nll_skill"] != skill  # it ran in half precision
    assert half.metrics["ensemble.nll_skill"] == pytest.approx(skill, rel=0.05)


def test_doubts_about_the_data_are_told_before_training_and_with_the_decision(
    repair_agent, make_context, run_once
):
    class CopyingAgent(repair_agent):
        training_steps = 20

        def collect(self, context):
            for transition in super().collect(context):
                yield transition
                yield replace(transition, group=f"retry of {transition.group}")

    context = make_context()
    publication = run_once(CopyingAgent(), context)
    told = [fields for event, fields in context.logger.lines if event == "training_data_doubtful"]
    assert [fields["finding"] for fields in told] == ["duplicates"]
    assert "held-out transitions" in told[0]["problem"]
    assert "one group" in told[0]["remedy"]
    assert publication.reason.endswith("; doubtful data: duplicates")


def test_a_split_by_time_tests_every_run_on_groups_that_no_model_in_use_has_seen(
    repair_agent, make_context, run_once
):
    class TimedAgent(repair_agent):
        training_steps = 100

        def spec(self):
            return replace(super().spec(), split="time")

    assert run_once(TimedAgent(groups=40), make_context("run-1")).published
    longer = TimedAgent(groups=60)
    publication = run_once(longer, make_context("run-2"))
    assert longer._data.test.groups[0] == "task-48"
    assert set(longer._data.test.groups) == {f"task-{number}" for number in range(48, 60)}
    assert "model in use" in publication.reason
    assert "in_use.nll" in publication.metrics


@pytest.mark.usefixtures("first_publication")
def test_after_a_change_of_the_split_the_model_in_use_is_not_compared(
    repair_agent, make_context, run_once
):
    agent = repair_agent()
    agent.training_steps = 100
    agent.spec = lambda: replace(repair_agent().spec(), split="time")
    publication = run_once(agent, make_context("run-2"))
    assert publication.published
    assert "trained for other fields or another split" in publication.reason


def test_a_resumed_attempt_builds_the_same_job(repair_agent, make_context):
    context = make_context()
    jobs = [repair_agent().build_job(context, list(repair_agent().collect(context))) for _ in "ab"]
    first, second = map(_batches, jobs)
    assert len(first) == len(second) == 400
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    states = [job.model.state_dict() for job in jobs]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_stopped_and_resumed_run_publishes_the_same_model(
    repair_agent, make_context, run_once, first_publication
):
    context = make_context("run-2")
    repair_agent().published_folder(context).rename(context.agent_folder / "aside")
    assert run_once(repair_agent(), context, stop_after=3) is None
    resumed = run_once(repair_agent(), context)
    assert dict(resumed.metrics) == dict(first_publication.metrics)


def test_too_little_data_is_refused(repair_agent, make_context):
    agent = repair_agent(groups=2)
    transitions = list(agent.collect(make_context()))
    with pytest.raises(InsufficientDataError, match="collect more"):
        agent.build_job(make_context(), transitions)


def test_excluded_data_is_logged(repair_agent, make_context):
    agent, context = repair_agent(), make_context()
    transitions = list(agent.collect(context))
    broken = [replace(transition, observation={}, action={}) for transition in transitions[:3]]
    agent.build_job(context, [*broken, *transitions])
    problems = [fields["problem"] for _, fields in context.logger.lines]
    assert "observation.constant" in problems[0]
    assert problems[1].startswith("3 transitions")
    assert "every input is missing ('depth', 'constant', 'edit')" in problems[1]


def test_only_the_newest_transitions_are_trained_on(repair_agent, make_context):
    agent = repair_agent()
    agent.newest_transitions = 800
    transitions = list(agent.collect(make_context()))
    job = agent.build_job(make_context(), transitions)
    newest = repair_agent().build_job(make_context(), transitions[-800:])
    first, second = next(iter(job.batches(0))), next(iter(newest.batches(0)))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_authors_network_loss_and_metric_are_used(repair_agent, make_context, run_once):
    class Own(repair_agent):
        def build_model(self, shape):
            return LinearNetwork(shape)

        def loss(self, forward, batch):
            return super().loss(forward, batch) * 2

        def evaluate(self, model, transitions):
            predictions = model.predict_batch(
                [t.observation for t in transitions], [t.action for t in transitions]
            )
            return {"own.rows": float(len(predictions))}

    agent, context = Own(seed=2), make_context()  # a linear model learns enough of this one
    publication = run_once(agent, context)
    assert publication.metrics["own.rows"] > 20
    assert isinstance(agent.published_model(context).fitted_model.ensemble, LinearNetwork)


def test_publishing_without_a_job_is_refused(repair_agent, make_context):
    report = EvaluationReport(evaluation=None, steps=0, epochs=0)
    with pytest.raises(RuntimeError, match="call build_job first"):
        repair_agent().publish(make_context(), torch.nn.Linear(1, 1), report)


def test_the_model_computes_nothing_in_half_under_fp32(repair_agent, make_context):
    agent, context = repair_agent(), make_context()
    job = agent.build_job(context, list(agent.collect(context)))
    check_fp32_step(job, torch.device("cpu"))
