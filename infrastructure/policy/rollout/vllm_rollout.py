"""Rollout with vLLM in its own dtype.

What is passed to vLLM is tested. The rest is untried: vLLM needs a GPU, and no test here had one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from infrastructure.policy.rollout.engine import check_request, check_special_tokens
from infrastructure.policy.sampling import Sampling
from infrastructure.policy.tokens import TokenBatch
from infrastructure.training.precision.roles import RolePrecision

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class VllmRollout:
    """Generates completions with vLLM; implements `RolloutEngine`. Untried on a GPU.

    Weights are read from a folder once, so new weights need a new engine. Needs vLLM 0.10.2 or
    newer, where ``logprobs_mode`` exists: by default vLLM reports log-probabilities of the
    distribution before temperature, top-k and top-p, which biases importance ratios.

    Args:
        folder: Folder of the model, as transformers saves it.
        precision: Types of the role; weights and computation must have one type, since vLLM has
            no other choice, and results are float32.
        pad_token: Id at padding.
        stop_tokens: Ids that end a completion, at least one.
        vocabulary: Number of ids of the model.
        context: Longest sequence in tokens.
        fp32_head: Whether the trainer keeps the output head in FP32.

    Raises:
        ImportError: vLLM is not installed.
        ValueError: vLLM cannot compute in *precision*, or not its head in FP32 as the trainer does.
        RolloutRequestError: No stop token, or not the padding, is an id of the model.
    """

    def __init__(  # noqa: PLR0913 - each is a property of the engine
        self,
        folder: Path,
        precision: RolePrecision,
        *,
        pad_token: int,
        stop_tokens: Collection[int],
        vocabulary: int,
        context: int,
        fp32_head: bool = False,
    ) -> None:
        if fp32_head and precision.compute != "fp32":
            raise ValueError(
                f"vLLM computes the head in {precision.compute} and the trainer in FP32: a head in "
                "FP32 on one side makes the mismatch worse. Use TransformersRollout, or a preset "
                "without _fp32_head"
            )
        if precision.store != precision.compute or precision.out != "fp32":
            raise ValueError(
                f"vLLM stores and computes in one type and returns fp32, got {precision}: use "
                f"{precision.compute}/{precision.compute}/fp32"
            )
        check_special_tokens(pad_token, stop_tokens, vocabulary=vocabulary)
        try:
            import vllm
        except ImportError as error:
            raise ImportError(
                "VllmRollout needs vLLM 0.10.2 or newer and a GPU: pip install vllm, or use "
                "TransformersRollout"
            ) from error
        self._sampling_params = vllm.SamplingParams
        self._pad_token, self._stop_tokens = pad_token, sorted(stop_tokens)
        self._vocabulary, self._context = vocabulary, context
        self._engine = vllm.LLM(
            model=str(folder),
            skip_tokenizer_init=True,
            dtype=_DTYPES[precision.compute],
            kv_cache_dtype="auto",  # the same as dtype
            max_model_len=context,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",  # not the sampling rule that a model's folder may hold
        )

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        seed: int,
    ) -> TokenBatch:
        """See `RolloutEngine.generate`."""
        check_request(
            prompts,
            max_new_tokens=max_new_tokens,
            seed=seed,
            vocabulary=self._vocabulary,
            context=self._context,
        )
        rules = [
            self._sampling_params(
                n=1,
                temperature=sampling.temperature,
                top_k=sampling.top_k or 0,  # 0: all
                top_p=sampling.top_p,
                max_tokens=max_new_tokens,
                seed=seed + row,  # rows of one prompt must differ
                logprobs=0,  # of the sampled token only
                stop_token_ids=self._stop_tokens,
                detokenize=False,
            )
            for row in range(len(prompts))
        ]
        texts = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        results: list[Any] = self._engine.generate(texts, rules, use_tqdm=False)
        completions = [result.outputs[0] for result in results]
        tokens = [list(completion.token_ids) for completion in completions]
        log_probs = [
            [
                at[token].logprob
                for token, at in zip(completion.token_ids, completion.logprobs, strict=True)
            ]
            for completion in completions
        ]
        return TokenBatch.from_sequences(
            prompts, tokens, pad_token=self._pad_token, log_probs=log_probs
        )
