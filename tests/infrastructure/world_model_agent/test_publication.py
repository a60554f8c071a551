import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from infrastructure.agent_contract import EvaluationReport
from infrastructure.training.checkpoints import BestEpoch
from infrastructure.world_model import WorldModel

pytestmark = pytest.mark.process  # trains for seconds


@pytest.mark.process
def test_labels_without_signal_are_not_published(repair_agent, make_context, run_once):
    agent, context = repair_agent(shuffled=True), make_context()
    publication = run_once(agent, context)
    assert not publication.published
    assert "does not beat the base rate" in publication.reason
    assert abs(publication.metrics["outcome.auroc"] - 0.5) < 0.12
    assert agent.published_model(context) is None


@pytest.mark.usefixtures("first_publication")
def test_a_worse_model_is_refused_and_the_better_stays(repair_agent, make_context, run_once):
    worse = repair_agent()
    worse.training_steps, worse.epochs = 5, 1
    better = WorldModel.load(worse.published_folder(make_context()))
    publication = run_once(worse, make_context("run-2"))
    assert not publication.published
    assert "than the model in use" in publication.reason
    assert publication.metrics["in_use.nll_gain"] < 0
    after = WorldModel.load(worse.published_folder(make_context()))
    assert after.metrics == better.metrics


def test_a_better_model_replaces_the_one_in_use(repair_agent, make_context, run_once):
    hasty = repair_agent()
    hasty.training_steps = 100
    assert run_once(hasty, make_context("run-1")).published
    publication = run_once(repair_agent(), make_context("run-2"))
    assert publication.published
    assert publication.metrics["in_use.nll_gain"] > 0
    assert "of the model in use" in publication.reason


@pytest.mark.usefixtures("first_publication")
def test_an_unreadable_model_in_use_is_named_and_replaced(repair_agent, make_context, run_once):
    agent, context = repair_agent(), make_context("run-1")
    agent.training_steps = 100
    (agent.published_folder(context) / "model.json").write_text("{")
    assert agent.published_model(context) is None
    assert context.logger.lines[-1][0] == "published_model_unreadable"
    publication = run_once(agent, make_context("run-2"))
    assert publication.published
    assert "the model in use is unreadable" in publication.reason
    assert agent.published_model(context) is not None


@pytest.mark.usefixtures("first_publication")
def test_a_model_for_other_fields_is_not_compared(repair_agent, make_context, run_once):
    agent = repair_agent()
    agent.training_steps = 100
    agent.spec = lambda: replace(repair_agent().spec(), success=None)
    publication = run_once(agent, make_context("run-2"))
    assert publication.published
    assert "trained for other fields" in publication.reason


def test_the_gate_gets_the_best_epoch(repair_agent, make_context, run_once):
    class Keeping(repair_agent):
        def build_model(self, shape):
            self.network = super().build_model(shape)
            return self.network

    agent, context = Keeping(shuffled=True), make_context()  # without signal, the last is worst
    agent.publish = lambda context, model, report: report
    run_once(agent, context)
    last = {name: tensor.clone() for name, tensor in agent.network.state_dict().items()}
    Keeping.publish(
        agent, context, agent.network, EvaluationReport(evaluation=None, steps=0, epochs=0)
    )
    published = agent.network.state_dict()
    kept = Keeping().build_job(context, list(agent.collect(context))).model
    BestEpoch(context.run_folder / "best-epoch.pt").restore(kept)
    best = kept.state_dict()
    assert all(torch.equal(published[name], best[name]) for name in best)
    assert not all(torch.equal(published[name], last[name]) for name in last)


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    match how:
        case "empty":
            path.touch()
        case "truncated":
            path.write_bytes(content[: len(content) // 2])
        case "bit":
            middle = len(content) // 2
            path.write_bytes(
                content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            )
        case "folder":
            (path / "inside").mkdir(parents=True)
        case "pipe":
            os.mkfifo(path)
        case "foreign":
            torch.save({"loss": 0.0, "network": {}}, path)


@pytest.mark.parametrize("how", ["empty", "truncated", "bit", "folder", "pipe", "foreign"])
def test_a_damaged_best_epoch_is_replaced_with_one_notice(
    repair_agent, make_context, run_once, how
):
    agent, context = repair_agent(groups=30), make_context()
    agent.training_steps, agent.epochs = 20, 4
    run_once(agent, context, stop_after=2)
    damage(context.run_folder / "best-epoch.pt", how)
    context.logger.lines.clear()
    resumed = repair_agent(groups=30)
    resumed.training_steps, resumed.epochs = 20, 4
    assert run_once(resumed, context) is not None
    [(event, fields)] = [each for each in context.logger.lines if each[0].startswith("best")]
    assert event == "best_epoch_damaged"
    assert str(context.run_folder / "best-epoch.pt") in fields["error"]
    assert (context.run_folder / "best-epoch.pt").is_file()


def test_a_best_epoch_damaged_at_the_end_costs_only_itself(repair_agent, make_context, run_once):
    agent, context = repair_agent(groups=30), make_context()
    agent.training_steps, agent.epochs = 20, 2
    publish = agent.publish

    def publish_late(*arguments):
        damage(context.run_folder / "best-epoch.pt", "bit")
        return publish(*arguments)

    agent.publish = publish_late
    assert run_once(agent, context) is not None
    assert [event for event, _ in context.logger.lines].count("best_epoch_damaged") == 1
