"""Jobs and daemon that share a real bucket: deaths, silence, late writers, what is left."""

import json
import time
from pathlib import Path

import psutil
import pytest

from genesis_fp16.domain.bucket_attempt import Appended, BucketFile, Update, target_of, update_name
from genesis_fp16.domain.remote_attempt import CLAIM_FILE
from genesis_fp16.executors import ExitStatus
from genesis_fp16.executors.bucket import Mirrors
from genesis_fp16.executors.bucket.mirrors import HOME_FILE
from genesis_fp16.system.bucket import Bucket
from infrastructure.events import EventTail, SetPrecision
from infrastructure.events.command import Stop
from tests.genesis_fp16.executors.attempt_spec import FP32
from tests.genesis_fp16.executors.bucket.test_contract import BucketCluster
from tests.genesis_fp16.executors.contract import (
    ROLLBACK_SECONDS,
    Attempts,
    check_what_is_left,
)
from tests.genesis_fp16.executors.object_server import ObjectServer
from tests.patience import crowding, wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(bucket: Bucket, home_settings):
    quick = Bucket(bucket.url, seconds=2.0)
    made = BucketCluster(quick, home_settings.home)
    yield made
    made.close()


@pytest.fixture
def attempts(cluster, home_settings, standin_command):
    made = Attempts(cluster, home_settings, standin_command)
    yield made
    made.close()


def test_a_command_arrives_and_a_dead_job_goes_on_elsewhere(
    attempts: Attempts, cluster: BucketCluster, record_property
) -> None:
    first = attempts.spec(steps=10**9)
    data = first.agent_folder / "replay" / "one.jsonl"
    data.parent.mkdir(parents=True)
    data.write_bytes(b"{}\n" * 50_000)  # an object of its own
    handle = attempts.submit(first)
    attempts.until_event(first, lambda event: event.kind == "step_stats")
    sent = time.monotonic()
    attempts.executor.send(handle, SetPrecision(state=FP32))
    attempts.until_event(
        first, lambda event: event.kind == "precision_changed" and event.state == FP32
    )
    took = time.monotonic() - sent
    record_property("measured", f"a command through a bucket: {took:.1f} s")
    assert took < ROLLBACK_SECONDS * crowding()
    attempts.executor.send(handle, Stop(reason="shutdown"))
    assert attempts.ended(handle) == ExitStatus(exit_code=75)
    step = int((first.run_folder / "step").read_text())

    second = attempts.spec(first.run_id, 2, steps=10**9)
    handle = attempts.submit(second)
    attempts.until_event(second, lambda event: event.kind == "step_stats")
    claim = json.loads((second.attempt_folder / CLAIM_FILE).read_text())
    job = psutil.Process(claim["pid"])
    scratch = [
        Path(argument) for argument in job.children()[0].cmdline() if argument.endswith("spec.json")
    ]
    assert not scratch[0].is_relative_to(first.run_folder), "it shares the home's folder"
    there = scratch[0].parents[4] / "agents" / "a" / "replay" / "one.jsonl"
    assert there.read_bytes() == data.read_bytes()
    cluster.delete(handle.job)  # SIGKILL of the job and all below it
    assert "without a result" in attempts.ended(handle).error
    reached = [e.step for e in EventTail(second.events_path).read() if e.kind == "step_stats"]
    assert reached[0] == step + 1, "it has not resumed from the step that the first one saved"
    wait_until(lambda: not cluster.bucket.names(), "the end of all objects")


def test_a_silent_store_ends_nothing_and_loses_nothing(
    attempts: Attempts, object_server: ObjectServer
) -> None:
    spec, handle = attempts.start(steps=10**9)
    with object_server.silent():
        wait_until(lambda: attempts.executor.unreachable(handle), "the reason")
        assert "not answered" in attempts.executor.unreachable(handle)
        wait_until(attempts.executor.trouble_seconds, "the trouble to be counted")
        waiting = attempts.submit(attempts.spec(steps=1))
        wait_until(lambda: "not answered" in attempts.executor.waiting(waiting), "a reason")
        attempts.executor.send(handle, SetPrecision(state=FP32))
        took = []
        for _ in range(5):
            began = time.monotonic()
            assert attempts.executor.poll(handle) is None
            took.append(time.monotonic() - began)
        assert min(took) < 1.0, "the daemon's loop waits for the bucket"
    attempts.until_event(
        spec, lambda event: event.kind == "precision_changed" and event.state == FP32
    )
    attempts.executor.send(handle, Stop(reason="shutdown"))
    assert attempts.ended(handle) == ExitStatus(exit_code=75)
    assert attempts.ended(waiting) == ExitStatus(exit_code=0)
    wait_until(lambda: not attempts.executor.trouble_seconds(), "the end of the trouble")
    steps = [e.step for e in EventTail(spec.events_path).read() if e.kind == "step_stats"]
    assert steps == list(range(1, steps[-1] + 1))


def test_a_late_writer_reaches_no_file(attempts: Attempts, cluster: BucketCluster) -> None:
    spec = attempts.spec(steps=1)
    handle = attempts.submit(spec)
    assert attempts.ended(handle) == ExitStatus(exit_code=0)
    check_what_is_left(spec)
    size = spec.events_path.stat().st_size
    where = str(spec.events_path.relative_to(spec.agent_folder.parents[1]))
    late = Update(appended=(Appended(path=where, offset=size, content=b"late\n"),))
    home = spec.agent_folder.parents[1]
    bucket = cluster.bucket.below((home / HOME_FILE).read_text())
    wait_until(lambda: not bucket.names(), "the end of its objects")
    for number in range(9):
        name = f"{handle.job}/{update_name('0' * 16, number)}"
        bucket.write(name, late.model_dump_json().encode())
    again = attempts.spec(spec.run_id, 2, steps=1)
    assert attempts.ended(attempts.submit(again)) == ExitStatus(exit_code=0)
    assert spec.events_path.stat().st_size == size
    Mirrors(cluster.bucket, home)  # as the daemon's next start does
    wait_until(lambda: not bucket.names(), "the end of the late objects")


def test_a_job_writes_in_its_own_folders_alone(tmp_path: Path) -> None:
    run, agent = tmp_path / "runs" / "r", tmp_path / "agents" / "a"
    mine = run / "attempts" / "2"

    def target(path: str) -> Path | None:
        return target_of(path, tmp_path, mine, agent)

    for path in ("runs/r/checkpoints/1.pt", "agents/a/replay/1.jsonl", "runs/r/attempts/2/x.log"):
        assert target(path) == tmp_path / path
    for path in (
        *("", "/etc/passwd", "../x", "runs/r/../../x", "genesis.db", "agents/b/x", "agents/a"),
        *("runs/r/incarnation", "runs/r/attempts/1/x", "runs/q/x", "runs/r/attempts/2/job.json"),
    ):
        assert target(path) is None, path


def test_updates_survive_the_store_as_they_were() -> None:
    file = BucketFile(path="a", content=bytes(range(256)), size=256, modified_ns=1)
    update = Update(beat=True, written=(file,), removed=("b",))
    assert Update.model_validate_json(update.model_dump_json()) == update
