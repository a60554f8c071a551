"""A policy agent with one fault, which its setting names."""

from pathlib import Path

import torch
from pydantic import BaseModel
from transformers import GPT2Config

from infrastructure.agent_contract import Evaluation, Publication, Schedule
from infrastructure.agent_contract.on_policy_job import OnPolicyJob
from infrastructure.policy import Sampling, TokenBatch, token_log_probs
from infrastructure.policy.models import build_policy, load_policy, small_config, special_tokens
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.policy.tokenizer import CharacterTokenizer


class Knobs(BaseModel):
    fault: str = ""


class FaultyPolicyAgent:
    name = "policy"
    contract_version = 1

    def schedule(self):
        return Schedule(every_seconds=3600)

    def settings_model(self):
        return Knobs

    def collect(self, context):
        yield from ()

    def build_job(self, context, transitions):
        fault, tokenizer = context.settings.fault, CharacterTokenizer("ab")
        model = _endless_policy(tokenizer)
        if fault == "another architecture":
            load_policy(_with_the_configuration_of_gpt2(model, context.run_folder / "model"))
        if fault == "begins with its model":
            folder = context.at_start(context.agent_folder / "published")
            context.logger.info("began", files=" ".join(path.name for path in folder.iterdir()))
        if fault == "NaN":
            torch.nn.init.constant_(model.lm_head.weight, torch.nan)
        if fault == "another tokenizer":
            tokenizer = CharacterTokenizer("abcdef")
        if fault == "no padding token":
            tokenizer.pad_token_id = None
        special = special_tokens(model, tokenizer)
        prompt = tokenizer.encode("ab" if fault != "long prompt" else "ab" * 4)

        def batches(round_, roles):
            engine = TransformersRollout(
                roles.rollout,
                pad_token=special.pad,
                stop_tokens=[] if fault == "no stop token" else special.stop,
            )
            batch = engine.generate(
                [prompt, prompt], sampling=Sampling(top_k=1), max_new_tokens=4, seed=round_
            )
            if fault == "empty completion":
                batch = TokenBatch.from_sequences([prompt], [[]], pad_token=special.pad)
            return [batch.to_tensors()]

        def loss(forward, tensors):
            return -token_log_probs(forward, TokenBatch.from_tensors(tensors), Sampling()).mean()

        self._seen = []

        def evaluate(forward):
            self._seen.append(_weights(model))
            reward = {1: 0.2, 2: 0.9, 3: 0.5}[len(self._seen)]
            return Evaluation(metrics={"reward": reward}, primary="reward", higher_is_better=True)

        return OnPolicyJob(
            model=model,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
            batches=batches,
            loss=loss,
            evaluate=evaluate,
            epochs=3,
        )

    def publish(self, context, model, report):
        (context.agent_folder / "published").mkdir(exist_ok=True)
        (context.agent_folder / "published" / context.run_id).touch()
        kept = [_weights(model).equal(seen) for seen in self._seen]
        reason = f"reward {report.evaluation.value}, epoch {1 + kept.index(True)}"
        return Publication(published=False, reason=reason, metrics={})


def _endless_policy(tokenizer):
    """A policy whose most probable token is always a letter, so that no completion ends."""
    model = build_policy(small_config(tokenizer, width=8, layers=1, context=8), seed=0)
    torch.nn.init.zeros_(model.lm_head.weight)
    for letter, logit in (("a", 1.0), ("b", -1.0)):
        (token,) = tokenizer.encode(letter, add_special_tokens=False)
        torch.nn.init.constant_(model.lm_head.weight[token], logit)
    return model


def _weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _with_the_configuration_of_gpt2(model, folder: Path) -> Path:
    model.save_pretrained(folder)
    GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=5).save_pretrained(folder)
    return folder
