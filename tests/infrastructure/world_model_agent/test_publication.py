import hashlib
import json
import math
import os
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from genesis_fp16.plugins.model_versions import keep_unrecorded, put_back, read_versions
from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.world_model import EnsembleNetwork, NetworkShape, WorldModel
from infrastructure.world_model.fitting import prepare_training_data
from infrastructure.world_model.fitting.rare_success import rounded_up
from infrastructure.world_model_agent.prior import Prior, build_prior
from infrastructure.world_model_agent.publication import (
    _what_would_decide,
    gate_publication,
)

pytestmark = pytest.mark.process  # trains for seconds


@pytest.mark.process
def test_labels_without_signal_are_not_published(repair_agent, make_context, run_once):
    agent, context = repair_agent(shuffled=True), make_context()
    publication = run_once(agent, context)
    assert not publication.published
    assert "not beat the base rate" in publication.reason
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
    context = make_context("run-1")
    first = run_once(hasty, context)
    assert first.published
    keep_unrecorded(context.agent_folder, now=0.0)
    [kept] = read_versions(context.agent_folder)
    publication = run_once(repair_agent(), make_context("run-2"))
    assert publication.published
    assert publication.metrics["in_use.nll_gain"] > 0
    assert "of the model in use" in publication.reason

    put_back(context.agent_folder, kept.id)
    in_use = hasty.published_model(context)
    assert in_use is not None
    assert in_use.metrics == first.metrics
    again = run_once(repair_agent(), make_context("run-3"))
    assert again.published, "it is compared with the model that was put back"
    assert again.metrics["in_use.nll"] == publication.metrics["in_use.nll"]


@pytest.mark.usefixtures("first_publication")
def test_an_unreadable_model_in_use_is_named_and_replaced(repair_agent, make_context, run_once):
    agent, context = repair_agent(), make_context("run-1")
    agent.training_steps = 100
    (agent.published_folder(context) / "model.json").write_text("{")
    assert agent.published_model(context) is None
    assert context.logger.lines[-1][0] == "published_model_unreadable"
    publication = run_once(agent, make_context("run-2"))
    assert publication.published
    assert "in use is unreadable" in publication.reason
    assert agent.published_model(context) is not None


@pytest.mark.usefixtures("first_publication")
def test_a_model_for_other_fields_is_not_compared(repair_agent, make_context, run_once):
    agent = repair_agent()
    agent.training_steps = 100
    agent.spec = lambda: replace(repair_agent().spec(), success=None)
    publication = run_once(agent, make_context("run-2"))
    assert publication.published
    assert "trained for other fields" in publication.reason


RARE = TransitionSpec(
    observation={"load": Box()},
    action={},
    targets={"solved": Discrete(values=("false", "true"))},
    success=("solved", "true"),
)


def _gate_of_rare_successes(rows: int, chance_of_high_load: float, folder: Path, seed: int = 0):
    """Successes in 1 of 200 rows: more often if the load is above 1.5, by so much."""
    generator, transitions = random.Random(seed), []
    for number in range(rows):
        load = generator.gauss(0, 1)
        chance = chance_of_high_load if load > 1.5 else 0.0
        chance = chance or (0.005 - 0.0668 * chance_of_high_load) / 0.9332
        transitions.append(
            Transition(
                group=f"ticket {number // 5}",
                observation={"load": load},
                action={},
                next_observation={"solved": generator.random() < chance},
            )
        )
    data = prepare_training_data(RARE, transitions)
    torch.manual_seed(0)
    network = EnsembleNetwork(NetworkShape.of(data.encoder, data.codec))  # linear is better
    return data, gate_publication(data, network, folder / "none", EnsembleNetwork)


@pytest.mark.parametrize(("seed", "successes"), [(0, "1 success"), (1, "2 successes")])
def test_rare_successes_are_told_with_the_data_that_would_decide(tmp_path, seed, successes):
    data, decision = _gate_of_rare_successes(3000, 0.03, tmp_path, seed)
    assert not decision.published
    told = re.search(
        rf"standard error 0\.\d+, from {successes} in 570 test transitions in 114 groups; "
        r"at this rate about ([\d,]+) transitions would decide \(3,000 are recorded\)$",
        decision.reason,
    )
    assert told is not None, decision.reason
    recorded = sum(int((part.outcomes["solved"] == 1).sum()) for part in data.parts.values())
    for_thirty = 30 / (recorded / 3000) * 3000 / 570
    assert int(told[1].replace(",", "")) >= for_thirty


@pytest.mark.parametrize("success", [("solved", "true"), None])
def test_chance_with_hardly_a_success_in_the_test_groups_is_not_published(tmp_path, success):
    """Pure noise; seeds of 300 rows whose test groups have fewer than 5 successes."""
    spec, few = replace(RARE, success=success), 0
    for seed in range(8):
        generator = random.Random(seed)
        rows = [
            Transition(
                group=f"ticket {number // 5}",
                observation={"load": generator.gauss(0, 1)},
                action={},
                next_observation={"solved": generator.random() < 0.03},
            )
            for number in range(300)
        ]
        data = prepare_training_data(spec, rows)
        torch.manual_seed(0)
        network = EnsembleNetwork(NetworkShape.of(data.encoder, data.codec), members=1, hidden=4)
        decision = gate_publication(data, network, tmp_path / "none", EnsembleNetwork)
        if int(data.test.outcomes["solved"].sum()) < 5:
            few += 1
            assert not decision.published
            assert "another solved than the commonest (at least 5 must)" in decision.reason
            assert "transitions would decide" in decision.reason
        if int(data.calibration.outcomes["solved"].sum()) < 5:
            assert set(decision.candidate.weights.values()) == {(0.0, 0.0)}
    assert few > 3


def test_a_wide_interval_tells_the_data_that_would_narrow_it(candidate, tmp_path):
    data, network = candidate
    decision = gate_publication(data, network, tmp_path / "none", EnsembleNetwork)
    assert decision.published
    shifted = _what_would_decide(data, 0.01, 0.02)
    recorded = sum(len(part.transitions) for part in data.parts.values())
    assert f"about {rounded_up(recorded * 3.29**2):,} transitions would decide" in shifted
    assert "would decide" not in _what_would_decide(data, -0.01, 0.02)


def test_rare_successes_are_published_once_there_are_enough(tmp_path):
    _, decision = _gate_of_rare_successes(30_000, 0.05, tmp_path)
    assert decision.published


def _gate_of_weak_signal(seed: int, published: Path, propensity: float | None):
    generator, transitions = random.Random(seed), []
    for number in range(400):
        load = generator.gauss(0, 1)
        transitions.append(
            Transition(
                group=str(number),
                observation={"load": load},
                action={},
                next_observation={"solved": generator.random() < 0.5 + 0.1 * (load > 0)},
                propensity=propensity,
            )
        )
    data = prepare_training_data(RARE, transitions)
    torch.manual_seed(0)
    network = EnsembleNetwork(NetworkShape.of(data.encoder, data.codec), members=1, hidden=4)
    return gate_publication(data, network, published, EnsembleNetwork)


def test_the_first_model_of_an_agent_that_explores_needs_less_evidence(tmp_path):
    def errors(seed):
        metrics = _gate_of_weak_signal(seed, tmp_path / "none", None).metrics
        return metrics["nll_skill"] / metrics["nll_skill_standard_error"]

    seed = next(seed for seed in range(22, 100) if 1.05 < errors(seed) < 1.6)
    assert not _gate_of_weak_signal(seed, tmp_path / "none", None).published
    assert not _gate_of_weak_signal(seed, tmp_path / "none", 1.0).published
    explored = _gate_of_weak_signal(seed, tmp_path / "none", 0.5)
    assert explored.published
    WorldModel.from_fitted(explored.candidate, {}).save(tmp_path / "some")
    assert not _gate_of_weak_signal(seed, tmp_path / "some", 0.5).published


def test_all_groups_may_show_what_too_few_test_groups_do_not(tmp_path):
    decisions = ((n, _gate_of_weak_signal(n, tmp_path / "none", 0.5)) for n in range(8, 100))
    over_all = "in a cross-validation over 400 groups"
    seed, explored = next(made for made in decisions if over_all in made[1].reason)
    assert explored.published
    assert not _gate_of_weak_signal(seed, tmp_path / "none", None).published
    model = WorldModel.from_fitted(explored.candidate, {})
    low, high = model.predict_batch([{"load": -1.0}, {"load": 1.0}], [{}, {}])
    assert high.success_probability > low.success_probability + 0.02


@pytest.fixture(scope="module")
def candidate(repair_data):
    """Data of a run and a network that has learned it a little."""
    spec, transitions = repair_data
    data = prepare_training_data(spec, transitions)
    model = WorldModel(spec)
    model.fit(data, epochs=6, device="cpu", precision="fp32")
    return data, model.fitted_model.ensemble


@pytest.fixture(scope="module")
def untrained_prior(repair_data, tmp_path_factory):
    """A prior that has learned nothing; not to be changed."""
    folder = tmp_path_factory.mktemp("untrained-prior")
    spec, transitions = repair_data
    labels = [transition.next_observation for transition in transitions]
    random.Random(0).shuffle(labels)
    noise = [
        replace(transition, next_observation=label)
        for transition, label in zip(transitions, labels, strict=True)
    ]
    build_prior(folder, spec, noise, epochs=1, seed=0, command="make it", notes={})
    return folder


def test_a_model_that_does_not_beat_the_prior_is_refused(candidate, repair_prior, tmp_path):
    decision = gate_publication(*candidate, tmp_path, EnsembleNetwork, repair_prior)
    assert not decision.published
    assert decision.reason.startswith("not better than the prior")
    assert decision.metrics["prior.nll_gain"] < 0
    assert decision.beaten_prior == ""
    assert gate_publication(*candidate, tmp_path, EnsembleNetwork).published


def test_a_model_that_beats_the_prior_replaces_it(candidate, untrained_prior, tmp_path):
    decision = gate_publication(*candidate, tmp_path, EnsembleNetwork, untrained_prior)
    assert decision.published
    assert "of the prior that ships with the agent" in decision.reason
    assert decision.metrics["prior.nll_gain"] > 0
    assert decision.beaten_prior == Prior.open(untrained_prior).digest


def test_a_published_model_that_never_met_the_prior_is_not_in_the_way(
    candidate, repair_prior, untrained_prior, repair_data, tmp_path
):
    better = Prior.open(repair_prior).load("twin", repair_data[0])
    better.save(tmp_path / "published")
    decision = gate_publication(
        *candidate, tmp_path / "published", EnsembleNetwork, untrained_prior
    )
    assert decision.published
    assert decision.reason.endswith("not compared with this prior")
    better.beaten_prior = Prior.open(untrained_prior).digest
    better.save(tmp_path / "published")
    decision = gate_publication(
        *candidate, tmp_path / "published", EnsembleNetwork, untrained_prior
    )
    assert not decision.published
    assert "not better than the model" in decision.reason


def test_a_damaged_prior_is_named_by_the_gate(candidate, tmp_path):
    decision = gate_publication(*candidate, tmp_path, EnsembleNetwork, tmp_path / "lost")
    assert decision.published
    assert str(tmp_path / "lost") in decision.reason
    assert decision.beaten_prior == ""


def test_a_prior_that_has_seen_every_group_stays(candidate, untrained_prior, tmp_path):
    shutil.copytree(untrained_prior, tmp_path / "prior")
    index = json.loads((untrained_prior / "prior.json").read_text())
    index["groups"]["twin"] = index["groups"]["model"]
    (tmp_path / "prior" / "prior.json").write_text(json.dumps(index))
    decision = gate_publication(*candidate, tmp_path / "none", EnsembleNetwork, tmp_path / "prior")
    assert not decision.published
    assert "every test group" in decision.reason


def test_a_prior_without_a_finite_likelihood_is_replaced(
    candidate, untrained_prior, repair_data, tmp_path
):
    folder = tmp_path / "prior"
    shutil.copytree(untrained_prior, folder)
    twin = Prior.open(folder).load("twin", repair_data[0])
    with torch.no_grad():
        for network in (twin.fitted_model.ensemble, twin.fitted_model.linear):
            for parameter in network.parameters():
                parameter.fill_(math.nan)
    fitted = twin.fitted_model
    halves = dict.fromkeys(fitted.weights, (0.5, 0.5))
    WorldModel.from_fitted(replace(fitted, weights=halves), {}).save(folder / "twin")
    index = json.loads((folder / "prior.json").read_text())
    files = [path for which in ("model", "twin") for path in (folder / which).iterdir()]
    index["files"] = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
    (folder / "prior.json").write_text(json.dumps(index))
    decision = gate_publication(*candidate, tmp_path / "none", EnsembleNetwork, folder)
    assert decision.published
    assert "is not finite" in decision.reason
    assert decision.beaten_prior == ""  # as of any prior that cannot be loaded


def test_the_gate_gets_the_best_epoch(repair_agent, make_context, run_once):
    class Recording(repair_agent):
        def build_job(self, context, transitions):
            job = super().build_job(context, transitions)
            self.epochs_seen = []

            def evaluate(forward):
                evaluation = job.evaluate(forward)
                weights = {name: each.clone() for name, each in job.model.state_dict().items()}
                self.epochs_seen.append((evaluation, weights))
                return evaluation

            return replace(job, evaluate=evaluate)

        def publish(self, context, model, report):
            self.published, self.report = model.state_dict(), report
            return super().publish(context, model, report)

    agent, context = Recording(shuffled=True), make_context()
    agent.epochs = 20  # without signal, patience ends the training after the best
    run_once(agent, context)
    evaluation, best = min(agent.epochs_seen, key=lambda each: each[0].selection_loss)
    last = agent.epochs_seen[-1][1]
    assert agent.report.evaluation == evaluation
    assert all(torch.equal(agent.published[name], best[name]) for name in best)
    assert not all(torch.equal(agent.published[name], last[name]) for name in last)


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
    assert run_once(agent, context) is not None
    damage(context.run_folder / "best-epoch.pt", "bit")
    assert run_once(agent, context) is not None
    assert [event for event, _ in context.logger.lines].count("best_epoch_damaged") == 1


class Identity(torch.nn.Module):
    """Predicts that the target is the first input, with a standard deviation that is wrong."""

    def forward(self, inputs):
        x_N1 = inputs["dense"][:, :1]
        return {"y.mean": 0.8 * x_N1[None], "y.log_variance": torch.full_like(x_N1, -6.0)[None]}


def heavy_tailed(signal, seed, rows=1500):
    """Rows whose noise has 2.5 degrees of freedom, as of counts of rare events."""
    spec = TransitionSpec(observation={"x": Box()}, action={}, targets={"y": Box()})
    generator = random.Random(seed)
    noise = [
        generator.gauss(0, 1) / math.sqrt(generator.gammavariate(1.25, 0.8)) for _ in range(rows)
    ]
    inputs = [generator.gauss(0, 1) for _ in range(rows)]
    transitions = [
        Transition(
            group=f"g{row // 3}",
            observation={"x": x},
            action={},
            next_observation={"y": signal * x + error},
        )
        for row, (x, error) in enumerate(zip(inputs, noise, strict=True))
    ]
    return prepare_training_data(spec, transitions)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_good_model_of_a_heavy_tailed_target_is_published(tmp_path, seed):
    decision = gate_publication(heavy_tailed(1.5, seed), Identity(), tmp_path, EnsembleNetwork)
    assert decision.published, decision.reason
    assert 0.86 < decision.metrics["y.coverage_90"] < 0.94


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tails_and_scale_alone_are_not_published(tmp_path, seed):
    """A Student's t beats a Gaussian base rate on noise: the base rate gets its tails as well."""
    decision = gate_publication(heavy_tailed(0.0, seed), Identity(), tmp_path, EnsembleNetwork)
    assert not decision.published
    assert decision.candidate.calibration.tails["y"] != (0.0,)


def test_the_gate_scores_what_users_get(tmp_path):
    """The score is that of the published answers, on groups that nothing was fitted on."""
    data = heavy_tailed(1.5, 0)
    decision = gate_publication(data, Identity(), tmp_path, EnsembleNetwork)
    answers = WorldModel.from_fitted(decision.candidate, {}).predict_batch(
        [transition.observation for transition in data.test.transitions],
        [transition.action for transition in data.test.transitions],
    )
    errors = [
        transition.next_observation["y"] - answer.next_state["y"]
        for transition, answer in zip(data.test.transitions, answers, strict=True)
    ]
    rmse = math.sqrt(sum(error * error for error in errors) / len(errors))
    assert decision.metrics["y.rmse"] == pytest.approx(rmse)
    stated = math.sqrt(sum(answer.deviations["y"][0] ** 2 for answer in answers) / len(answers))
    assert 0.6 < rmse / stated < 1.6  # the variance of such noise is itself a matter of outliers
