"""Asking for an agent whose code may not run here."""

import asyncio
from pathlib import Path

import pytest

from genesis_fp16.predictor.own_process import OwnProcessError, OwnProcesses


def test_without_its_code_the_agent_is_told_at_once_and_the_log_once(tmp_path: Path) -> None:
    notices = list[tuple[str, str]]()
    own = OwnProcesses(tmp_path, lambda event, **fields: notices.append((event, fields["agent"])))
    own.without_plugin = frozenset({"qa"})
    for _ in range(2):
        with pytest.raises(OwnProcessError, match="overrides build_model"):
            asyncio.run(own.rank("qa", {}, [{}]))
    assert notices == [("own_network_not_served", "qa")]
