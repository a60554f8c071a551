from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from infrastructure.agent_contract.run_context import Budget, RunContext


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    return RunContext(
        run_id="r",
        attempt=1,
        agent="a",
        device="cpu",
        seed=3,
        agent_folder=tmp_path / "agent",
        run_folder=tmp_path / "run",
        budget=Budget(seconds=1.0, transitions=1),
        settings=None,
        logger=structlog.get_logger(),
        report_progress=lambda *_, **__: None,
    )


@pytest.mark.parametrize(("seconds", "transitions"), [(0.0, 1), (1.0, 0)])
def test_an_empty_budget_is_refused(seconds, transitions):
    with pytest.raises(ValueError, match="above zero"):
        Budget(seconds=seconds, transitions=transitions)


def test_a_run_and_its_repetition_see_a_folder_as_it_was_at_the_start(context: RunContext) -> None:
    in_use = context.agent_folder / "published" / "task"
    (in_use / "weights").mkdir(parents=True)
    (in_use / "weights/w").write_text("first")
    assert (context.at_start(in_use) / "weights/w").read_text() == "first"
    (in_use / "weights/w").write_text("second")
    twin = replace(
        context, run_folder=context.run_folder.with_name("twin"), repeats=context.run_folder
    )
    for again in (context, replace(context, attempt=2), twin):
        assert (again.at_start(in_use) / "weights/w").read_text() == "first"
    later = replace(context, run_folder=context.run_folder.with_name("later"))
    assert (later.at_start(in_use) / "weights/w").read_text() == "second"


def test_a_folder_that_did_not_exist_at_the_start_stays_empty(context: RunContext) -> None:
    in_use = context.agent_folder / "published"
    assert list(context.at_start(in_use).iterdir()) == []
    in_use.mkdir(parents=True)
    (in_use / "w").write_text("published by this run")
    assert list(context.at_start(in_use).iterdir()) == []


def test_only_what_the_job_needs_is_copied(context: RunContext) -> None:
    in_use = context.agent_folder / "published"
    (in_use / "new").mkdir(parents=True)
    (in_use / "old").mkdir()
    (in_use / "new" / "old").touch()

    def ignore(folder: str, names: list[str]) -> list[str]:
        assert set(names) <= {each.name for each in Path(folder).iterdir()}
        return ["old"] if folder == str(in_use) else []

    kept = context.at_start(in_use, ignore)
    assert [each.relative_to(kept) for each in kept.rglob("*")] == [Path("new"), Path("new/old")]


def test_what_a_run_began_with_is_never_replaced_by_something_else(context: RunContext) -> None:
    in_use = context.agent_folder / "published"
    with pytest.raises(RuntimeError, match="cannot repeat"):
        replace(context, repeats=context.run_folder.with_name("gone")).at_start(in_use)
    with pytest.raises(ValueError, match="subpath"):
        context.at_start(context.run_folder)
