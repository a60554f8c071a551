import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.trajectories.encoding.features import Features
from infrastructure.world_model.fitting.batches import BatchStream
from infrastructure.world_model.fitting.training_data import DataPart


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


def test_an_epoch_is_the_same_in_every_call_and_seeds_differ():
    stream = _stream(50, 16, 4)
    assert len(stream.epoch(3)) == 4
    for number, batch in enumerate(stream.epoch(3)):  # ranks fetch theirs by number
        assert all(torch.equal(stream.epoch(3)[number][name], batch[name]) for name in batch)
    assert _rows(stream, 3) == _rows(_stream(50, 16, 4), 3)
    assert _rows(stream, 3) != _rows(_stream(50, 16, 4, seed=1), 3)


def test_inputs_and_targets_stay_together_and_the_first_tensor_counts_samples():
    batch = next(iter(_stream(50, 16, 4).epoch(0)))
    assert next(iter(batch.values())).shape[0] == 16
    assert torch.equal(batch["dense"], batch["target.reward"])
