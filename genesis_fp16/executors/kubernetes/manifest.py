"""The Job of one attempt, as Kubernetes takes it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genesis_fp16.executors.remote import ENGINE_LOG, JobRequest
from genesis_fp16.settings.kubernetes import KubernetesSettings

PREFIX = "genesis-fp16"
MANAGED_BY = "app.kubernetes.io/managed-by"
JOB_LABEL = f"{PREFIX}/job"
SELECTOR = f"{MANAGED_BY}={PREFIX}"
RECORDING_SECONDS = 5  # for the launcher to write the result, after the worker's own deadline
KEEP_SECONDS = 3600  # an ended Job can be looked at; its result is on the volume
# The launcher's program takes over the shell's process, so that SIGTERM reaches it.
_REDIRECT = 'exec "$@" >>"$0" 2>&1'


def job_manifest(
    job: JobRequest, settings: KubernetesSettings, home: Path | None, namespace: str
) -> dict[str, Any]:
    """The Job that runs *job* once, on a volume that is mounted at *home*; None for no volume.

    Kubernetes must start nothing a second time: no retry, and no second pod while the first one
    may still be alive. The daemon starts the next attempt, as another Job.
    """
    labels = {
        "app.kubernetes.io/name": f"{PREFIX}-run",  # not the daemon's: its Service selects that
        MANAGED_BY: PREFIX,
        JOB_LABEL: job.name,
        **{f"{PREFIX}/{key}": value.strip("-_.") for key, value in job.labels.items()},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name, "namespace": namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                # Says in the Job's condition that the node was drained or the pod preempted.
                "rules": [
                    {
                        "action": "FailJob",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    }
                ]
            },
            "ttlSecondsAfterFinished": KEEP_SECONDS,
            "template": {
                "metadata": {"labels": labels},
                "spec": _merged(_pod(job, settings, home), _extra(settings)),
            },
        },
    }


def _pod(job: JobRequest, settings: KubernetesSettings, home: Path | None) -> dict[str, Any]:
    user, group = os.getuid(), os.getgid()  # the same as the daemon's, on the same files
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(job.stop_seconds) + RECORDING_SECONDS,
        "securityContext": {
            "runAsUser": user,
            "runAsGroup": group,
            "runAsNonRoot": user != 0,
            "fsGroup": group,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job, settings, home)],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    if home is not None:
        claim = {"claimName": settings.kubernetes_volume_claim}
        pod["volumes"].insert(0, {"name": "home", "persistentVolumeClaim": claim})
    if settings.kubernetes_service_account:
        pod["serviceAccountName"] = settings.kubernetes_service_account
    if job.resources.minutes is not None:
        # Of the pod, not of the Job: that one would count the time in the queue as well.
        pod["activeDeadlineSeconds"] = job.resources.minutes * 60
    if job.resources.gpus:
        pod["tolerations"] = [
            {
                "key": settings.kubernetes_gpu_resource,
                "operator": "Exists",
                "effect": "NoSchedule",
            }
        ]
    if job.processes > 1:  # ranks share tensors there; a container's default is 64 MiB
        pod["volumes"].append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
    return pod


def _container(job: JobRequest, settings: KubernetesSettings, home: Path | None) -> dict[str, Any]:
    requests: dict[str, str] = {"cpu": str(job.resources.cpus)}
    limits: dict[str, str] = {}
    if job.resources.memory_mib is not None:
        requests["memory"] = limits["memory"] = f"{job.resources.memory_mib}Mi"
    if job.resources.gpus:
        limits[settings.kubernetes_gpu_resource] = str(job.resources.gpus)
    mounts = [{"name": "scratch", "mountPath": "/tmp"}]  # noqa: S108  # of the container
    if home is not None:
        volume = {"name": "home", "mountPath": str(home)}
        if settings.kubernetes_volume_folder:
            volume["subPath"] = settings.kubernetes_volume_folder
        mounts.insert(0, volume)
    if job.processes > 1:
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108
    container: dict[str, Any] = {
        "name": "worker",
        "image": settings.kubernetes_image,
        "command": list(job.command),
        "resources": {"requests": requests, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if job.folder is not None:
        log = str(job.folder / ENGINE_LOG)
        container["command"] = ["/bin/sh", "-c", _REDIRECT, log, *job.command]
    if settings.kubernetes_secret:
        container["envFrom"] = [{"secretRef": {"name": settings.kubernetes_secret}}]
    return container


def _extra(settings: KubernetesSettings) -> dict[str, Any]:
    text = settings.kubernetes_pod
    return dict(json.loads(text)) if text else {}


def _merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """*base* with *extra* in it: mappings are merged, lists appended, other values replaced."""
    merged = dict(base)
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        elif isinstance(value, list) and isinstance(merged.get(key), list):
            merged[key] = [*merged[key], *value]
        else:
            merged[key] = value
    return merged
