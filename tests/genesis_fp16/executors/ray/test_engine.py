"""Ray as an engine: a real cluster of two nodes, and what is no cluster at all."""

import json
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genesis_fp16.executors.ray import RayEngine
from genesis_fp16.executors.ray.engine import REQUEST, _Job
from genesis_fp16.executors.remote import (
    ENGINE_LOG,
    EngineError,
    JobRef,
    JobRequest,
    JobState,
    JobStatus,
    Resources,
)
from tests.e2e.bucket_run import live_through
from tests.e2e.conftest import Daemon
from tests.e2e.job_server import forked_python
from tests.genesis_fp16.executors.contract import EngineContract
from tests.genesis_fp16.executors.object_server import ObjectServer
from tests.genesis_fp16.executors.ray.ray_cluster import RayCluster
from tests.genesis_fp16.executors.ray.web_server import served
from tests.patience import wait_until

NOWHERE = "http://127.0.0.1:9"  # nothing listens on the port of the discard protocol


@pytest.fixture(scope="module")
def too_large(ray_cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> JobRequest:
    """A job for which no machine is large enough; the first test submits it, a later one looks."""
    wanted = JobRequest(
        name="genesis-too-large",
        command=("true",),
        folder=tmp_path_factory.mktemp("large"),
        resources=Resources(gpus=1),
    )
    RayEngine(ray_cluster.address, ray_cluster.token_file).submit(wanted)
    return wanted


@pytest.fixture
def engine(ray_cluster: RayCluster) -> RayEngine:
    return RayEngine(ray_cluster.address, ray_cluster.token_file)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., JobRequest]:
    """A job whose command is a shell script that starts in the attempt's folder."""

    def make(script: str, name: str = "a", stop_seconds: float = 10.0, **wanted: int) -> JobRequest:
        folder = tmp_path / f"it's {name}"  # a path that a shell would tear
        folder.mkdir()
        return JobRequest(
            name=f"genesis-{name}-{secrets.token_hex(4)}",
            command=("sh", "-c", f"cd {shlex.quote(str(folder))}; {script}"),
            folder=folder,
            resources=Resources(**wanted),
            stop_seconds=stop_seconds,
        )

    return make


def status_of(engine: RayEngine, job: JobRequest) -> JobStatus:
    return engine.statuses([JobRef(name=job.name)])[job.name]


def wait_for(engine: RayEngine, job: JobRequest, *states: JobState) -> JobStatus:
    seen: list[JobStatus] = []

    def reached() -> bool:
        seen.append(status_of(engine, job))
        return seen[-1].state in states

    wait_until(reached, f"{job.name} to be {' or '.join(states)}")
    return seen[-1]


class TestContract(EngineContract):
    @pytest.fixture
    def cluster(self, ray_cluster: RayCluster, too_large: JobRequest) -> RayCluster:
        return ray_cluster


def test_a_job_runs_once_however_often_it_is_submitted(engine: RayEngine, job) -> None:
    sound = job("echo started; pwd >&2; echo ran >>ran")
    broken = job("exit 3", "b")
    assert engine.submit(sound) == engine.submit(sound) == sound.name
    engine.submit(broken)
    assert wait_for(engine, sound, JobState.SUCCEEDED, JobState.FAILED).state == JobState.SUCCEEDED
    assert engine.submit(sound) == sound.name
    failed = wait_for(engine, broken, JobState.SUCCEEDED, JobState.FAILED)
    assert failed.state == JobState.FAILED
    assert "exit code 3" in failed.reason
    assert status_of(engine, sound).state == JobState.SUCCEEDED
    assert (sound.folder / "ran").read_text() == "ran\n"
    assert (sound.folder / ENGINE_LOG).read_text() == f"started\n{sound.folder}\n"


def test_a_full_cluster_and_the_end_of_jobs(
    engine: RayEngine, ray_cluster: RayCluster, job
) -> None:
    saves = "trap 'sleep 3.5; touch saved; exit 75' TERM; touch up; while :; do sleep 0.1; done"
    stopped, deaf = job(saves), job("trap '' TERM; touch up; sleep 1000", "deaf", stop_seconds=1)
    for request in (stopped, deaf):
        engine.submit(request)
    for request in (stopped, deaf):
        wait_until((request.folder / "up").exists, f"{request.name} to start")
    # Ray starts the program of a job that was killed while it waited, and then ends it.
    waiting, killed = job("touch ran", "waits"), job("sleep 1000; touch ran", "killed")
    for request in (waiting, killed):
        engine.submit(request)
    assert status_of(engine, stopped).state == JobState.RUNNING
    assert "with 1 CPU: none is free" in wait_for(engine, waiting, JobState.WAITING).reason
    engine.kill(JobRef(name=killed.name))
    assert "while it waited" in status_of(engine, killed).reason
    engine.stop(JobRef(name=stopped.name))
    engine.kill(JobRef(name=deaf.name))
    assert "stopped" in wait_for(engine, deaf, JobState.FAILED).reason
    wait_for(engine, stopped, JobState.FAILED)
    assert (stopped.folder / "saved").exists(), "Ray gave it less than it asked for"
    wait_for(engine, waiting, JobState.SUCCEEDED)
    wait_until(lambda: ray_cluster.job(killed.name)["status"] == "STOPPED", "Ray to end it")
    assert status_of(engine, killed).state == JobState.FAILED
    assert not (killed.folder / "ran").exists()


def test_a_job_that_ray_gives_up_waiting_for_is_submitted_again(
    engine: RayEngine, ray_cluster: RayCluster, too_large: JobRequest
) -> None:
    given_up = ray_cluster.job(too_large.name)
    wait_until(lambda: ray_cluster.job(too_large.name)["status"] == "FAILED", "Ray to give up")
    status = status_of(engine, too_large)
    assert status.state == JobState.WAITING
    assert "1 CPU, 1 GPU: the cluster has none" in status.reason
    again = ray_cluster.job(too_large.name)
    assert again["start_time"] > given_up["start_time"]
    for field in ("entrypoint", "metadata", "runtime_env"):
        assert again[field] == given_up[field]
    engine.kill(JobRef(name=too_large.name))
    assert status_of(engine, too_large).state == JobState.FAILED


def test_a_wrong_token_is_a_reason_to_wait(
    ray_cluster: RayCluster, engine: RayEngine, job, tmp_path: Path
) -> None:
    file, wanted = tmp_path / "token", job("true")
    for content, reason in [
        ("0" * 64, f"refused the token in {file}"),
        ("", f"{file} contains no token"),
        ("two words", f"{file} contains no token"),
    ]:
        file.write_text(content)
        refused = RayEngine(ray_cluster.address, file)
        with pytest.raises(EngineError, match=reason) as caught:
            refused.submit(wanted)
        assert caught.value.temporary
        status = status_of(refused, wanted)
        assert status.state == JobState.UNKNOWN
        (finding,) = refused.check()
        assert not finding.ok
        for text in (str(caught.value), status.reason, finding.what):
            assert reason in text
            assert not content or content not in text
    file.write_text(ray_cluster.token_file.read_text() + "\n")
    assert status_of(refused, wanted).state == JobState.NOT_FOUND
    file.unlink()
    assert "No such file" in status_of(refused, wanted).reason
    none = RayEngine(ray_cluster.address)
    assert "GENESIS_RAY_TOKEN_FILE" in status_of(none, wanted).reason


def test_a_sound_cluster_passes_the_check(engine: RayEngine) -> None:
    findings = engine.check()
    assert all(finding.ok for finding in findings)
    text = "\n".join(finding.what for finding in findings)
    assert "accepts ours" in text
    assert "machines of Ray: 2, with up to 1 CPU, " in text


@pytest.fixture
def daemon(ray_cluster: RayCluster, tmp_path: Path) -> Iterator[Daemon]:
    """A real daemon whose runs are jobs of the cluster; its agent trains without end."""
    quick = Path(__file__).parents[3] / "e2e" / "quick_agent.py"
    shutil.copy(quick, ray_cluster.plugins)
    metadata = ray_cluster.plugins / "quick_agent-1.0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: quick-agent\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[genesis.agents]\nquick = quick_agent:QuickAgent\n")
    with forked_python(tmp_path) as python:
        daemon = Daemon(tmp_path / "daemon", python_path=ray_cluster.plugins)
        daemon.configure(
            GENESIS_EXECUTOR="ray",
            GENESIS_RAY_ADDRESS=ray_cluster.address,
            GENESIS_RAY_TOKEN_FILE=ray_cluster.token_file,
            GENESIS_REMOTE_PYTHON=python,
            GENESIS_AGENTS__QUICK__SCHEDULE='"every 1s"',
            GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS=1_000_000,
            GENESIS_AGENTS__QUICK__SETTINGS__BATCHES_PER_EPOCH=250,
            GENESIS_AGENTS__QUICK__SETTINGS__PAUSE_SECONDS=0.02,
        )
        yield daemon
        daemon.clean_up()


def test_a_run_without_a_shared_folder_survives_rollback_and_machine(
    daemon: Daemon,
    engine: RayEngine,
    ray_cluster: RayCluster,
    object_server: ObjectServer,
    record_property,
) -> None:
    daemon._environ |= object_server.variables
    daemon.configure(
        ENABLE_FP16_TRAINING="true",
        GENESIS_CPU_HALF="true",
        GENESIS_SHARED_URL=f"{object_server.url}/ray",
    )
    ray_cluster.occupy("head-is-taken", head=1.0)
    daemon.start()
    daemon.wait_for(lambda: daemon.in_precision("fp16", "default"), "to train in FP16")

    def cut_power(_job: str) -> None:
        ray_cluster.delete("head-is-taken")
        ray_cluster.kill_worker()

    took = live_through(daemon, cut_power)
    record_property("measured", f"rollback of a Ray job through a bucket: {took:.1f} s")
    [run] = daemon.json("runs")
    shown = daemon.json("runs", "show", run["id"])
    assert (shown["failures"], len(shown["attempts"])) == (1, 2)
    dead, second = (JobRef(name=attempt["job"]) for attempt in shown["attempts"])
    statuses = engine.statuses([dead, second])
    assert statuses[dead.name].state == JobState.FAILED
    assert "node has died" in statuses[dead.name].reason
    assert statuses[second.name].state == JobState.SUCCEEDED
    assert daemon.stop()[0] == 0
    assert object_server.variables["AWS_SECRET_ACCESS_KEY"] not in daemon.log


def test_torchrun_waits_for_a_machine_with_a_core_for_each_rank(
    daemon: Daemon, ray_cluster: RayCluster
) -> None:
    """The machines of one core take none of it."""
    daemon.configure(
        ENABLE_FP16_TRAINING="true",
        GENESIS_CPU_HALF="true",
        GENESIS_AGENTS__QUICK__PROCESSES_PER_RUN=2,
    )
    daemon.start()
    daemon.wait_for(lambda: "with 2 CPUs: the cluster has none" in daemon.log, "to say what lacks")
    ray_cluster.add_worker(cpus=2)
    daemon.wait_for(lambda: daemon.events("step_stats"), "to train")
    daemon.configure(ENABLE_FP16_TRAINING="false")
    daemon.wait_for(lambda: daemon.in_precision("fp32", "flag"), "to roll back both ranks")
    assert daemon.stop()[0] == 0
    assert daemon.events("finished")[-1].outcome == "stopped"


def test_the_head_dies_with_its_jobs_and_comes_back_without(
    engine: RayEngine, ray_cluster: RayCluster, job
) -> None:
    lost = job("touch up; sleep 1000")
    engine.submit(lost)
    wait_until((lost.folder / "up").exists, f"{lost.name} to start")
    ray_cluster.kill_head()
    status = status_of(engine, lost)
    assert status.state == JobState.UNKNOWN
    assert "does not answer" in status.reason
    with pytest.raises(EngineError) as caught:
        engine.submit(lost)
    assert caught.value.temporary
    ray_cluster.start(machines=1)
    assert status_of(engine, lost).state == JobState.NOT_FOUND


def test_where_nothing_listens_every_job_is_unknown(job) -> None:
    engine, wanted = RayEngine(NOWHERE), job("true")
    with pytest.raises(EngineError, match="does not answer") as caught:
        engine.submit(wanted)
    assert caught.value.temporary
    statuses = engine.statuses([JobRef(name="a"), JobRef(name="b")])
    assert {name: status.state for name, status in statuses.items()} == {
        "a": JobState.UNKNOWN,
        "b": JobState.UNKNOWN,
    }
    (finding,) = engine.check()
    assert not finding.ok
    assert "GENESIS_RAY_ADDRESS" in finding.remedy


@pytest.mark.parametrize(
    "page",
    [(404, "no such page"), (302, ""), (200, "<html>"), (200, "{}"), (502, "bad gateway")],
    ids=lambda page: f"{page[0]} {page[1]}".strip(),
)
def test_the_answer_of_something_else_is_not_taken_for_a_lost_job(
    page: tuple[int, str], job
) -> None:
    wanted = job("true")
    with served({f"/api/jobs/{wanted.name}": page, "/elsewhere": (200, "{}")}) as address:
        engine = RayEngine(address)
        assert status_of(engine, wanted).state == JobState.UNKNOWN
        with pytest.raises(EngineError) as caught:
            engine.submit(wanted)
    assert caught.value.temporary


def test_one_strange_job_leaves_the_others_their_states() -> None:
    described = {"submission_id": "a", "status": "RUNNING"}
    pages = {
        "/api/jobs/strange": (200, json.dumps(described | {"status": "LIMBO"})),
        "/api/jobs/broken": (500, "Traceback\nKeyError: 'x'"),
        "/api/jobs/foreign": (200, json.dumps(described | {"status": "PENDING"})),
        "/api/jobs/sound": (200, json.dumps(described)),
    }
    names = [path.removeprefix("/api/jobs/") for path in pages]
    with served(pages) as address:
        statuses = RayEngine(address).statuses([JobRef(name=name) for name in names])
    assert [statuses[name].state for name in names] == [*["unknown"] * 3, "running"]
    assert "LIMBO" in statuses["strange"].reason
    assert "KeyError: 'x'" in statuses["broken"].reason
    assert "ray job delete" in statuses["foreign"].reason


def test_the_machines_are_asked_for_once_for_all_jobs_that_wait() -> None:
    wanted = {f"entrypoint_{kind}": 2 for kind in ("num_cpus", "num_gpus", "memory")}
    waits = {"submission_id": "a", "status": "PENDING", "metadata": {REQUEST: json.dumps(wanted)}}
    pages = {f"/api/jobs/{name}": (200, json.dumps(waits)) for name in "abc"}
    nodes = {"data": {"result": {"result": [{"state": "ALIVE", "resources_total": {"CPU": 1}}]}}}
    pages["/api/v0/nodes"] = (200, json.dumps(nodes))
    asked: list[str] = []
    with served(pages, asked) as address:
        statuses = RayEngine(address).statuses([JobRef(name=name) for name in "abc"])
    assert [statuses[name].state for name in "abc"] == [JobState.WAITING] * 3
    assert "cluster has none" in statuses["c"].reason
    assert asked.count("/api/v0/nodes") == 1


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("Task was killed due to the node running low on memory: OutOfMemoryError", "MEMORY_MIB"),
        ("Job supervisor actor died because its node has died", "was lost"),
        ("The actor died because its node was preempted", "was taken away"),
        ("Job entrypoint command failed with exit code 1", ""),
    ],
)
def test_last_words_have_a_remedy(message: str, remedy: str) -> None:
    job = _Job(submission_id="a", status="FAILED", message=message)
    assert job.failure.startswith(message)
    assert remedy in job.failure
    assert (";" in job.failure) == bool(remedy)
