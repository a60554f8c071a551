"""``genesis-fp16 doctor``, as an operator reads it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result


@pytest.mark.usefixtures("forked")
def test_a_remedy_begins_at_the_left_however_long_other_findings_are(
    ask: Callable[..., Result], folder: Path
) -> None:
    definitions = folder / ".genesis" / "agents.d"
    definitions.mkdir(parents=True)
    (definitions / f"{'a' * 60}.toml").write_text("[source]\n")
    (folder / ".env").write_text("GENESIS_AGENTS__NOBODY__ENABLED=false\n")
    lines = ask("doctor").stdout.splitlines()
    assert max(len(line) for line in lines) > 100
    remedies = [line for line in lines if "remedy: " in line]
    assert remedies
    assert {line.index("remedy: ") for line in remedies} == {lines[0].index("found")}
    assert all(line.startswith("  ") for line in remedies)
