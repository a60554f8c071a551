"""Objects in a bucket of this process: those that no launcher writes, and whose turn it is."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from structlog.testing import capture_logs

from genesis_fp16.domain.bucket_attempt import (
    LONGEST_INLINE,
    MOST_INLINE,
    ORDER,
    Appended,
    BucketFile,
    BucketOrder,
    Update,
    update_name,
)
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.remote_attempt import Claim, JobOrder
from genesis_fp16.domain.run_spec import SPEC_FILE, RunSpec
from genesis_fp16.executors.bucket import AttemptMirror, Mirrors
from genesis_fp16.executors.bucket.mirrors import HOME_FILE
from genesis_fp16.executors.job_files import write_fence, write_order
from genesis_fp16.settings import Settings
from genesis_fp16.system.bucket import Bucket, BucketError
from genesis_fp16.worker.bucket.__main__ import is_chosen
from genesis_fp16.worker.bucket.folders import ChangedFiles, Folders
from tests.genesis_fp16.executors.attempt_spec import FP32, attempt_spec
from tests.patience import wait_until

JOB, START = "genesis-a-r-1-0", "0123456789abcdef"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    wrapped = AsyncFileSystemWrapper.wrap_class(MemoryFileSystem)
    wrapped._strip_protocol = MemoryFileSystem._strip_protocol
    monkeypatch.setitem(_registry, "memory", wrapped)
    return Bucket(f"memory://{secrets.token_hex(4)}/x")


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    spec = attempt_spec(Settings(home=tmp_path), run_id="r", precision=FP32)
    (spec.attempt_folder / SPEC_FILE).write_text(spec.model_dump_json())
    write_fence(spec.run_folder, spec.incarnation)
    write_order(spec.attempt_folder, order(spec))
    return spec


def order(spec: RunSpec) -> JobOrder:
    return JobOrder(
        job=JOB,
        engine="none",
        incarnation=spec.incarnation,
        stop_seconds=1.0,
        run_seconds=60.0,
        ordered_at=0.0,
    )


@pytest.fixture
def open_mirror(bucket: Bucket, spec: RunSpec) -> Iterator[Callable[[], AttemptMirror]]:
    made: list[AttemptMirror] = []

    def open_mirror() -> AttemptMirror:
        folder, incarnation = spec.attempt_folder, spec.incarnation
        made.append(AttemptMirror(bucket, JOB, folder, incarnation, on_ready=lambda: None))
        return made[-1]

    yield open_mirror
    for mirror in made:
        mirror.finish()
        mirror.join(10.0)


def announce(bucket: Bucket, spec: RunSpec, start: str = START) -> None:
    claim = Claim(incarnation=spec.incarnation, host="h", pid=1, claimed_at=0.0)
    bucket.write(f"{JOB}/starts/{start}", claim.model_dump_json().encode())


def send(bucket: Bucket, number: int, update: bytes) -> None:
    bucket.write(f"{JOB}/{update_name(START, number)}", update)


def inline(path: str, content: bytes = b"x", modified_ns: int = 1) -> BucketFile:
    return BucketFile(path=path, content=content, size=len(content), modified_ns=modified_ns)


def test_an_order_that_a_job_has_replaced_opens_no_other_folder(
    bucket: Bucket, spec: RunSpec, open_mirror
) -> None:
    wide = spec.model_copy(update={"agent_folder": spec.agent_folder.parents[1]})
    sent = BucketOrder(home="/", spec=wide.model_dump_json(), order=order(spec), files=())
    bucket.write(f"{JOB}/{ORDER}", sent.model_dump_json().encode())
    announce(bucket, spec)
    home = spec.agent_folder.parents[1]
    (home / "genesis.db").write_bytes(b"the database")
    last = f"{spec.attempt_folder.relative_to(home)}/last.log"
    files = (inline("genesis.db"), inline("agents/b/model.pt"), inline(last))
    send(bucket, 0, Update(written=files).model_dump_json().encode())
    open_mirror()
    wait_until((home / last).exists, "the end of the update")
    assert (home / "genesis.db").read_bytes() == b"the database"
    assert not (home / "agents" / "b").exists()


@pytest.mark.parametrize(
    "forged",
    [
        b"\xff\x00hunter2",
        b"[]",
        b'{"appended": "hunter2"}',
        b'{"written": [{"path": "a", "size": 1, "modified_ns": -1}]}',
        b'{"written": [{"path": "hunter2", "size": 1, "modified_ns": 1' + b"0" * 30 + b"}]}",
        b'{"written": [{"path": "a", "object": "../other/order", "size": 1, "modified_ns": 1}]}',
        b'{"written": [{"path": "a", "object": "order", "size": 1, "modified_ns": 1}]}',
    ],
)
def test_an_update_that_is_none_is_named_and_not_repeated(
    bucket: Bucket, spec: RunSpec, open_mirror, forged: bytes
) -> None:
    announce(bucket, spec)
    send(bucket, 0, forged)
    with capture_logs() as logs:
        mirror = open_mirror()
        wait_until(lambda: mirror.trouble, "the trouble")
    assert update_name(START, 0) in mirror.trouble
    assert "cancel the run" in mirror.trouble
    assert "hunter2" not in mirror.trouble + repr(logs)


def test_a_start_with_an_odd_name_is_not_chosen(bucket: Bucket, spec: RunSpec, open_mirror) -> None:
    for name in ("../../other", "x\n", "a/" + "0" * 15):
        announce(bucket, spec, name)
    mirror = open_mirror()
    wait_until(lambda: mirror.looked_at, "a look")
    announce(bucket, spec)
    wait_until(lambda: bucket.read(f"{JOB}/chosen"), "a choice")
    assert bucket.read(f"{JOB}/chosen") == START.encode()


def test_an_object_without_end_is_not_read(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genesis_fp16.system.bucket._LONGEST_READ", 100)
    bucket.write("long", b"x" * 101)
    bucket.write("short", b"x" * 100)
    assert bucket.read("short") == b"x" * 100
    with pytest.raises(BucketError, match="more than"):
        bucket.read("long")


def test_odd_names_and_times_cost_no_other_file(
    bucket: Bucket, spec: RunSpec, tmp_path: Path
) -> None:
    files = ChangedFiles(bucket, JOB, f"files/{START}", tmp_path, Folders(spec))
    odd = Path(os.fsdecode(bytes(spec.run_folder) + b"/odd\xff"))
    odd.write_bytes(b"x")
    for name, seconds in (("past", -(10**9)), ("future", 2**34), ("now", 1)):
        (spec.run_folder / name).write_bytes(b"x")
        os.utime(spec.run_folder / name, (seconds, seconds))
    written, _ = files.send()
    assert {Path(file.path).name for file in written} == {"past", "future", "now"}
    odd.unlink()
    assert files.send() == ((), ())


def test_a_file_where_a_folder_is_costs_no_other_file(
    bucket: Bucket, spec: RunSpec, open_mirror
) -> None:
    run, home = spec.run_folder, spec.agent_folder.parents[1]
    where = str(run.relative_to(home))
    (run / "file").write_bytes(b"x")
    for name in ("folder", "theirs", f"attempts/{spec.attempt}/worker.log"):
        (run / name).mkdir()
        (run / name / "1").write_bytes(b"old")
    log = f"{spec.attempt_folder.relative_to(home)}/worker.log"
    names = ("file/1", "folder", "theirs", "x" * 300, f"{'x' * 300}/1", f"{'x/' * 1900}1")
    announce(bucket, spec)
    for number, last in enumerate(("first", "second")):  # again, as after the daemon's death
        update = Update(
            appended=(Appended(path=log, offset=0, content=b"line"),),
            written=tuple(inline(f"{where}/{name}", b"new") for name in (*names, last)),
            removed=(f"{where}/file", f"{where}/folder/1", f"{where}/theirs/none/1"),
        )
        send(bucket, number, update.model_dump_json().encode())
    with capture_logs() as logs:
        mirror = open_mirror()
        wait_until((run / "second").exists, "both updates")
    assert mirror.trouble == ""
    for name in ("file/1", "folder", "first", "second"):
        assert (run / name).read_bytes() == b"new", name
    assert (run / "theirs" / "1").read_bytes() == b"old"
    refused = [entry for entry in logs if entry["event"] == "job_file_refused"]
    assert len(refused) == 2 * 5, "the log, the other folder, and the three long names"
    assert refused[0]["file"] == repr(log)
    assert refused[0]["error"] == "Is a directory"


def test_objects_of_a_run_whose_folder_is_gone_are_removed(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "runs" / "r2").mkdir(parents=True)  # as while its files are on their way
    mine, theirs = (Mirrors(bucket, tmp_path / home).bucket for home in (".", "other"))
    for part in (mine, theirs):
        for job in ("genesis-a-r1-1-0", "genesis-a-r2-1-0"):
            part.write(f"{job}/inputs/0-1", b"x")
    Mirrors(bucket, tmp_path)  # as the daemon's next start does
    kept = ["genesis-a-r2-1-0/inputs/0-1"]
    wait_until(lambda: mine.names() == kept, "the end of the first run's objects")
    assert len(theirs.names()) == 2


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_an_id_of_the_home_that_cannot_be_read_ends_the_start(
    bucket: Bucket, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / HOME_FILE)
    with pytest.raises(GenesisError, match=r"store-id .*remove it"):
        Mirrors(bucket, tmp_path)


def test_a_damaged_id_of_the_home_is_replaced_and_said(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / HOME_FILE).write_bytes(b"\xff" * 1000)
    with capture_logs() as logs:
        made = Mirrors(bucket, tmp_path).bucket.url
    assert "store_id_replaced" in [entry["event"] for entry in logs]
    assert Mirrors(bucket, tmp_path).bucket.url == made


def test_many_small_files_do_not_make_one_huge_update(
    bucket: Bucket, spec: RunSpec, tmp_path: Path, open_mirror
) -> None:
    files = ChangedFiles(bucket, JOB, f"files/{START}", tmp_path, Folders(spec))
    count = MOST_INLINE // LONGEST_INLINE + 5
    for number in range(count):
        (spec.run_folder / f"small-{number}").write_bytes(b"x" * LONGEST_INLINE)
    written, _ = files.send()
    assert len(written) == count
    assert sum(len(file.content) for file in written) == MOST_INLINE
    mirror = open_mirror()
    wait_until(lambda: mirror.ready, "the order")
    sent = BucketOrder.model_validate_json(bucket.read(f"{JOB}/{ORDER}") or b"")
    names = {Path(file.path).name for file in sent.files}
    assert names >= {f"small-{number}" for number in range(count)}
    assert MOST_INLINE <= sum(len(file.content) for file in sent.files) < MOST_INLINE * 1.01


def test_the_next_daemon_reads_on(bucket: Bucket, spec: RunSpec, open_mirror) -> None:
    home = spec.agent_folder.parents[1]
    where = str(spec.events_path.relative_to(home))

    def append(number: int, offset: int, content: bytes) -> None:
        appended = (Appended(path=where, offset=offset, content=content),)
        send(bucket, number, Update(appended=appended).model_dump_json().encode())

    def read() -> bytes:
        return spec.events_path.read_bytes() if spec.events_path.exists() else b""

    announce(bucket, spec)
    append(0, 0, b"one\n")
    first = open_mirror()
    wait_until(lambda: read() == b"one\n", "the first lines")
    first.close()
    first.join(10.0)
    announce(bucket, spec, "f" * 16)  # the engine has started the job twice
    append(1, 4, b"two\n")
    open_mirror()
    wait_until(lambda: read() == b"one\ntwo\n", "the rest")
    assert bucket.read(f"{JOB}/chosen") == START.encode()


def test_a_second_start_and_one_without_its_run_begin_nothing(
    bucket: Bucket, spec: RunSpec, capfd: pytest.CaptureFixture[str]
) -> None:
    sent = BucketOrder(home="/", spec=spec.model_dump_json(), order=order(spec), files=())
    bucket.write(f"{JOB}/{ORDER}", sent.model_dump_json().encode())
    bucket.write(f"{JOB}/chosen", START.encode())
    assert is_chosen(bucket, JOB, START, sent)
    assert not is_chosen(bucket, JOB, "f" * 16, sent)
    assert "started before" in capfd.readouterr().err
    bucket.delete([f"{JOB}/{ORDER}", f"{JOB}/chosen"])
    assert not is_chosen(bucket, JOB, START, sent)
    assert "another attempt" in capfd.readouterr().err
