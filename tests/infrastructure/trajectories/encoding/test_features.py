import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.trajectories.encoding.features import Features, Tokens

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=6)


@given(ROWS, st.data())
def test_rows_of_tokens_are_selected_in_the_given_order(
    rows: list[list[int]], data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    taken = Tokens.of(rows).with_shares(10).take(torch.tensor(chosen, dtype=torch.int64))
    expected = Tokens.of([rows[index] for index in chosen]).with_shares(10)
    assert taken.buckets.tolist() == expected.buckets.tolist()
    assert taken.lengths.tolist() == expected.lengths.tolist()
    assert taken.offsets.tolist() == expected.offsets.tolist()
    assert torch.equal(taken.shares, expected.shares)


def test_shares_are_counts_divided_by_the_root_of_their_sum() -> None:
    tokens = Tokens.of([[1, 1, 2, 3], [], [0]])
    shares = tokens.with_shares(4).shares
    assert shares.tolist() == [[0.0, 1.0, 0.5, 0.5], [0.0] * 4, [1.0, 0.0, 0.0, 0.0]]
    assert tokens.with_shares(65).shares is None  # tables of so many rows are summed by token


def test_inputs_are_flat_tensors_by_name() -> None:
    features = Features(
        dense=torch.tensor([[1.0], [2.0], [3.0]]),
        texts={"action.code": Tokens.of([[1, 2], [], [3]])},
        out_of_distribution=torch.tensor([False, True, False]),
    )
    assert len(features) == 3
    taken = features.take(torch.tensor([2, 0]))
    assert taken.dense.tolist() == [[3.0], [1.0]]
    assert taken.out_of_distribution.tolist() == [False, False]
    inputs = {name: tensor.tolist() for name, tensor in taken.inputs().items()}
    assert inputs == {
        "dense": [[3.0], [1.0]],
        "action.code.buckets": [3, 1, 2],
        "action.code.offsets": [0, 1],
        "action.code.weights": pytest.approx([1.0, 0.5**0.5, 0.5**0.5]),
    }


@given(ROWS, st.integers(1, 7), st.integers(0, 17))
def test_inputs_split_like_rows_that_were_taken_alone(
    rows: list[list[int]], size: int, width: int
) -> None:
    count = len(rows)
    features = Features(
        dense=torch.arange(float(count * width)).view(count, width),
        texts={"action.code": Tokens.of(rows), "action.tool": Tokens.of(rows).with_shares(16)},
        out_of_distribution=torch.zeros(count, dtype=torch.bool),
    )
    chunks = list(features.split_inputs(size))
    for start, chunk in zip(range(0, count, size), chunks, strict=True):
        alone = features.take(torch.arange(start, min(start + size, count))).inputs()
        assert {n: t.tolist() for n, t in chunk.items()} == {
            n: t.tolist() for n, t in alone.items()
        }
        assert chunk["dense"].data_ptr() % 64 == 0
        assert chunk["action.tool.shares"].data_ptr() % 64 == 0
