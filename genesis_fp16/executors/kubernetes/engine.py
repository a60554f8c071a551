"""Kubernetes as an engine: one Job for each attempt, in one namespace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from genesis_fp16.executors.kubernetes.api import REQUEST_SECONDS, ApiError, KubernetesApi
from genesis_fp16.executors.kubernetes.checks import check_cluster, missing_settings
from genesis_fp16.executors.kubernetes.credentials import SERVICE_ACCOUNT, find_credentials
from genesis_fp16.executors.kubernetes.lease import VolumeLease
from genesis_fp16.executors.kubernetes.manifest import JOB_LABEL, SELECTOR, job_manifest
from genesis_fp16.executors.kubernetes.status import job_status
from genesis_fp16.executors.remote import (
    EngineError,
    Finding,
    JobRef,
    JobRequest,
    JobState,
    JobStatus,
)
from genesis_fp16.settings.kubernetes import KubernetesSettings

_PAGE = "500"  # objects of one answer
_EVENTS = 20  # of one Job that has no pod

log = structlog.get_logger()


class KubernetesEngine:
    """Creates, watches and deletes Jobs in one namespace.

    Nothing is read or connected before the first call, so that a cluster that is down, or
    credentials that are missing, cost the runs of the moment and not the daemon.

    Args:
        settings: Namespace, image, volume and what else a pod needs.
        home: The daemon's home; the volume is mounted there in every pod. None if the pods share
            no folder with the daemon; then the Lease of the volume is not taken either.
        service_account: Folder in which a pod finds its service account.
        seconds: Longest time for one request.
    """

    name = "kubernetes"

    def __init__(
        self,
        settings: KubernetesSettings,
        home: Path | None,
        service_account: Path = SERVICE_ACCOUNT,
        seconds: float = REQUEST_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._settings = settings
        self._home = None if home is None else home.absolute()
        self._service_account = service_account
        self._api: KubernetesApi | None = None
        self._source = ""  # of the credentials, as last logged
        self._lease: VolumeLease | None = None

    def submit(self, job: JobRequest) -> str:
        """Create the Job of *job*; return its uid, also if it exists already.

        Raises:
            EngineError: The API server refused or did not answer, or another daemon holds the
                Lease of the volume.
        """
        api = self._connect()
        if lacks := missing_settings(self._settings, self._home):
            raise EngineError(lacks, temporary=False)
        manifest = job_manifest(job, self._settings, self._home, self._namespace(api))
        try:
            if self._home is not None:
                self._lease_of(api).hold()
        except EngineError as error:
            self._forget_credentials(error)
            raise
        try:
            created = api.post(self._jobs(api), manifest).body
        except ApiError as error:
            self._forget_credentials(error)
            if error.status != 409:
                raise
            created = api.get(f"{self._jobs(api)}/{job.name}").body  # a 404 now: it ended just then
        return _uid(created)

    def statuses(self, jobs: Sequence[JobRef]) -> Mapping[str, JobStatus]:
        """Status of each of *jobs*, from one list of Jobs and one of pods."""
        try:
            api = self._connect()
            manifests = {
                manifest["metadata"]["name"]: manifest
                for manifest in self._list(api, self._jobs(api))
            }
            pods = defaultdict(list)
            for pod in self._list(api, self._pods(api)):
                pods[pod["metadata"].get("labels", {}).get(JOB_LABEL)].append(pod)
            if self._home is not None:
                with suppress(EngineError):  # another daemon's Lease forbids submissions alone
                    self._lease_of(api).renew()
            return {job.name: self._status(api, job, manifests, pods[job.name]) for job in jobs}
        except EngineError as error:
            self._forget_credentials(error)
            return _all_unknown(jobs, str(error))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            reason = f"the Kubernetes API server sent an object that lacks or distorts {error}"
            return _all_unknown(jobs, reason)

    def stop(self, job: JobRef) -> None:
        """Delete the Job and let its pod end: SIGTERM, then the pod's grace period.

        Raises:
            EngineError: The API server refused or did not answer.
        """
        self._delete(self._connect(), job, "Foreground")

    def kill(self, job: JobRef) -> None:
        """Delete the pod without any grace, also on a node that is lost, and the Job.

        Raises:
            EngineError: The API server refused or did not answer.
        """
        api = self._connect()
        selector = f"{SELECTOR},{JOB_LABEL}={job.name}"
        try:  # before the Job: its deletion alone would give the pod its grace period
            api.delete(self._pods(api), {"gracePeriodSeconds": 0}, labelSelector=selector)
        except ApiError as error:
            self._forget_credentials(error)
            if error.status != 404:
                raise
        self._delete(api, job, "Background")

    def check(self) -> list[Finding]:
        """Credentials, settings, version, clock, rights, volume, and a Job that is not kept."""
        try:
            api = self._connect()
        except EngineError as error:
            return [Finding(ok=False, what="no access to Kubernetes", remedy=str(error))]
        return check_cluster(api, self._settings, self._home, self._namespace(api))

    def close(self) -> None:
        """Give the Lease back, so that the next daemon need not wait; Jobs go on."""
        if self._lease is not None:
            with suppress(EngineError):
                self._lease.release()
        self._api, self._lease = None, None

    def _connect(self) -> KubernetesApi:
        if self._api is None:
            config, context = self._settings.kubernetes_config, self._settings.kubernetes_context
            credentials = find_credentials(config, context, self._service_account)
            self._api = KubernetesApi(credentials, self._seconds)
            self._lease = None
            if credentials.source != self._source:
                log.info("kubernetes_credentials_found", source=credentials.source)
                self._source = credentials.source
        return self._api

    def _forget_credentials(self, error: EngineError) -> None:
        """Read them again before the next request, in case they were renewed."""
        if isinstance(error, ApiError):
            untrusted = error.status == 0 and not error.temporary
            if untrusted or error.status == 401:
                self._api = None

    def _lease_of(self, api: KubernetesApi) -> VolumeLease:
        if self._lease is None:
            self._lease = VolumeLease(api, self._namespace(api), self._settings)
        return self._lease

    def _namespace(self, api: KubernetesApi) -> str:
        return self._settings.kubernetes_namespace or api.credentials.namespace

    def _jobs(self, api: KubernetesApi) -> str:
        return f"/apis/batch/v1/namespaces/{self._namespace(api)}/jobs"

    def _pods(self, api: KubernetesApi) -> str:
        return f"/api/v1/namespaces/{self._namespace(api)}/pods"

    def _list(self, api: KubernetesApi, path: str) -> Iterator[dict[str, Any]]:
        query = {"labelSelector": SELECTOR, "limit": _PAGE}
        while True:
            page = api.get(path, **query).body
            yield from page["items"]
            query["continue"] = page.get("metadata", {}).get("continue") or ""
            if not query["continue"]:
                return

    def _status(
        self,
        api: KubernetesApi,
        job: JobRef,
        manifests: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
    ) -> JobStatus:
        known = manifests.get(job.name)
        if known is None or (job.id and _uid(known) != job.id):
            owned = [pod for pod in pods if not job.id or _owner(pod) == job.id]
            if any(pod.get("status", {}).get("phase") == "Running" for pod in owned):
                return JobStatus(state=JobState.RUNNING)  # its Job was deleted, it is ending
            return JobStatus(state=JobState.NOT_FOUND)
        status = job_status(known, [pod for pod in pods if _owner(pod) == _uid(known)])
        if status.state is JobState.WAITING and not pods and (why := self._why_no_pod(api, known)):
            return JobStatus(state=JobState.WAITING, reason=why)
        return status

    def _why_no_pod(self, api: KubernetesApi, job: Mapping[str, Any]) -> str:
        """The last warning about *job*, such as a quota or a security rule that forbids its pod."""
        selector = f"involvedObject.uid={_uid(job)},type=Warning"
        path = f"/api/v1/namespaces/{self._namespace(api)}/events"
        try:
            events = api.get(path, fieldSelector=selector, limit=str(_EVENTS)).body["items"]
        except EngineError:
            return ""  # it explains, no more
        if not events:
            return ""
        latest = max(events, key=lambda event: str(event.get("lastTimestamp") or ""))
        return ": ".join(str(latest[key]) for key in ("reason", "message") if latest.get(key))

    def _delete(self, api: KubernetesApi, job: JobRef, propagation: str) -> None:
        options: dict[str, Any] = {"propagationPolicy": propagation}
        if job.id:
            options["preconditions"] = {"uid": job.id}
        try:
            api.delete(f"{self._jobs(api)}/{job.name}", options)
        except ApiError as error:
            self._forget_credentials(error)
            if error.status not in (404, 409):  # gone; or another of this name took its place
                raise


def _uid(manifest: Mapping[str, Any]) -> str:
    try:
        return str(manifest["metadata"]["uid"])
    except (KeyError, TypeError) as error:
        raise EngineError(
            f"the Kubernetes API server sent a Job without a uid: {error!r}; see whether a proxy "
            "answers in its place",
            temporary=True,
        ) from error


def _owner(pod: Mapping[str, Any]) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid"))


def _all_unknown(jobs: Sequence[JobRef], reason: str) -> Mapping[str, JobStatus]:
    return {job.name: JobStatus(state=JobState.UNKNOWN, reason=reason) for job in jobs}
