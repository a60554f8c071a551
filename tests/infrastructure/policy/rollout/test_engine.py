import pytest

from infrastructure.policy.rollout import RolloutRequestError
from infrastructure.policy.rollout.engine import check_request, check_special_tokens


@pytest.mark.parametrize(
    ("prompts", "max_new_tokens", "message"),
    [
        ([], 1, "no prompt"),
        ([[1], []], 1, "prompt 1 is empty"),
        ([[1], [2, 9]], 1, "prompt 1 .* 9, .* 9 ids"),
        ([[-1]], 1, "prompt 0 .* -1"),
        ([[1.5]], 1, "prompt 0 .* 1.5"),
        ([[1]], 0, "max_new_tokens .* got 0"),
        ([[1], [1, 2, 3]], 6, "prompt 1 has 3 .*max_new_tokens=6 .* 8"),
    ],
)
def test_requests_that_do_not_fit_the_model_are_refused(
    prompts: list[list[int]], max_new_tokens: int, message: str
) -> None:
    with pytest.raises(RolloutRequestError, match=message):
        check_request(prompts, max_new_tokens=max_new_tokens, seed=0, vocabulary=9, context=8)


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64, 0.5])
def test_a_seed_that_no_generator_takes_is_refused(seed: int) -> None:
    with pytest.raises(RolloutRequestError, match="seed"):
        check_request([[1]], max_new_tokens=1, seed=seed, vocabulary=9, context=8)


@pytest.mark.parametrize(
    ("pad_token", "stop_tokens", "message"),
    [
        (0, [], "no completion"),
        (9, [1], "pad_token is 9, .* 9 ids"),
        (0, [99, 9], r"stop_tokens \[9, 99\] .* 9 ids"),
        (0, [-1], r"stop_tokens \[-1\]"),
        (0, [None], r"stop_tokens \[None\]"),
        (None, [1], "pad_token is None, .* 9 ids"),
    ],
)
def test_special_tokens_that_the_model_lacks_are_refused(
    pad_token: int, stop_tokens: list[int], message: str
) -> None:
    with pytest.raises(RolloutRequestError, match=message):
        check_special_tokens(pad_token, stop_tokens, vocabulary=9)


def test_one_of_several_stop_tokens_is_enough() -> None:
    check_special_tokens(0, [1, 50256], vocabulary=9)


def test_a_model_without_a_limit_takes_prompts_of_any_length() -> None:
    check_request([[1] * 1000], max_new_tokens=1000, seed=0, vocabulary=9, context=None)
