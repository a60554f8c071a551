from __future__ import annotations

import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize("module", ["models", "rollout", "rollout.transformers_rollout"])
def test_where_transformers_is_missing_the_error_names_the_command(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*sys.modules]:
        if name.startswith(("infrastructure.policy.models", "infrastructure.policy.rollout")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"^transformers .*genesis-fp16\[policy\]"):
        import_module(f"infrastructure.policy.{module}")


def test_where_peft_is_missing_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "infrastructure.policy.adapters", raising=False)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ModuleNotFoundError,
        match=r"^peft is not installed: pip install 'genesis-fp16\[policy\]'$",
    ):
        import_module("infrastructure.policy.adapters")
