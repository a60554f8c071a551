"""The engine against an API server on a socket that runs the jobs' commands as processes."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from genesis_fp16.executors.kubernetes import KubernetesEngine
from genesis_fp16.executors.remote import EngineError, JobRef, JobRequest, JobState, JobStatus
from tests.genesis_fp16.executors.kubernetes_cluster import KubernetesCluster
from tests.patience import wait_until

pytestmark = pytest.mark.process

Make = Callable[..., JobRequest]
Wait = Callable[..., JobStatus]
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.NOT_FOUND)
# Writes its pid, then waits; says on SIGTERM that it was asked to end.
PATIENT = "trap 'echo stopped >stopped; exit 75' TERM; echo $$ >pid; while :; do sleep 0.05; done"


def _submit(engine: KubernetesEngine, request: JobRequest) -> JobRef:
    return JobRef(name=request.name, id=engine.submit(request))


def test_a_command_runs_and_its_output_is_in_the_folder(
    engine: KubernetesEngine, request_of: Make, wait_for: Wait, tmp_path: Path
) -> None:
    job = _submit(engine, request_of("echo out; echo err >&2"))
    assert wait_for(job, *ENDED).state is JobState.SUCCEEDED
    assert sorted((tmp_path / "engine.log").read_text().split()) == ["err", "out"]


def test_a_command_that_fails_is_not_tried_again(
    engine: KubernetesEngine, request_of: Make, wait_for: Wait, tmp_path: Path
) -> None:
    job = _submit(engine, request_of("echo x >>count; exit 3"))
    status = wait_for(job, *ENDED)
    assert status.state is JobState.FAILED
    assert "exit code 3" in status.reason or "BackoffLimitExceeded" in status.reason
    assert (tmp_path / "count").read_text() == "x\n"


def test_a_second_submission_starts_nothing(
    engine: KubernetesEngine, request_of: Make, wait_for: Wait, tmp_path: Path
) -> None:
    request = request_of("echo x >>count")
    job = _submit(engine, request)
    assert engine.submit(request) == job.id
    assert wait_for(job, *ENDED).state is JobState.SUCCEEDED
    assert engine.submit(request) == job.id
    assert (tmp_path / "count").read_text() == "x\n"


def test_a_stop_reaches_the_command_as_sigterm(
    engine: KubernetesEngine, request_of: Make, wait_for: Wait, tmp_path: Path
) -> None:
    job = _submit(engine, request_of(PATIENT))
    wait_for(job, JobState.RUNNING)
    _wait_for_file(tmp_path / "pid")
    engine.stop(job)
    assert wait_for(job, *ENDED).state is JobState.NOT_FOUND
    assert (tmp_path / "stopped").exists()
    engine.stop(job)  # one that is gone
    engine.kill(job)


def test_a_job_that_is_stopping_still_runs(
    engine: KubernetesEngine, request_of: Make, wait_for: Wait, tmp_path: Path
) -> None:
    job = _submit(engine, request_of("trap '' TERM; echo $$ >pid; while :; do sleep 0.05; done"))
    wait_for(job, JobState.RUNNING)
    _wait_for_file(tmp_path / "pid")
    engine.stop(job)
    assert engine.statuses([job])[job.name].state is JobState.RUNNING
    engine.kill(job)
    assert wait_for(job, *ENDED).state is JobState.NOT_FOUND


def test_a_kill_ends_the_command_without_asking(
    engine: KubernetesEngine,
    cluster: KubernetesCluster,
    request_of: Make,
    wait_for: Wait,
    tmp_path: Path,
) -> None:
    job = _submit(engine, request_of(PATIENT))
    wait_for(job, JobState.RUNNING)
    _wait_for_file(tmp_path / "pid")
    engine.kill(job)
    assert wait_for(job, *ENDED).state is JobState.NOT_FOUND
    wait_until(lambda: not cluster.processes(), "its processes to end")
    assert not (tmp_path / "stopped").exists()


def test_a_kill_frees_a_job_on_a_lost_node(
    engine: KubernetesEngine,
    cluster: KubernetesCluster,
    request_of: Make,
    wait_for: Wait,
) -> None:
    job = _submit(engine, request_of("sleep 60"))
    wait_for(job, JobState.RUNNING)
    cluster.node(silent=True)
    engine.stop(job)
    assert engine.statuses([job])[job.name].state is JobState.RUNNING
    engine.kill(job)
    assert engine.statuses([job])[job.name].state is JobState.NOT_FOUND


def test_the_reason_for_waiting_is_kubernetes_own(
    engine: KubernetesEngine, cluster: KubernetesCluster, request_of: Make, tmp_path: Path
) -> None:
    many = _submit(engine, request_of("true", gpus=9))
    unknown = cluster.engine(tmp_path, kubernetes_image="registry/missing:1")
    image = _submit(unknown, request_of("true"))
    reasons = {}
    while len(reasons) < 2:
        for name, status in engine.statuses([many, image]).items():
            assert status.state is JobState.WAITING
            if "pending" not in status.reason:
                reasons[name] = status.reason
    assert reasons[many.name] == (
        "Unschedulable: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    )
    assert reasons[image.name] == ('ImagePullBackOff: Back-off pulling image "registry/missing:1"')
    for job in (many, image):
        engine.kill(job)
        assert engine.statuses([job])[job.name].state is JobState.NOT_FOUND
    cluster.node(gpus=9)  # what is gone does not start when there is room


def test_a_job_without_pod_says_what_forbids_it(
    engine: KubernetesEngine, cluster: KubernetesCluster, request_of: Make
) -> None:
    job = _submit(engine, request_of("true", gpus=9))
    cluster.job("refuse_pods", job.name, message="exceeded quota: training")
    status = engine.statuses([job])[job.name]
    assert status == JobStatus(
        state=JobState.WAITING, reason="FailedCreate: exceeded quota: training"
    )
    cluster.set(denied=["list events"])
    assert engine.statuses([job])[job.name].state is JobState.WAITING
    engine.kill(job)


def test_a_drained_node_is_told_from_a_crash(
    engine: KubernetesEngine,
    cluster: KubernetesCluster,
    request_of: Make,
    wait_for: Wait,
    tmp_path: Path,
) -> None:
    job = _submit(engine, request_of(PATIENT))
    wait_for(job, JobState.RUNNING)
    _wait_for_file(tmp_path / "pid")
    cluster.job("evict", job.name)
    status = wait_for(job, *ENDED)
    assert status.state is JobState.FAILED
    assert "DisruptionTarget" in status.reason
    assert (tmp_path / "stopped").exists()


def test_a_second_pod_keeps_the_job_alive(
    engine: KubernetesEngine, cluster: KubernetesCluster, request_of: Make, wait_for: Wait
) -> None:
    """The Job counts a failure while another pod runs: nothing has failed yet."""
    job = _submit(engine, request_of("mkdir first 2>/dev/null && sleep 60; exit 1"))
    wait_for(job, JobState.RUNNING)
    cluster.job("duplicate", job.name)
    wait_until(
        lambda: cluster.ask("GET", f"{_jobs()}/{job.name}")["status"].get("failed"),
        "the Job to count a failure",
    )
    assert engine.statuses([job])[job.name].state is JobState.RUNNING
    engine.kill(job)


def test_a_job_of_the_same_name_is_another_one(
    engine: KubernetesEngine, request_of: Make, wait_for: Wait
) -> None:
    request = request_of("sleep 60")
    first = _submit(engine, request)
    engine.kill(first)
    wait_for(first, JobState.NOT_FOUND)
    second = _submit(engine, request)
    wait_for(second, JobState.RUNNING)
    assert engine.statuses([first])[first.name].state is JobState.NOT_FOUND
    engine.stop(first)
    assert engine.statuses([second])[second.name].state is JobState.RUNNING
    engine.kill(second)


def test_many_jobs_take_two_requests_a_page(
    engine: KubernetesEngine,
    cluster: KubernetesCluster,
    request_of: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("genesis_fp16.executors.kubernetes.engine._PAGE", "2")
    jobs = [_submit(engine, request_of("sleep 60")) for _ in range(3)]
    assert {status.state for status in engine.statuses(jobs).values()} <= {
        JobState.WAITING,
        JobState.RUNNING,
    }
    cluster.requests()
    monkeypatch.undo()
    engine.statuses(jobs)
    assert len(cluster.requests()) == 2
    for job in jobs:
        engine.kill(job)


# An API server that is down, slow, or lies


FAULTS = {
    "500": {"status": 500},
    "429": {"status": 429},
    "410": {"status": 410},
    "cut off": {"cut": True},
    "html": {"html": True},
    "slow": {"slow": 2.0},
    "a byte at a time": {"drip": 0.05},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_answer_that_is_none_means_unknown(
    engine: KubernetesEngine,
    cluster: KubernetesCluster,
    request_of: Make,
    fault: dict[str, object],
    tmp_path: Path,
) -> None:
    job = _submit(engine, request_of("sleep 60"))
    hurried = cluster.engine(tmp_path, seconds=0.5)
    cluster.fault(**fault)
    status = hurried.statuses([job])[job.name]
    assert status.state is JobState.UNKNOWN
    assert str(cluster.port) in status.reason
    for ask in (hurried.stop, hurried.kill):
        with pytest.raises(EngineError, match=str(cluster.port)) as caught:
            ask(job)
        assert caught.value.temporary
    cluster.behave()
    engine.kill(job)
    assert engine.statuses([job])[job.name].state is JobState.NOT_FOUND


@pytest.mark.parametrize("fault", [{"cut": True}, {"drip": 0.05}], ids=["cut off", "late"])
def test_a_submission_whose_answer_was_lost_is_found_again(
    engine: KubernetesEngine,
    cluster: KubernetesCluster,
    request_of: Make,
    tmp_path: Path,
    fault: dict[str, object],
) -> None:
    hurried = cluster.engine(tmp_path, seconds=2.0)
    engine.submit(request_of("true"))  # the Lease is held
    request = request_of("echo x >>count")
    cluster.fault(count=1, method="POST", **fault)
    with pytest.raises(EngineError) as caught:
        hurried.submit(request)
    assert caught.value.temporary
    job = _submit(engine, request)
    wait_until(lambda: engine.statuses([job])[job.name].state in ENDED, "the job to end")
    assert (tmp_path / "count").read_text() == "x\n"


def test_a_server_that_forgets_or_lies_is_reported_as_it_is(
    engine: KubernetesEngine, cluster: KubernetesCluster, request_of: Make, wait_for: Wait
) -> None:
    """The engine says what it was told; the result file decides."""
    forgotten, praised = (_submit(engine, request_of("sleep 60")) for _ in range(2))
    for job in (forgotten, praised):
        wait_for(job, JobState.RUNNING)
    cluster.job("forget", forgotten.name)
    cluster.job("claim", praised.name, condition="Complete")
    states = {name: status.state for name, status in engine.statuses([forgotten, praised]).items()}
    assert states == {forgotten.name: JobState.NOT_FOUND, praised.name: JobState.SUCCEEDED}


def test_nobody_at_the_address(
    cluster: KubernetesCluster, tmp_path: Path, request_of: Make
) -> None:
    config = tmp_path / "config"
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        port = str(closed.getsockname()[1])
    config.write_text(cluster.config.read_text().replace(str(cluster.port), port))
    engine = cluster.engine(tmp_path, kubernetes_config=config)
    with pytest.raises(EngineError, match="does not answer") as caught:
        engine.submit(request_of("true"))
    assert caught.value.temporary
    assert engine.statuses([JobRef(name="x")])["x"].state is JobState.UNKNOWN


REFUSALS = {
    "forbidden": (403, "jobs is forbidden: cannot create", True, "grant this verb"),
    "quota": (403, 'jobs "x" is forbidden: exceeded quota: q', True, "exceeded quota"),
    "unauthorized": (401, "Unauthorized", True, "renew the token"),
    "invalid": (422, "Job is invalid: spec", False, "spec"),
    "full": (429, "too many requests", True, "too many"),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_says_whether_waiting_helps(
    engine: KubernetesEngine,
    cluster: KubernetesCluster,
    request_of: Make,
    refusal: tuple[int, str, bool, str],
) -> None:
    status, message, temporary, said = refusal
    engine.submit(request_of("true"))
    cluster.fault(status=status, message=message)
    with pytest.raises(EngineError, match=said) as caught:
        engine.submit(request_of("true"))
    assert caught.value.temporary is temporary


def test_a_missing_verb_is_named(
    engine: KubernetesEngine, cluster: KubernetesCluster, request_of: Make
) -> None:
    job = _submit(engine, request_of("sleep 60"))
    cluster.set(denied=["list pods", "delete jobs"])
    status = engine.statuses([job])[job.name]
    assert status.state is JobState.UNKNOWN
    assert 'cannot list resource "pods"' in status.reason
    with pytest.raises(EngineError, match=r'delete resource "jobs".*role\.yaml'):
        engine.stop(job)
    cluster.behave()
    engine.kill(job)


def test_without_image_and_volume_no_job_is_made(
    cluster: KubernetesCluster, tmp_path: Path, request_of: Make
) -> None:
    engine = cluster.engine(tmp_path, kubernetes_image="", kubernetes_volume_claim="")
    said = "GENESIS_KUBERNETES_IMAGE and GENESIS_KUBERNETES_VOLUME_CLAIM must be set"
    with pytest.raises(EngineError, match=said) as caught:
        engine.submit(request_of("true"))
    assert not caught.value.temporary
    [finding] = engine.check()
    assert (finding.ok, said in finding.remedy) == (False, True)


def _jobs() -> str:
    return "/apis/batch/v1/namespaces/training/jobs"


def _wait_for_file(path: Path) -> None:
    wait_until(path.exists, str(path))
