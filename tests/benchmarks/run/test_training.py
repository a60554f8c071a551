"""The benchmark of a whole training, with a few steps."""

import torch

from benchmarks.run.training import measure_training
from infrastructure.agent_contract import Evaluation, TrainingJob


def test_the_parts_of_a_training_are_measured_beside_its_bare_steps(tmp_path):
    batch = {"x": torch.ones(4, 2)}
    job = TrainingJob(
        model=torch.nn.Linear(2, 1),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
        batches=lambda _epoch: [batch] * (50),
        loss=lambda forward, batch: forward(batch["x"]).square().mean(),
        evaluate=lambda _forward: Evaluation(
            metrics={"m": 1.0}, primary="m", higher_is_better=True
        ),
        epochs=2,
    )
    before = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    cost = measure_training(job, tmp_path, seed=0, checkpoint_steps=100)
    assert cost.steps == 100
    assert cost.bare > 0.0
    assert min(cost.batches, cost.evaluations, cost.checkpoints) > 0.0
    assert cost.total > cost.batches + cost.evaluations + cost.checkpoints
    changed = job.model.state_dict()
    assert not any(torch.equal(before[name], changed[name]) for name in before)
