"""A model that is followed leads to outcomes that are harder to predict, and is left in use."""

import random
from contextlib import closing
from pathlib import Path

import pytest
import torch

from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.guard.models.watch import ModelWatch
from genesis_fp16.predictor.judge import HeldOut, Judge, judge_rows
from genesis_fp16.predictor.models import ServedModel
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, TransitionSpec
from infrastructure.decisions.log import DecisionLog
from infrastructure.world_model import EnsembleNetwork, WorldModel
from infrastructure.world_model.fitting import FittedModel, prepare_training_data
from infrastructure.world_model_agent.publication import gate_publication

SPEC = TransitionSpec(
    observation={"load": Box()},
    action={"turn": Discrete(values=("left", "right"))},
    targets={"ok": Discrete(values=("no", "yes"))},
    success=("ok", "yes"),
)
CHANCE = {"left": 0.05, "right": 0.8}


def outcome(turn: str, number: int, source: random.Random, chance: float) -> Transition:
    return Transition(
        group=str(number),
        observation={"load": source.random()},
        action={"turn": turn},
        next_observation={"ok": "yes" if source.random() < chance else "no"},
    )


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[FittedModel, HeldOut]:
    """A model of records in which hardly anybody turned right."""
    source, rows = random.Random(0), []
    for number in range(4000):
        turn = "right" if source.random() < 0.1 else "left"
        rows.append(outcome(turn, number, source, CHANCE[turn]))
    data = prepare_training_data(SPEC, rows)
    model = WorldModel(SPEC, members=1, hidden=8)
    model.fit(data, epochs=20, device="cpu", precision="fp32")
    assert model.fitted_model is not None
    nothing: Path = tmp_path_factory.mktemp("agent") / "none"
    decision = gate_publication(data, model.fitted_model.ensemble, nothing, EnsembleNetwork)
    reference = HeldOut.of(decision.metrics)
    assert decision.published, decision.reason
    assert reference is not None
    return decision.candidate, reference


def has_failed(published: tuple[FittedModel, HeldOut], chance: float, followed: bool) -> bool:
    """Whether the guard takes it back in 1,000 outcomes of turns to the right."""
    (model, reference), source, settings = published, random.Random(1), GuardSettings()
    watch = ModelWatch(
        version="v", held_out_loss=reference.loss, base_rate_loss=reference.base_rate
    )
    for start in range(0, 1000, 10):
        rows = [outcome("right", start + one, source, chance) for one in range(10)]
        judged = judge_rows(model, reference, "v", rows, [followed] * len(rows))
        assert judged is not None
        if watch.add(judged, settings) and watch.has_failed(settings):
            return True
    return False


def test_choices_are_held_to_what_the_model_expected_of_them(
    published: tuple[FittedModel, HeldOut],
) -> None:
    assert not has_failed(published, CHANCE["right"], followed=True)
    assert has_failed(published, 0.3, followed=True), "the world has changed"
    assert has_failed(published, CHANCE["right"], followed=False), "it was not tested on these"


def test_a_report_says_what_the_outcomes_are_held_to(
    published: tuple[FittedModel, HeldOut],
) -> None:
    model, reference = published
    rows = [outcome(turn, 1, random.Random(2), 0.5) for turn in ("left", "right")]
    chance_N = model.predict_transitions(rows)["ok"].probabilities[:, 1]
    own_N = torch.special.entr(torch.stack([chance_N, 1.0 - chance_N])).sum(0)
    judged = judge_rows(model, reference, "v", rows, [True, True])
    assert judged is not None
    assert reference.loss < float(own_N[1])
    assert judged.expected_loss_sum == pytest.approx(float(own_N.clamp(min=reference.loss).sum()))


@pytest.mark.parametrize("version", [None, "v"])
def test_the_log_says_which_decisions_a_model_answered(
    published: tuple[FittedModel, HeldOut], tmp_path: Path, version: str | None
) -> None:
    model, reference = published
    metrics = {
        "nll": reference.loss,
        "nll_skill": reference.base_rate - reference.loss,
        "nll_standard_error": reference.error,
        "nll_deviation": reference.deviation,
    }
    served = ServedModel(
        agent="qa", model=WorldModel.from_fitted(model, metrics), version="v", spec=SPEC
    )
    decision = {
        "kind": "decision",
        "id": "d",
        "group": "g",
        "observation": {"load": 0.5},
        "actions": [{"turn": "left"}, {"turn": "right"}],
        "chosen": 1,
        "propensity": 1.0,
        "answer": {"version": version, "order": [1, 0]},
    }
    with closing(DecisionLog(tmp_path)) as log:
        (place,) = log.append([decision])
    happened = {"state": "recorded", "next_observation": {"ok": "no"}}
    judge = Judge(lambda _agent: served)
    judge.add("qa", tmp_path, {"kind": "outcome", "of": list(place), **happened})
    expected = judge.take()["qa"].expected_loss_sum
    if version is None:
        assert expected == pytest.approx(reference.loss)
    else:
        assert expected > 1.2 * reference.loss, "the model's own expectation"
