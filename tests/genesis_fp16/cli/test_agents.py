"""``genesis-fp16 agents``, on really installed plugins."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from genesis_fp16.domain.run import Ending, RetryPolicy, RunSummary, resolve_ending
from genesis_fp16.store import Store

Ask = Callable[..., Result]

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forked")]


def test_agents_answer_without_a_daemon(
    ask: Ask,
    ask_json: Callable[..., object],
    install_plugin: Callable[..., None],
    folder: Path,
) -> None:
    (folder / ".env").write_text("GENESIS_AGENTS__SE_DARWIN__ENABLED=false\n")
    install_plugin("fine")
    install_plugin("broken", "raise RuntimeError('no luck')")
    with (folder / ".env").open("a") as file:
        file.write('GENESIS_AGENTS__FINE__SCHEDULE="every 5m"\n')
    agents = {row["name"]: row for row in ask_json("agents")}
    assert agents["fine"]["state"] == "ready"
    assert agents["fine"]["schedule"] == "every 5m"
    assert agents["broken"]["state"] == "quarantined"
    assert "no luck" in agents["broken"]["reason"]
    assert agents["se-darwin"]["state"] == "disabled"
    text = ask("agents").stdout
    assert "broken_plugin failed: RuntimeError: no luck" in text


def test_an_agent_without_data_is_shown_with_what_was_looked_for(
    ask: Ask, ask_json: Callable[..., object], install_plugin: Callable[..., None], store: Store
) -> None:
    install_plugin("fine")
    run = store.enqueue("fine", first_seed=0)
    attempt = store.begin_attempt(run.id, "incarnation")
    assert attempt is not None
    looked = "0 transitions recorded: looked for records in /records"
    store.update_summary(run.id, RunSummary(published=False, reason=looked))
    transition = resolve_ending(
        Ending(exit_code=66), failures=0, policy=RetryPolicy(max_attempts=1, backoff_seconds=1.0)
    )
    store.end_attempt(attempt, Ending(exit_code=66), transition, finished_at=9e9)
    [row] = [row for row in ask_json("agents") if row["name"] == "fine"]
    assert row["last_run"] == "no_data"
    assert f"fine has no data: {looked}" in " ".join(ask("agents").stdout.split())
