import asyncio
import math
import random
import resource
from dataclasses import replace

import pytest
import torch

from infrastructure.agent_contract.transition import Transition
from infrastructure.events import PrecisionState
from infrastructure.training import FP16TrainingConfig
from infrastructure.trajectories import ReplayBuffer
from infrastructure.world_model import WorldModel
from infrastructure.world_model.distributions.confidence import confidence
from infrastructure.world_model.distributions.predictive import (
    base_rate_distributions,
    blend,
    predictive_distributions,
)
from infrastructure.world_model.fitting.training_data import prepare_training_data
from infrastructure.world_model.prediction import to_predictions

pytestmark = pytest.mark.process  # trains for seconds


def test_a_planted_signal_is_learned_and_beats_the_base_rate(fitted):
    assert fitted.metrics["outcome.auroc"] > 0.9
    assert fitted.metrics["outcome.nll_skill"] > 0.2
    assert fitted.metrics["x.nll_skill"] > 0.3
    assert fitted.metrics["nll_skill"] > 0.3
    assert fitted.metrics["outcome.ece"] < 0.1
    assert abs(fitted.metrics["reward.coverage_90"] - 0.9) < 0.1


def test_a_disk_that_refuses_the_best_epoch_is_warned_about(spec, record):
    model, limits = WorldModel(spec), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with (
            pytest.warns(UserWarning, match="best_epoch_not_saved"),
            pytest.warns(UserWarning, match=r"last_weights_used .*File too large"),
        ):
            model.fit(record(groups=40), epochs=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(model.training_history) == 2


def test_shuffled_labels_give_chance_accuracy(spec, record):
    model = WorldModel(spec, members=3, hidden=32)
    model.fit(record(groups=120, shuffled=True), epochs=10, batch_size=64)
    assert abs(model.metrics["outcome.auroc"] - 0.5) < 0.1
    assert model.metrics["outcome.nll_skill"] < 0.02
    assert model.metrics["reward.nll_skill"] < 0.02


def test_prediction_encodes_and_computes_as_training_did(fitted, spec, record):
    """No train/serve skew: the training tensors and the public method give the same prediction."""
    data = prepare_training_data(spec, record())
    model, rows = fitted.fitted_model, len(data.train.features)
    with torch.no_grad():
        inputs = data.train.features.inputs()
        ensemble = predictive_distributions(model.ensemble(inputs), data.codec, rows)
        linear = predictive_distributions(model.linear(inputs), data.codec, rows)
    mixed = blend(ensemble, linear, base_rate_distributions(data.codec, rows), model.weights)
    calibrated = model.calibration.apply(mixed, data.codec)
    observations = [t.observation for t in data.train.transitions]
    actions = [t.action for t in data.train.transitions]
    confidence_N = confidence(calibrated, data.codec)
    trained = to_predictions(spec, calibrated, observations, confidence_N, "")
    served = fitted.predict_batch(observations, actions)
    for one, other in zip(trained, served, strict=True):
        assert one.success_probability == other.success_probability
        assert one.next_state == other.next_state
        assert one.expected_improvement == other.expected_improvement
        assert one.confidence == other.confidence
    alone = fitted.predict_batch(observations[:1], actions[:1])[0]
    assert alone.success_probability == pytest.approx(served[0].success_probability, abs=1e-5)


def test_a_prediction_uses_the_fields_and_labels_of_the_spec(fitted):
    observation = {"x": (0.5, 5.0), "code": "go if if go"}
    good, bad = fitted.predict_batch([observation] * 2, [{"kind": "a"}, {"kind": "b"}])
    assert good.success_probability > bad.success_probability + 0.2
    assert good.next_state["outcome"] == "fixed"
    assert good.next_state["x"] == pytest.approx((1.0, 5.15), abs=0.3)
    assert good.expected_improvement == pytest.approx(1.5, abs=0.7)
    assert good.probabilities["outcome"]["fixed"] == good.success_probability
    assert sum(good.probabilities["outcome"].values()) == pytest.approx(1.0)
    assert len(good.deviations["x"]) == 2
    interval = good.intervals["x"]
    assert interval.low < good.next_state["x"] < interval.high
    assert interval.coverage == 0.9
    assert good.confidence == max(good.probabilities["outcome"].values())
    assert "reward" not in good.next_state


def test_ranking_puts_the_best_action_first(fitted):
    observation = {"x": (0.5, 5.0), "code": "go if go go"}
    assert fitted.rank(observation, [{"kind": "b"}, {"kind": "a"}, {"kind": "c"}])[0] == 1
    assert fitted.rank(observation, []) == []


def test_confidence_falls_outside_the_training_data(fitted, record):
    inside = fitted.predict_batch(
        [t.observation for t in record()[:200]], [t.action for t in record()[:200]]
    )
    outside = fitted.predict_batch(
        [{"x": (30.0, -40.0), "code": f"unheard {n} of"} for n in range(200)],
        [{"kind": "unseen"}] * 200,
    )
    mean = [sum(p.confidence for p in part) / 200 for part in (inside, outside)]
    assert all(0.0 <= p.confidence <= 1.0 for p in inside + outside)
    assert mean[1] < mean[0] - 0.01


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e300])
def test_absurd_inputs_give_finite_answers(fitted, value):
    (answer,) = fitted.predict_batch(
        [{"x": (value, value), "code": "\x00\ud800" * 1000}], [{"kind": ""}]
    )
    assert 0.0 <= answer.success_probability <= 1.0
    assert all(map(math.isfinite, answer.deviations["reward"]))
    assert math.isfinite(answer.expected_improvement)


def _answers(fitted, *values):
    observations = [{"x": (value, 5.0), "code": "bug"} for value in values]
    return fitted.predict_batch(observations, [{"kind": "a"}] * len(values))


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e30, -1e308, 1e6, 40.0])
def test_absurd_inputs_are_shrunk_to_the_base_rate(fitted, value):
    normal, absurd = _answers(fitted, 1.0, value)
    assert absurd.confidence == max(absurd.probabilities["outcome"].values())
    assert 0.3 < absurd.success_probability < 0.7 < normal.success_probability
    assert absurd.deviations["reward"] > normal.deviations["reward"]
    assert absurd.reasoning.startswith("not to be trusted")
    assert normal.reasoning.startswith("blend model")


def test_unseen_labels_count_as_average(fitted):
    actions = [{"kind": kind} for kind in ("a", "b", "never", "never")]
    numbers = (1.0, 1.0, 1.0, -1.0)
    best, worse, unseen, low = fitted.predict_batch(
        [{"x": (number, 5.0), "code": "bug"} for number in numbers], actions
    )
    assert worse.expected_improvement < unseen.expected_improvement < best.expected_improvement
    assert low.expected_improvement < unseen.expected_improvement - 2  # other fields have effect
    [warning] = unseen.warnings
    assert warning.startswith("action.kind has a label that did not occur")
    assert unseen.reasoning.startswith(warning)
    assert best.warnings == ()


def test_an_absurd_row_does_not_change_the_others(fitted):
    assert _answers(fitted, 1.0, 1e30)[0] == _answers(fitted, 1.0, 1.5)[0]


def test_the_order_among_absurd_rows_is_kept(fitted):
    observation = {"x": (1e30, 5.0), "code": "go if go go"}
    assert fitted.rank(observation, [{"kind": "b"}, {"kind": "a"}, {"kind": "c"}])[0] == 1


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_beyond_all_floats_is_refused_by_name(fitted, spec, record, digits):
    with pytest.raises(ValueError, match=r"row 0 .*'x' .*\(2,\)"):
        _answers(fitted, 10**digits)
    transitions = record()
    transitions[0] = replace(transitions[0], observation={"x": (0, 10**digits), "code": ""})
    transitions[1] = replace(transitions[1], next_observation={"x": (0, 10**digits)})
    assert sum(prepare_training_data(spec, transitions).unusable.values()) == 2
    with pytest.raises(ValueError, match=r"reward must be finite|digits"):
        replace(transitions[2], reward=10**digits)


def test_a_missing_field_is_named(fitted):
    absent, none, nan = fitted.predict_batch(
        [{"code": "bug"}, {"x": None, "code": "bug"}, {"x": (math.nan, 5.0), "code": "bug"}],
        [{"kind": "a"}] * 3,
    )
    for answer in (absent, none, nan):
        [warning] = answer.warnings
        assert warning.startswith("observation.x is missing")
        assert answer.reasoning.startswith(warning)
    assert absent.success_probability == none.success_probability
    assert all(map(math.isnan, absent.next_state["x"]))  # its change is predicted
    assert all(map(math.isnan, absent.deviations["x"]))
    assert math.isfinite(nan.deviations["x"][1])
    assert math.isnan(nan.next_state["x"][0])
    assert nan.next_state["x"][1] == pytest.approx(5.0, abs=1.0)


def test_before_any_fit_the_confidence_is_zero(spec):
    (answer,) = WorldModel(spec).predict_batch([{}], [{}])
    assert (answer.success_probability, answer.confidence) == (0.5, 0.0)
    assert WorldModel(spec).rank({}, [{}, {}, {}]) == [0, 1, 2]


# -- the promised interface ----------------------------------------------------------------


def _texts(count=400):
    generator = random.Random(0)
    for number in range(count):
        good = generator.random() < 0.5
        yield Transition(
            group=f"task-{number // 4}",
            observation={"state": f"file {number} has a bug"},
            action={"action": "fix the bug" if good else "add a feature"},
            next_observation={"success": good, "improvement": 0.5 if good else -0.1},
        )


@pytest.fixture(scope="module")
def promised(tmp_path_factory):
    """``WorldModel()`` trained in FP16 from a buffer, and how often the event loop ran then."""
    buffer = ReplayBuffer(tmp_path_factory.mktemp("promised") / "replay")
    for transition in _texts():
        buffer.append(transition)
    model = WorldModel(clock=lambda: 1234.5)
    config = FP16TrainingConfig(cpu_half=True, loss_scale=2.0**40)

    async def train():
        beats = 0
        training = asyncio.create_task(model.train(buffer, num_epochs=15, config=config))
        while not training.done():
            await asyncio.sleep(0.01)
            beats += 1
        await training
        return beats

    return model, asyncio.run(train())


def test_training_leaves_the_event_loop_running(promised):
    assert promised[1] > 3


def test_the_promised_prediction(promised):
    model, _ = promised
    good = asyncio.run(model.predict("file 7 has a bug", "fix the bug"))
    bad = asyncio.run(model.predict({"state": "file 7 has a bug"}, {"action": "add a feature"}))
    assert good.success_probability > bad.success_probability + 0.6
    assert good.expected_improvement > 0.2 > bad.expected_improvement


def test_the_promised_history_counts_overflows_per_epoch(promised):
    model, _ = promised
    assert model.fp16_enabled
    assert [entry["epoch"] for entry in model.training_history] == list(range(1, 16))
    first, *_, last = model.training_history
    assert first["fp16_overflow_batches"] > 5  # a scale of 2**40 has to come down first
    assert last["fp16_overflow_batches"] < first["fp16_overflow_batches"] / 2
    assert last["loss"] < first["loss"]
    assert first["timestamp"] == 1234.5


def test_the_history_has_the_counts_of_the_trainer(promised):
    model, _ = promised
    stats = model.training_stats
    overflows = sum(entry["fp16_overflow_batches"] for entry in model.training_history)
    assert overflows == stats["overflow_steps"] > 5
    assert stats["fp16_steps"] == stats["training_steps"] > stats["applied_steps"]
    assert stats["current_scale"] < 2.0**40
    assert (stats["precision_requested"], stats["precision_effective"]) == ("fp16", "fp16")


@pytest.fixture
def little() -> WorldModel:
    """A model so small that a training takes a moment."""
    return WorldModel(members=2, hidden=8)


def _trained(model, **options):
    asyncio.run(model.train(_texts(), num_epochs=1, **options))
    stats = model.training_stats
    return tuple(str(stats[f"precision_{key}"]) for key in ("requested", "effective", "reason"))


FLAG = PrecisionState(requested="fp16", effective="fp32", reason="flag")
ON_CPU = FP16TrainingConfig(cpu_half=True)


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({"device": "cpu"}, ("fp16", "fp32", "no_accelerator")),
        ({"device": "cpu", "precision": "bf16"}, ("bf16", "fp32", "no_accelerator")),
        ({"device": "cpu", "precision": "fp32"}, ("fp32", "fp32", "default")),
        ({"device": "cpu", "config": ON_CPU, "precision": "bf16"}, ("bf16", "bf16", "default")),
        ({"device": "cpu", "config": ON_CPU, "precision": FLAG}, ("fp16", "fp32", "flag")),
        (
            {"config": FP16TrainingConfig(enabled=False, cpu_half=True), "precision": "fp16"},
            ("fp16", "fp32", "flag"),
        ),
    ],
)
def test_the_precision_asked_for_runs_or_the_reason_is_reported(little, options, precision):
    assert _trained(little, **options) == precision
    assert not little.fp16_enabled


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_takes_the_accelerator_by_default(little):
    assert _trained(little) == ("fp16", "fp16", "default")
    assert little.fitted_model.ensemble.state_dict().popitem()[1].device.type == "cpu"
    assert asyncio.run(little.predict("file 7 has a bug", "fix the bug")).confidence > 0.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_an_accelerator_auto_is_the_cpu(little):
    assert _trained(little, device="auto") == ("fp16", "fp32", "no_accelerator")
    assert _trained(little) == ("fp16", "fp32", "no_accelerator")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:99"}, "torch sees"),
        ({"device": "tpu"}, "device .*auto, cpu, cuda or cuda:N"),
        ({"device": None}, "device .* got None"),
        ({"device": "meta"}, "device .* got 'meta'"),
        ({"batch_size": 0}, "batch_size .* got 0"),
        ({"precision": "half"}, r"precision[\s\S]* input_value='half'"),
        ({"config": FP16TrainingConfig(accumulate=2)}, "raise batch_size"),
    ],
)
def test_wrong_options_are_refused_before_training(little, options, message):
    with pytest.raises(ValueError, match=message):
        _trained(little, **options)
    assert little.training_history == []


def test_encoded_data_of_another_spec_is_refused(spec, record):
    data = prepare_training_data(spec, record())
    other = replace(spec, success=None)
    with pytest.raises(ValueError, match="another spec"):
        WorldModel(other).fit(data, epochs=1)


def test_a_model_without_members_is_refused():
    with pytest.raises(ValueError, match="members must be a whole number of at least 1, got 0"):
        WorldModel(members=0)


def test_a_string_for_several_fields_is_refused(spec):
    with pytest.raises(ValueError, match=r"the spec has \['code', 'x'\]"):
        asyncio.run(WorldModel(spec).predict("state", "action"))


def test_excluded_fields_are_reported(spec, record):
    constant = [
        Transition(
            group=t.group,
            observation=t.observation | {"x": (1.0, 1.0)},
            action=t.action,
            reward=t.reward,
            next_observation=t.next_observation | {"x": (1.0, 1.0)},
        )
        for t in record()
    ]
    with pytest.warns(UserWarning, match=r"observation\.x, x"):
        WorldModel(spec, members=2, hidden=8).fit(constant, epochs=1)


@pytest.mark.parametrize("actions", [[], [{}, {}]])
def test_as_many_actions_as_observations_are_needed(fitted, actions):
    with pytest.raises(ValueError, match="one action for each observation"):
        fitted.predict_batch([{}], actions)
