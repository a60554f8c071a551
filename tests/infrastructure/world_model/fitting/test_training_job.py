import copy
import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from infrastructure.trajectories.encoding.features import Features
from infrastructure.world_model.distributions import predictive_distributions
from infrastructure.world_model.fitting import (
    DataPart,
    TrainingPlan,
    prepare_training_data,
    training_job,
)
from infrastructure.world_model.fitting.batches import BatchStream
from infrastructure.world_model.fitting.scoring import selection_loss
from infrastructure.world_model.networks import (
    EnsembleNetwork,
    NetworkShape,
    build_seeded,
)


@pytest.fixture(scope="module")
def data(spec, record):
    return prepare_training_data(spec, record(groups=20, rows=10))


@pytest.fixture
def make_job(data):
    shape = NetworkShape.of(data.encoder, data.codec)
    network = build_seeded(lambda shape: EnsembleNetwork(shape, members=2, hidden=4), shape, 0)

    def make(**plan):
        return training_job(data, network, TrainingPlan(**plan))

    return make


def test_the_learning_rate_falls_along_a_cosine_to_a_hundredth(make_job):
    job = make_job(epochs=2, steps_per_epoch=50, learning_rate=1.0)
    optimizer = job.optimizer(job.model.parameters())
    scheduler = job.scheduler(optimizer)
    rates = []
    for _ in range(101):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates[0] == 1.0
    assert rates[50] == pytest.approx(0.505)
    assert rates[100] == pytest.approx(0.01)
    assert rates == sorted(rates, reverse=True)


def test_rollouts_that_no_model_can_make_are_refused_before_training(data):
    asked = dataclasses.replace(data, spec=dataclasses.replace(data.spec, rollout_steps=3))
    with pytest.raises(ValueError, match="observation 'code' is Text"):
        training_job(asked, None, TrainingPlan(epochs=1, steps_per_epoch=1))


def test_a_batch_has_no_more_rows_than_there_are(make_job, data):
    job = make_job(epochs=1, steps_per_epoch=3, batch_size=1_000_000)
    batches = list(job.batches(0))
    assert [len(batch["dense"]) for batch in batches] == [len(data.train.features)] * 3


def test_an_evaluation_reports_the_test_groups_and_is_selected_by_the_calibration_groups(
    make_job, data
):
    job = make_job(epochs=1, steps_per_epoch=1)
    evaluation = job.evaluate(job.model.eval())
    assert evaluation.metrics[evaluation.primary] == evaluation.metrics["nll_skill"]
    assert evaluation.higher_is_better
    with torch.no_grad():
        raw = job.model(data.calibration.features.inputs())
    predicted = predictive_distributions(raw, data.codec, len(data.calibration.features))
    expected = selection_loss(predicted, data.calibration, data.codec)
    assert evaluation.selection_loss == pytest.approx(expected)
    assert job.keep_best_epoch


def _stream(rows, batch_size, steps, seed=0):
    numbers = torch.arange(rows)
    part = DataPart(
        transitions=(),
        features=Features(
            dense=numbers[:, None].float(), texts={}, out_of_distribution=numbers < 0
        ),
        targets={"reward": numbers[:, None].float()},
        outcomes={},
        states=numbers,
    )
    return BatchStream(part=part, batch_size=batch_size, steps_per_epoch=steps, seed=seed)


def _rows(stream, epochs):
    return [
        row
        for epoch in range(epochs)
        for batch in stream.epoch(epoch)
        for row in batch["dense"][:, 0].int().tolist()
    ]


@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 5), st.integers(1, 4))
def test_each_pass_contains_every_row_once(rows, batch_size, steps, epochs):
    drawn = _rows(_stream(rows, batch_size, steps), epochs)
    assert len(drawn) == batch_size * steps * epochs
    for start in range(0, len(drawn) - rows + 1, rows):
        assert sorted(drawn[start : start + rows]) == list(range(rows))


@given(st.integers(1, 30), st.integers(0, 40), st.integers(1, 4))
def test_a_pass_contains_the_newest_rows_as_often_as_they_weigh(rows, recent, weight):
    stream = dataclasses.replace(_stream(rows, 1, 1), recent=recent, recent_weight=weight)
    newest = min(recent, rows)
    one_pass = rows + newest * (weight - 1)
    drawn = sorted(_rows(stream, one_pass))
    assert drawn == sorted([*range(rows), *([*range(rows - newest, rows)] * (weight - 1))])


def test_an_epoch_is_the_same_in_every_call_and_seeds_differ():
    stream = _stream(50, 16, 4)
    assert len(stream.epoch(3)) == 4
    for number, batch in enumerate(stream.epoch(3)):  # ranks fetch theirs by number
        assert all(torch.equal(stream.epoch(3)[number][name], batch[name]) for name in batch)
    assert _rows(stream, 3) == _rows(_stream(50, 16, 4), 3)
    assert _rows(stream, 3) != _rows(_stream(50, 16, 4, seed=1), 3)


def test_more_narrow_rows_are_gathered_at_once_than_wide_ones():
    narrow = _stream(50, 16, 3)
    assert narrow.batches_together == (1 << 20) // 8 // 16  # a number and a target a row
    dense = torch.zeros(50, 1000)
    features = dataclasses.replace(narrow.part.features, dense=dense)
    part = dataclasses.replace(narrow.part, features=features)
    assert dataclasses.replace(narrow, part=part).batches_together == 2048 // 16
    assert dataclasses.replace(narrow, batch_size=1 << 20).batches_together == 1


def test_inputs_and_targets_stay_together_and_the_first_tensor_counts_samples():
    batch = next(iter(_stream(50, 16, 4).epoch(0)))
    assert next(iter(batch.values())).shape[0] == 16
    assert torch.equal(batch["dense"], batch["target.reward"])


@pytest.mark.parametrize("rate", [0.002, torch.tensor(0.002)])
def test_the_learning_rate_decays_as_with_lambda_lr(make_job, rate):
    job = make_job(epochs=2, steps_per_epoch=5)
    ours, theirs = (
        AdamW([torch.nn.Parameter(torch.zeros(1))], lr=copy.copy(rate), fused=True)
        for _ in range(2)
    )

    def cosine(step):
        return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(step / 10, 1.0)))

    schedules = job.scheduler(ours), LambdaLR(theirs, lr_lambda=cosine)
    for _ in range(12):
        assert float(ours.param_groups[0]["lr"]) == float(theirs.param_groups[0]["lr"])
        ours.step()
        theirs.step()
        for schedule in schedules:
            schedule.step()
    assert schedules[0].get_last_lr() == schedules[1].get_last_lr()
    resumed = job.scheduler(AdamW([torch.nn.Parameter(torch.zeros(1))], lr=rate, fused=True))
    resumed.load_state_dict(schedules[1].state_dict())  # of a checkpoint of an earlier version
    resumed.step()
    assert resumed.last_epoch == 13
