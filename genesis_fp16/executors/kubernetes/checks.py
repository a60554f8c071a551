"""What a cluster lacks before the first run is lost to it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from genesis_fp16.executors.kubernetes.api import ApiError, KubernetesApi
from genesis_fp16.executors.kubernetes.manifest import job_manifest
from genesis_fp16.executors.remote import EngineError, Finding, JobRequest, Resources
from genesis_fp16.settings.kubernetes import KubernetesSettings

OLDEST = (1, 29)  # podReplacementPolicy is on by default since then
CLOCK_SECONDS = 5.0
RIGHTS = (  # group, resource, verbs; deploy/kubernetes/components/kubernetes-executor grants them
    ("batch", "jobs", ("create", "get", "list", "delete")),
    ("", "pods", ("list", "deletecollection")),
    ("", "events", ("list",)),
    ("", "persistentvolumeclaims", ("get",)),
    ("coordination.k8s.io", "leases", ("create", "get", "update")),
)
_ROLE = "deploy/kubernetes/components/kubernetes-executor/role.yaml"


def check_cluster(
    api: KubernetesApi, settings: KubernetesSettings, home: Path | None, namespace: str
) -> list[Finding]:
    """Check version, clock, rights, volume, and whether a Job as ours would be accepted."""
    if lacks := missing_settings(settings, home):
        return [Finding(ok=False, what="settings for Kubernetes are missing", remedy=lacks)]
    asked_at = time.time()
    try:
        version = api.get("/version")
    except EngineError as error:
        return [Finding(ok=False, what=f"no answer from {api.address}", remedy=str(error))]
    findings = [_version(api, version.body), _clock(version.date, asked_at)]
    for check in (_rights, _trial) if home is None else (_rights, _volume, _trial):
        try:
            findings += check(api, settings, home, namespace)
        except EngineError as error:
            findings.append(
                Finding(ok=False, what=f"a check was refused in {namespace}", remedy=str(error))
            )
    return findings


def missing_settings(settings: KubernetesSettings, home: Path | None) -> str:
    """The settings without which no Job can be made, and the remedy; empty if all are there.

    Without a *home* that pods share, no volume is needed.
    """
    needed = {"GENESIS_KUBERNETES_IMAGE": settings.kubernetes_image}
    if home is not None:
        needed["GENESIS_KUBERNETES_VOLUME_CLAIM"] = settings.kubernetes_volume_claim
    missing = " and ".join(name for name, value in needed.items() if not value)
    return f"{missing} must be set for the kubernetes executor" if missing else ""


def _version(api: KubernetesApi, body: Mapping[str, Any]) -> Finding:
    numbers = [re.sub(r"\D.*", "", str(body.get(key, ""))) for key in ("major", "minor")]
    what = f"kubernetes {body.get('gitVersion', 'of unknown version')} at {api.address}"
    if not all(numbers) or tuple(map(int, numbers)) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return Finding(
            ok=False,
            what=what,
            remedy=f"use {oldest} or later: an older one may start a second pod of an attempt "
            "while the first one is ending",
        )
    return Finding(ok=True, what=what)


def _clock(date: str, asked_at: float) -> Finding:
    """Compare clocks: the server's *date* should lie between the question and its answer.

    A slow answer does not count as a wrong clock. *asked_at* is this machine's Unix time of the
    question.
    """
    try:
        server = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return Finding(ok=True, what="the API server does not tell its time")
    difference = min(max(server, asked_at), time.time()) - server
    if abs(difference) > CLOCK_SECONDS:
        return Finding(
            ok=False,
            what=f"this machine's clock is {difference:+.0f} s off the API server's",
            remedy="synchronise the clocks, for example with chrony",
        )
    return Finding(ok=True, what="this machine's clock agrees with the API server's")


def _rights(
    api: KubernetesApi, _settings: KubernetesSettings, _home: Path | None, namespace: str
) -> Iterator[Finding]:
    missing = []
    for group, resource, verbs in RIGHTS:
        for verb in verbs:
            attributes = {"namespace": namespace, "group": group, "resource": resource}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {**attributes, "verb": verb}},
            }
            path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            status = api.post(path, review).body.get("status") or {}
            if not status.get("allowed"):
                missing.append(f"{verb} {resource}")
    if missing:
        yield Finding(
            ok=False,
            what=f"{api.credentials.source} may not in {namespace}: {', '.join(missing)}",
            remedy=f"bind the Role in {_ROLE} to it",
        )
    else:
        yield Finding(ok=True, what=f"{api.credentials.source} has the rights in {namespace}")


def _volume(
    api: KubernetesApi, settings: KubernetesSettings, _home: Path | None, namespace: str
) -> Iterator[Finding]:
    name = settings.kubernetes_volume_claim
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
    try:
        claim = api.get(path).body
    except ApiError as error:
        if error.status != 404:
            raise
        yield Finding(
            ok=False,
            what=f"{namespace} has no PersistentVolumeClaim {name}",
            remedy="create it, or correct GENESIS_KUBERNETES_VOLUME_CLAIM",
        )
        return
    phase = (claim.get("status") or {}).get("phase")
    modes = (claim.get("spec") or {}).get("accessModes") or []
    what = f"PersistentVolumeClaim {name}: {phase}, {', '.join(modes)}"
    if phase not in ("Bound", "Pending"):
        yield Finding(ok=False, what=what, remedy=f"see `kubectl describe pvc {name}`")
    elif "ReadWriteMany" not in modes:
        yield Finding(
            ok=False,
            what=what,
            remedy="use ReadWriteMany: pods on other nodes than the daemon's cannot mount it",
        )
    else:
        yield Finding(ok=True, what=what)


def _trial(
    api: KubernetesApi, settings: KubernetesSettings, home: Path | None, namespace: str
) -> Iterator[Finding]:
    """Have the API server accept a Job without keeping it: quota, admission and schema speak."""
    trial = JobRequest(
        name="genesis-check-0-0-00000000",
        command=("true",),
        folder=home,
        resources=Resources(),
    )
    manifest = job_manifest(trial, settings, home, namespace)
    try:
        answer = api.post(f"/apis/batch/v1/namespaces/{namespace}/jobs", manifest, dryRun="All")
    except ApiError as error:
        if error.status == 409:
            yield Finding(ok=True, what=f"a Job is accepted in {namespace}")
            return
        yield Finding(ok=False, what=f"a Job is refused in {namespace}", remedy=str(error))
        return
    if answer.warnings:
        yield Finding(
            ok=False,
            what=f"a Job is accepted in {namespace}, its pod may not be",
            remedy="; ".join(answer.warnings),
        )
    else:
        yield Finding(ok=True, what=f"a Job is accepted in {namespace}")
