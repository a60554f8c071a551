"""Numerics are fixed only inside, and a result says where it was computed."""

import json

import torch

from infrastructure.precision_lab.environment import describe_environment, fixed_numerics


def test_algorithms_are_deterministic_inside():
    before = torch.are_deterministic_algorithms_enabled()
    with fixed_numerics():
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.are_deterministic_algorithms_enabled() == before


def test_the_record_is_json_with_the_versions():
    found = json.loads(json.dumps(describe_environment(torch.device("cpu")), allow_nan=False))
    assert found["torch"] == torch.__version__
    assert found["attention"] == "math"
    assert found["deterministic"]
