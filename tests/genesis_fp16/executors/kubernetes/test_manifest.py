"""The Job, held to Kubernetes' own schemas and to what the daemon needs of it."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genesis_fp16.executors.kubernetes.manifest import RECORDING_SECONDS, job_manifest
from genesis_fp16.executors.remote import JobRequest, Resources
from genesis_fp16.settings.kubernetes import KubernetesSettings

SETTINGS = KubernetesSettings(kubernetes_image="image:1", kubernetes_volume_claim="home")
FOLDER = Path("/shared/runs/pendulum/r1/attempts/1")


def _job(resources: Resources | None = None, processes: int = 1) -> JobRequest:
    return JobRequest(
        name="genesis-pendulum-r1-1-0123abcd",
        command=("/opt/python", "-P", "-m", "module", "spec.json"),
        folder=FOLDER,
        resources=resources or Resources(),
        processes=processes,
        stop_seconds=7.5,
        labels={"agent": "pendulum-", "run": "r1", "attempt": "1", "incarnation": "0123abcd"},
    )


def _manifest(job: JobRequest | None = None, **settings: Any) -> dict[str, Any]:
    return job_manifest(
        job or _job(), SETTINGS.model_copy(update=settings), Path("/shared"), "training"
    )


def _pod(manifest: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return pod


FULL = _manifest(_job(Resources(cpus=4, gpus=2, memory_mib=8192, minutes=90), processes=2))


@pytest.mark.parametrize("version", ["1.31", "1.37"])
@pytest.mark.parametrize("manifest", [_manifest(), FULL], ids=["plain", "full"])
def test_kubernetes_schema_accepts_it(manifest: dict[str, Any], version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="the extra 'deploy' has it")
    validator.validate(manifest, version, strict=True)


def test_without_a_shared_folder_there_is_no_volume_and_a_secret_has_the_keys() -> None:
    settings = SETTINGS.model_copy(update={"kubernetes_secret": "bucket-keys"})
    manifest = job_manifest(replace(_job(), folder=None), settings, None, "training")
    [container] = _pod(manifest)["containers"]
    assert [volume["name"] for volume in _pod(manifest)["volumes"]] == ["scratch"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]
    assert container["envFrom"] == [{"secretRef": {"name": "bucket-keys"}}]
    assert container["command"][0] == "/opt/python", "its output is the pod's own log"
    validator = pytest.importorskip("kubernetes_validate", reason="the extra 'deploy' has it")
    validator.validate(manifest, "1.31", strict=True)


def test_kubernetes_starts_nothing_twice() -> None:
    spec = _manifest()["spec"]
    assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (0, "Failed")
    assert (spec["parallelism"], spec["completions"]) == (1, 1)
    assert {rule["action"] for rule in spec["podFailurePolicy"]["rules"]} == {"FailJob"}
    assert _pod(_manifest())["restartPolicy"] == "Never"


def test_a_stop_has_time_for_the_checkpoint_and_the_result() -> None:
    assert _pod(_manifest())["terminationGracePeriodSeconds"] == 8 + RECORDING_SECONDS


def test_labels_tell_the_attempt() -> None:
    manifest = _manifest()
    labels = manifest["metadata"]["labels"]
    assert labels == manifest["spec"]["template"]["metadata"]["labels"]
    assert labels["genesis-fp16/job"] == "genesis-pendulum-r1-1-0123abcd"
    assert labels["genesis-fp16/agent"] == "pendulum", "a label ends in a letter or a digit"
    assert labels["genesis-fp16/attempt"] == "1"
    assert labels["app.kubernetes.io/name"] != "genesis-fp16", "the Service would select it"


def test_resources_are_asked_for() -> None:
    [container] = _pod(FULL)["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "4", "memory": "8192Mi"},
        "limits": {"memory": "8192Mi", "nvidia.com/gpu": "2"},
    }
    assert _pod(FULL)["activeDeadlineSeconds"] == 90 * 60
    assert "activeDeadlineSeconds" not in FULL["spec"], "it would count the time in the queue"
    assert [toleration["key"] for toleration in _pod(FULL)["tolerations"]] == ["nvidia.com/gpu"]
    [plain] = _pod(_manifest())["containers"]
    assert plain["resources"] == {"requests": {"cpu": "1"}, "limits": {}}
    assert not {"tolerations", "activeDeadlineSeconds"} & _pod(_manifest()).keys()


def test_ranks_have_shared_memory() -> None:
    def mounts(manifest: dict[str, Any]) -> set[str]:
        [container] = _pod(manifest)["containers"]
        return {mount["mountPath"] for mount in container["volumeMounts"]}

    assert mounts(FULL) - mounts(_manifest()) == {"/dev/shm"}


def test_the_volume_is_mounted_at_the_home() -> None:
    [container] = _pod(_manifest(kubernetes_volume_folder="genesis/home"))["containers"]
    assert {"name": "home", "mountPath": "/shared", "subPath": "genesis/home"} in container[
        "volumeMounts"
    ]
    assert container["command"][3] == str(FOLDER / "engine.log")
    assert container["command"][4:] == ["/opt/python", "-P", "-m", "module", "spec.json"]


def test_the_pod_may_do_little() -> None:
    pod = _pod(_manifest())
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsUser"] == os.getuid(), "the daemon reads its files"
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_an_operator_adds_to_the_pod() -> None:
    extra = {
        "nodeSelector": {"gpu": "h200"},
        "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}},
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    pod = _pod(_manifest(kubernetes_pod=json.dumps(extra)))
    assert pod["nodeSelector"] == {"gpu": "h200"}
    assert pod["securityContext"]["seccompProfile"]["type"] == "Localhost"
    assert pod["securityContext"]["fsGroup"] == os.getgid(), "the rest stays"
    assert [volume["name"] for volume in pod["volumes"]] == ["home", "scratch", "data"]
