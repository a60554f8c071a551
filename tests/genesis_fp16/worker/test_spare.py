"""A spare worker imports torch and no agent, and its run gives the bits of any other."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from genesis_fp16.executors import ExitStatus, LocalExecutor
from infrastructure.events import read_events
from infrastructure.events.event import Evaluated, Started


@pytest.mark.process
def test_a_prewarmed_run_gives_the_bits_of_a_cold_one(
    start: Callable, until: Callable, tmp_path: Path
) -> None:
    cold = start(1)
    executor = LocalExecutor()
    executor.keep_spare(True)
    try:
        assert executor.spare is not None
        until(lambda: executor.spare.failure or executor.spare.is_ready())
        names = {Path(path).name for path in executor.spare.files}
        assert {"attempt_process.py", "libtorch_cpu.so", "world_model_agent.py"} <= names
        assert not any("/agents/" in path or "line_agent" in path for path in executor.spare.files)
        assert not any("/torch/_dynamo/" in path for path in executor.spare.files)

        assert cold.end() == 0, cold.log
        folders = ("agent_folder", "run_folder", "attempt_folder")
        places = {name: tmp_path / "prewarmed" / name for name in folders}
        spec = cold.spec.model_copy(update=places)
        spec.attempt_folder.mkdir(parents=True)
        pid, statuses = executor.spare.process.pid, []
        handle = executor.submit(spec)
        until(lambda: statuses.append(executor.poll(handle)) or statuses[-1] is not None)
    finally:
        executor.keep_spare(False)
    log = (spec.attempt_folder / "worker.log").read_text()
    assert statuses[-1] == ExitStatus(exit_code=0), log
    assert "trains on 4" in log
    events = list(read_events(spec.events_path))
    assert [event.pid for event in events if isinstance(event, Started)] == [pid]
    last = [
        [e for e in attempt_events if isinstance(e, Evaluated)][-1]
        for attempt_events in (events, cold.events)
    ]
    assert last[0].metrics == last[1].metrics
    ours, theirs = (
        torch.load(at.agent_folder / "published" / "model.pt") for at in (spec, cold.spec)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
