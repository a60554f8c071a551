import pytest
import torch

from benchmarks.policy.subjects import Subject
from infrastructure.policy.models import build_policy, small_config, special_tokens
from infrastructure.policy.tokenizer import CharacterTokenizer


@pytest.fixture(scope="package")
def subject() -> Subject:
    tokenizer = CharacterTokenizer("0123456789+= ")
    config = small_config(tokenizer, width=16, layers=1, heads=2, context=32)
    model = build_policy(config, seed=0)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    return Subject(
        name="tiny",
        model=model,
        special=special_tokens(model, tokenizer),
        prompts=[tokenizer.encode(each) for each in ("1+1=", "12+30=", "7", "5+5")],
    )
