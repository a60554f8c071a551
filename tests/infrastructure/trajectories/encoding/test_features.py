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
    taken = Tokens.of(rows).take(torch.tensor(chosen, dtype=torch.int64))
    expected = Tokens.of([rows[index] for index in chosen])
    assert taken.buckets.tolist() == expected.buckets.tolist()
    assert taken.lengths.tolist() == expected.lengths.tolist()
    assert taken.offsets.tolist() == expected.offsets.tolist()


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
    }
