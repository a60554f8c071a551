from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.policy import TokenBatch, TokenBatchError

TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=7)
ROWS = st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=5)


def a_batch() -> TokenBatch:
    return TokenBatch.from_sequences(
        [[1, 2, 3], [4]],
        [[5, 6], [7, 8, 9]],
        pad_token=0,
        log_probs=[[-0.5, -1.0], [-0.1, -0.2, -0.3]],
    )


def test_prompts_are_padded_on_the_left_and_completions_on_the_right() -> None:
    batch = a_batch()

    assert batch.tokens_BT.tolist() == [[1, 2, 3, 5, 6, 0], [0, 0, 4, 7, 8, 9]]
    assert batch.attention_mask_BT.int().tolist() == [[1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]]
    assert batch.response_mask_BS.int().tolist() == [[0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert batch.log_probs_BS is not None
    expected = torch.tensor([[0, 0, -0.5, -1.0, 0], [0, 0, -0.1, -0.2, -0.3]])
    torch.testing.assert_close(batch.log_probs_BS, expected)
    assert batch.position_ids_BT.tolist() == [[0, 1, 2, 3, 4, 4], [0, 0, 0, 1, 2, 3]]
    assert batch.predicted_tokens_BS.tolist() == [[2, 3, 5, 6, 0], [0, 4, 7, 8, 9]]
    assert len(batch) == 2


@given(ROWS)
def test_a_batch_gives_back_its_completions(rows: list[tuple[list[int], list[int]]]) -> None:
    prompts, completions = map(list, zip(*rows, strict=True))
    log_probs = [[-float(token) for token in completion] for completion in completions]

    batch = TokenBatch.from_sequences(prompts, completions, pad_token=0, log_probs=log_probs)

    assert batch.responses() == completions
    assert batch.attention_mask_BT.sum(1).tolist() == [len(p) + len(c) for p, c in rows]
    assert batch.log_probs_BS is not None
    recorded = -batch.log_probs_BS[batch.response_mask_BS]
    assert recorded.tolist() == [token for completion in completions for token in completion]


@given(ROWS, st.data())
def test_a_batch_survives_the_mapping_and_the_choice_of_rows(
    rows: list[tuple[list[int], list[int]]], data: st.DataObject
) -> None:
    prompts, completions = map(list, zip(*rows, strict=True))
    batch = TokenBatch.from_sequences(prompts, completions, pad_token=0)
    chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1))

    some = TokenBatch.from_tensors({**batch.to_tensors(), "other": torch.ones(1)})
    some = some.rows(torch.tensor(chosen)).check()

    assert some.responses() == [completions[row] for row in chosen]
    assert some.log_probs_BS is None
    assert batch.rows(slice(0, 1)).responses() == completions[:1]


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("tokens_BT", torch.zeros(2, 6, dtype=torch.int32)),
        ("tokens_BT", torch.zeros(2, 1, dtype=torch.int64)),
        ("attention_mask_BT", torch.ones(2, 6)),
        ("attention_mask_BT", torch.ones(2, 5, dtype=torch.bool)),
        ("response_mask_BS", torch.ones(2, 6, dtype=torch.bool)),
        ("log_probs_BS", torch.zeros(2, 6)),
        ("log_probs_BS", torch.zeros(2, 5, dtype=torch.bfloat16)),
        ("log_probs_BS", torch.zeros(2, 5, device="meta")),
    ],
)
def test_the_contract_of_shapes_is_checked_at_construction(name: str, tensor: torch.Tensor) -> None:
    with pytest.raises(TokenBatchError, match=name):
        replace(a_batch(), **{name: tensor})


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("attention_mask_BT", (0, 1), False, "row 0: .* gap"),
        ("response_mask_BS", (0, 4), True, "row 0: response_mask_BS .* padding"),
        ("response_mask_BS", (1, 1), True, "row 1: response_mask_BS .* before"),
        ("response_mask_BS", 1, False, "row 1: .* empty"),
        ("log_probs_BS", (0, 3), float("nan"), "row 0: .* finite"),
        ("log_probs_BS", (0, 3), float("-inf"), "row 0: .* finite"),
        ("log_probs_BS", (1, 3), 0.5, "row 1: .* above 0"),
        ("log_probs_BS", (1, 0), -0.5, "row 1: .* not 0"),
    ],
)
def test_values_that_cannot_be_are_named_by_row(
    name: str, at: tuple[int, int], value: float, message: str
) -> None:
    batch = a_batch()
    getattr(batch, name)[at] = value

    with pytest.raises(TokenBatchError, match=message):
        batch.check()


@pytest.mark.parametrize(
    ("prompts", "completions", "log_probs", "message"),
    [
        ([], [], None, "at least one"),
        ([[1]], [], None, "1 prompts .* 0 comp"),
        ([[1], []], [[1], [2]], None, "row 1: the prompt"),
        ([[1], [1]], [[1], []], None, "row 1: the completion"),
        ([[1.5]], [[1]], None, "row 0: .* got torch.float32"),
        ([[1]], [[2, 3.0]], None, "row 0: .* integers"),
        ([[1]], [[1, 2]], [[-1.0]], "row 0: .* 2 tokens"),
        ([[1]], [[1, 2]], [], "row 0: .* 2 tokens"),
    ],
)
def test_sequences_that_make_no_batch_are_refused(
    prompts: list[list[int]],
    completions: list[list[int]],
    log_probs: list[list[float]] | None,
    message: str,
) -> None:
    with pytest.raises(TokenBatchError, match=message):
        TokenBatch.from_sequences(prompts, completions, pad_token=0, log_probs=log_probs)


def test_a_mapping_without_a_batch_is_refused() -> None:
    with pytest.raises(TokenBatchError, match="policy_response_mask_BS"):
        TokenBatch.from_tensors({"x": torch.ones(1)})
