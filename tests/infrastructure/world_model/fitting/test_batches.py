import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.trajectories.encoding import Features, Tokens
from infrastructure.world_model.fitting.batches import MappedBatches
from infrastructure.world_model.fitting.mapped_rows import (
    MappedRows,
    MappedRowsError,
    RowWriter,
    columns_from_json,
    columns_to_json,
)


def _write(folder, count, chunk=100):
    """Rows whose features, tokens and targets have the row's number."""
    with RowWriter(folder) as writer:
        for start in range(0, count, chunk):
            numbers = torch.arange(start, min(start + chunk, count))
            texts = {"observation.text": Tokens.of([[n] * (n % 3) for n in numbers.tolist()])}
            writer.append(
                Features(
                    dense=numbers[:, None].float(), texts=texts, out_of_distribution=numbers < 0
                ),
                {"label": numbers, "x": numbers[:, None].float().repeat(1, 2)},
            )
        columns = columns_from_json(columns_to_json(writer.finish()))
    return MappedRows(folder, columns)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return _write(tmp_path_factory.mktemp("rows"), 10_000)


def _batches(rows, size=64, steps=1000, seed=0):
    return MappedBatches(rows, batch_size=size, steps_per_epoch=steps, seed=seed)


def _numbers(batches):
    return torch.cat([batch["target.label"] for batch in batches])


def test_a_row_keeps_its_features_tokens_and_targets_together(rows):
    for batch in _batches(rows, steps=20).epoch(3):
        numbers = batch["target.label"]
        assert torch.equal(batch["dense"][:, 0].long(), numbers)
        assert torch.equal(batch["target.x"], numbers[:, None].float().repeat(1, 2))
        lengths = numbers % 3
        assert torch.equal(batch["observation.text.buckets"], numbers.repeat_interleave(lengths))
        assert torch.equal(batch["observation.text.offsets"], lengths.cumsum(0) - lengths)


def test_a_pass_has_no_row_twice_and_leaves_out_few_others_each_time(rows):
    left_out = []
    for number in range(3):
        stream = _batches(rows, steps=10_000 // 256 * 256 // 64)
        seen = _numbers(stream.epoch(number))
        assert len(seen) == len(set(seen.tolist())) == 9984
        left_out.append(set(range(10_000)) - set(seen.tolist()))
    assert not left_out[0] & left_out[1] & left_out[2]


def test_a_batch_mixes_blocks(rows):
    (batch, *_) = _batches(rows, steps=1).epoch(0)
    assert len(set((batch["target.label"] // 256).tolist())) > 20


def test_passes_and_seeds_differ(rows):
    stream = _batches(rows, steps=156)
    first, second = _numbers(stream.epoch(0)), _numbers(stream.epoch(1))
    other = _numbers(_batches(rows, steps=156, seed=1).epoch(0))
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


@given(
    size=st.integers(1, 700),
    start=st.integers(0, 400),
    count=st.integers(1, 30),
    window=st.integers(1, 40),
)
def test_a_resumed_epoch_draws_the_same_batches(rows, size, start, count, window):
    whole, resumed = (
        MappedBatches(rows, batch_size=size, steps_per_epoch=1000, seed=0, window_blocks=window)
        for _ in range(2)
    )
    steps = [start + step for step in range(count)]
    one_by_one = [whole.epoch(step // 1000)[step % 1000] for step in steps]
    together = list(resumed.batches(start, count))
    assert len(together) == count
    for one, other in zip(one_by_one, together, strict=True):
        assert len(one["dense"]) == size
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_few_rows_give_smaller_batches(tmp_path):
    rows = _write(tmp_path, 300)
    (batch,) = _batches(rows, size=1000, steps=1).epoch(0)
    assert len(set(batch["target.label"].tolist())) == 256


def test_a_file_of_another_size_is_refused(tmp_path):
    rows = _write(tmp_path, 300)
    (tmp_path / "1.bin").write_bytes(b"")
    with pytest.raises(MappedRowsError, match=r"1\.bin has 0 bytes instead of 2400"):
        MappedRows(tmp_path, rows._columns)
