"""A real slurmctld and two slurmd: the contract, a drained node, a preempted job."""

from pathlib import Path

import pytest

from genesis_fp16.executors import ExitStatus
from genesis_fp16.executors.remote import EngineError, JobRef, JobState
from genesis_fp16.executors.slurm import SlurmEngine, _status
from tests.genesis_fp16.executors.contract import EngineContract
from tests.genesis_fp16.executors.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(slurm_cluster: SlurmCluster) -> SlurmCluster:
    return slurm_cluster


class TestContract(EngineContract):
    def test_a_drained_node_is_left_and_the_run_resumes_on_the_other(
        self, attempts, cluster: SlurmCluster
    ) -> None:
        spec, handle = attempts.start(steps=10**9)
        node = cluster.node_of(handle.job)
        with cluster.drained(node):
            assert attempts.ended(handle) == ExitStatus(exit_code=75)
            reached = int((spec.run_folder / "step").read_text())
            assert reached > 0
            again = attempts.spec(spec.run_id, 2, steps=10**9)
            second = attempts.submit(again)
            steps: list[int] = []

            def resumed(event) -> bool:
                steps.extend([event.step] if event.kind == "step_stats" else [])
                return bool(steps)

            attempts.until_event(again, resumed)
            assert steps[0] == reached + 1
            assert cluster.node_of(second.job) not in ("", node)

    def test_a_preempted_job_checkpoints(self, attempts, cluster: SlurmCluster) -> None:
        spec, handle = attempts.start(steps=10**9)
        with cluster.preempted():
            assert attempts.ended(handle) == ExitStatus(exit_code=75)
        assert int((spec.run_folder / "step").read_text()) > 0

    def test_a_job_that_slurm_refuses_shows_why(self, attempts, cluster: SlurmCluster) -> None:
        attempts.executor._thread._engine = SlurmEngine("--partition=nowhere")
        handle = attempts.submit(attempts.spec())
        status = attempts.ended(handle)
        assert status.exit_code == 78
        assert "invalid partition" in status.error
        assert "GENESIS_SLURM_OPTIONS" in status.error


def test_a_missing_client_is_named(slurm_cluster, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    [finding] = SlurmEngine().check()
    assert not finding.ok
    assert "sbatch" in finding.what
    with pytest.raises(EngineError, match="slurm-client"):
        SlurmEngine().stop(JobRef(name="genesis-a"))


def test_a_wrong_option_is_found_by_the_check(slurm_cluster) -> None:
    wrong = [finding for finding in SlurmEngine("--partition=nowhere").check() if not finding.ok]
    assert "invalid partition" in wrong[0].what


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs are Slurm's commands, for output that a sound Slurm seldom writes."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def say(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    "said",
    [
        "fatal: Could not establish a configuration source",  # without slurm.conf, slurmctld down
        "error: AssocGrpSubmitJobsLimit",
    ],
)
def test_an_error_that_may_pass_is_waited_for(commands: Path, said: str) -> None:
    say(commands / "scancel", f"echo 'scancel: {said}' >&2; exit 1")
    with pytest.raises(EngineError, match=said) as caught:
        SlurmEngine().kill(JobRef(name="genesis-a"))
    assert caught.value.temporary


def test_a_program_that_cannot_be_started_is_tried_again(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(commands))
    (commands / "scancel").write_text("no program")
    (commands / "scancel").chmod(0o755)
    with pytest.raises(EngineError, match="scancel cannot") as caught:
        SlurmEngine().kill(JobRef(name="genesis-a"))
    assert caught.value.temporary


def test_a_reason_in_any_encoding_and_in_two_lines_is_read(commands: Path) -> None:
    say(commands / "squeue", "echo 'genesis-a|RUNNING|n1|n1|7'")
    say(commands / "sinfo", "printf 'n1|drained|caf\\351\\nis closed\\n'")
    [status] = SlurmEngine().statuses([JobRef(name="genesis-a")]).values()
    assert status.state is JobState.RUNNING
    assert "n1 is drained: caf" in status.leave


def test_the_check_says_that_no_node_takes_jobs_and_not_that_options_are_wrong(
    commands: Path,
) -> None:
    """Slurm says of a cluster that is drained that no node is as the job asks."""
    say(
        commands / "sinfo",
        'case "$*" in *version*) echo slurm 22.05.8;; *) echo "n1|drained|8|2000|";; esac',
    )
    say(commands / "sbatch", "echo 'allocation failure: not available' >&2; exit 1")
    for name in ("squeue", "scancel"):
        say(commands / name, "exit 0")
    version, nodes = SlurmEngine().check()
    assert version.ok
    assert (nodes.ok, nodes.what) == (False, "no node takes jobs: n1 is drained")


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("OUT_OF_MEMORY", "GENESIS_JOB_MEMORY_MIB"),
        ("PREEMPTED", "when there is room"),
        ("NODE_FAIL", "elsewhere"),
        ("TIMEOUT", "GENESIS_JOB_MINUTES"),
    ],
)
def test_last_words_have_a_remedy(state: str, remedy: str) -> None:
    status = _status(state, "(NonZeroExitCode)", "")
    assert status.state is JobState.FAILED
    assert state in status.reason
    assert remedy in status.reason
