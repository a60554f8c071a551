import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.trajectories.encoding.hashed_texts import buckets_of, hashed_tokens


@pytest.mark.process
def test_text_hashes_are_the_same_in_every_process() -> None:
    program = (
        "from infrastructure.trajectories.encoding.hashed_texts import buckets_of;"
        "print(buckets_of('def f(x): return x', 2048))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(output.stdout) == buckets_of("def f(x): return x", 2048)
    assert buckets_of(["return"], 2048) == [0xA79E3F0F % 2048]


@given(st.text(), st.integers(2, 5000))
def test_any_text_hashes_below_the_number_of_buckets(text: str, buckets: int) -> None:
    assert all(0 <= bucket < buckets for bucket in buckets_of(text, buckets))


def test_tokens_after_the_first_512_are_dropped() -> None:
    words = [f"w{number}" for number in range(600)]
    assert buckets_of(words, 2048) == buckets_of(words[:512], 2048)
    assert len(buckets_of(" ".join(words), 2048)) == 512 + 511


def test_a_missing_text_has_no_token_and_unknown_buckets_are_dropped() -> None:
    [bucket] = buckets_of(["a"], 16)
    numbers = torch.full((16,), -1)
    numbers[bucket] = 0
    tokens = hashed_tokens([None, float("nan"), ["a"], ""], 16, numbers)
    assert tokens.lengths.tolist() == [0, 0, 1, 0]
    assert tokens.buckets.tolist() == [0]
