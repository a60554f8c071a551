"""A PPO batch of a language model of 4,000 weights, for tests that need a whole experiment."""

import copy

import torch

from infrastructure.events import Role
from infrastructure.policy import TokenBatch
from infrastructure.policy.models import build_policy, small_config
from infrastructure.policy.tokenizer import CharacterTokenizer
from infrastructure.precision_lab import computations
from infrastructure.precision_lab.experiments import PolicyExperiment, PolicyTraining
from infrastructure.precision_lab.experiments.policy import OLD_LOG_PROBS, RETURNS
from infrastructure.precision_lab.heads import RewardModel, ValueHead

WIDTH = 16
TOKENIZER = CharacterTokenizer("0123456789+=")
TRAINING = PolicyTraining(temperature=1.0, pad_token=0, stop_tokens=(2,))


def small_policy(seed=0):
    config = small_config(TOKENIZER, width=WIDTH, layers=1, heads=2, context=32)
    config.initializer_range = 0.3
    return build_policy(config, seed=seed).eval()


def moved(model, size, seed):
    """A copy of *model* with noise of *size* on each weight."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)
    return model


def policy_batch(old, seed=0):
    """Two sequences of different lengths, with the old log-probabilities and returns of 1."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [TOKENIZER.encode(each) for each in ("12+34=", "5+6=")]
    completions = [torch.randint(3, 15, (n,), generator=generator).tolist() for n in (4 + seed, 2)]
    batch = TokenBatch.from_sequences(prompts, completions, pad_token=0)
    with torch.no_grad():
        logits_BTV = old(**batch.model_inputs()).logits
        old_BS = computations.log_probs_of(logits_BTV, batch, TRAINING.temperature)
    returns_BS = batch.response_mask_BS.float()
    return {**batch.to_tensors(), OLD_LOG_PROBS: old_BS, RETURNS: returns_BS}


def small_experiment():
    """Reference, old policy and policy have different weights; two batches."""
    reference = small_policy()
    old = moved(reference, 1e-2, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        models = {
            Role.POLICY: moved(old, 3e-3, 2),
            Role.REFERENCE: reference,
            Role.ROLLOUT: old,
            Role.REWARD: RewardModel(copy.deepcopy(reference), WIDTH).eval(),
            Role.VALUE: ValueHead(WIDTH).eval(),
        }
    batches = [policy_batch(old, seed) for seed in (0, 1)]
    return PolicyExperiment(models=models, batches=batches, training=TRAINING)
