"""vLLM itself cannot run here: a module that records what it is called with takes its place."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from infrastructure.policy import Sampling
from infrastructure.policy.rollout import RolloutRequestError, VllmRollout
from infrastructure.training.precision.roles import RolePrecision


class Recorder(ModuleType):
    def __init__(self) -> None:
        super().__init__("vllm")
        self.engine: dict[str, Any] = {}
        self.rules: list[dict[str, Any]] = []
        self.prompts: list[dict[str, Any]] = []

    def LLM(self, **arguments: Any) -> Any:
        self.engine = arguments
        return SimpleNamespace(generate=self.generate)

    def SamplingParams(self, **arguments: Any) -> dict[str, Any]:
        return arguments

    def generate(self, prompts: Any, rules: Any, *, use_tqdm: bool) -> Any:
        assert not use_tqdm
        self.prompts, self.rules = prompts, rules
        one = SimpleNamespace(token_ids=(4, 2), logprobs=[{4: logprob(-0.5)}, {2: logprob(-1.0)}])
        return [SimpleNamespace(outputs=[one]) for _ in prompts]


def logprob(value: float) -> SimpleNamespace:
    return SimpleNamespace(logprob=value)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "vllm", recorder)
    return recorder


def a_rollout(precision: str = "fp16/fp16/fp32", **values: Any) -> VllmRollout:
    arguments = {"pad_token": 0, "stop_tokens": {2, 3}, "vocabulary": 9, "context": 64, **values}
    return VllmRollout(Path("/models/a"), RolePrecision.parse(precision), **arguments)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("fp16/fp16/fp32", "float16"),
        ("bf16/bf16/fp32", "bfloat16"),
        ("fp32/fp32/fp32", "float32"),
    ],
)
def test_the_engine_gets_its_dtype_and_records_what_it_samples_from(
    vllm: Recorder, precision: str, dtype: str
) -> None:
    a_rollout(precision)

    assert vllm.engine == {
        "model": "/models/a",
        "skip_tokenizer_init": True,
        "dtype": dtype,
        "kv_cache_dtype": "auto",
        "max_model_len": 64,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
    }


def test_the_rule_of_sampling_is_passed_for_each_row(vllm: Recorder) -> None:
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.9)

    batch = a_rollout().generate([[5, 6], [7]], sampling=sampling, max_new_tokens=8, seed=30)

    assert vllm.prompts == [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [7]}]
    assert [each.pop("seed") for each in vllm.rules] == [30, 31]
    expected = {
        "n": 1,
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "max_tokens": 8,
        "logprobs": 0,
        "stop_token_ids": [2, 3],
        "detokenize": False,
    }
    assert vllm.rules == [expected, expected]
    assert batch.responses() == [[4, 2], [4, 2]]
    assert batch.log_probs_BS is not None
    assert batch.log_probs_BS[1].tolist() == [0, -0.5, -1]


def test_all_tokens_are_asked_for_by_zero(vllm: Recorder) -> None:
    a_rollout().generate([[5]], sampling=Sampling(), max_new_tokens=8, seed=0)

    assert vllm.rules[0]["top_k"] == 0


@pytest.mark.parametrize("precision", ["fp32/fp16/fp32", "bf16/bf16/bf16"])
def test_types_that_vllm_cannot_mix_are_refused(vllm: Recorder, precision: str) -> None:
    with pytest.raises(ValueError, match="one type"):
        a_rollout(precision)
    assert not vllm.engine


def test_requests_are_checked_before_the_engine_is_called(vllm: Recorder) -> None:
    with pytest.raises(RolloutRequestError, match="prompt 0 has the id 9"):
        a_rollout().generate([[9]], sampling=Sampling(), max_new_tokens=8, seed=0)
    with pytest.raises(ValueError, match="no completion"):
        a_rollout(stop_tokens=())
    assert not vllm.prompts


def test_without_vllm_the_error_names_the_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)

    with pytest.raises(ImportError, match="use TransformersRollout"):
        a_rollout()


def test_a_head_in_fp32_that_vllm_cannot_have_is_refused(vllm: Recorder) -> None:
    with pytest.raises(ValueError, match="on one side makes the mismatch worse"):
        a_rollout(fp32_head=True)
    a_rollout("fp32/fp32/fp32", fp32_head=True)
