import pytest
import torch

from infrastructure.world_model.fitting import TrainingPlan, prepare_training_data, training_job
from infrastructure.world_model.networks import (
    BestEpoch,
    EnsembleNetwork,
    NetworkShape,
    build_seeded,
)


@pytest.fixture(scope="module")
def data(spec, record):
    return prepare_training_data(spec, record(groups=20, rows=10))


@pytest.fixture
def make_job(data, tmp_path):
    shape = NetworkShape.of(data.encoder, data.codec)
    network = build_seeded(lambda shape: EnsembleNetwork(shape, members=2, hidden=4), shape, 0)

    def make(**plan):
        best = BestEpoch(tmp_path / "best.pt")
        return training_job(data, network, TrainingPlan(**plan), best), best

    return make


def test_the_learning_rate_falls_along_a_cosine_to_a_hundredth(make_job):
    job, _ = make_job(epochs=2, steps_per_epoch=50, learning_rate=1.0)
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


def test_a_batch_has_no_more_rows_than_there_are(make_job, data):
    job, _ = make_job(epochs=1, steps_per_epoch=3, batch_size=1_000_000)
    batches = list(job.batches(0))
    assert [len(batch["dense"]) for batch in batches] == [len(data.train.features)] * 3


def test_an_evaluation_reports_the_test_groups_and_keeps_the_best_epoch(make_job):
    job, best = make_job(epochs=1, steps_per_epoch=1)
    evaluation = job.evaluate(job.model.eval())
    assert evaluation.metrics[evaluation.primary] == evaluation.metrics["nll_skill"]
    assert evaluation.higher_is_better
    kept = best.loss
    saved = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    with torch.no_grad():
        for parameter in job.model.parameters():
            parameter.mul_(50.0)
    job.evaluate(job.model)
    assert best.loss == kept
    best.restore(job.model)
    assert all(torch.equal(saved[name], job.model.state_dict()[name]) for name in saved)
