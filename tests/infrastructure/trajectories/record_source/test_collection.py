from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from infrastructure.agent_contract import RunContext
from infrastructure.agent_contract.run_context import Budget
from infrastructure.trajectories.record_source import collect_records


def test_a_run_is_told_what_was_read(
    desk: Any, make_record: Callable[..., dict[str, object]]
) -> None:
    reports: list[tuple[int, dict[str, float] | None]] = []
    context = RunContext(
        run_id="1",
        attempt=1,
        agent="desk",
        device="cpu",
        seed=0,
        agent_folder=desk.agent_folder,
        run_folder=desk.agent_folder,
        budget=Budget(seconds=60.0, transitions=10_000),
        settings=None,
        logger=structlog.get_logger(),
        report_progress=lambda done, *_, metrics=None, **__: reports.append((done, metrics)),
    )
    desk.write("a.jsonl", *(make_record(str(number)) for number in range(1001)), "{}", "{}")
    with structlog.testing.capture_logs() as logs:
        assert len(list(collect_records(desk.source, context))) == 1001
    assert [done for done, _ in reports] == [1000, 1001]  # the first one while it collects
    counts = reports[-1][1]
    assert counts is not None
    assert (counts["records"], counts["refused"]) == (1001.0, 2.0)
    read, problem = logs
    assert (read["event"], read["records"], read["place"]) == (
        *("records_read", 1001),
        f"{desk.folder} (*.jsonl)",
    )
    assert problem["event"] == "records_incomplete"
    assert problem["problem"].startswith("2 records cannot be read: the key 'group'")
