"""A Lease for each volume: daemons on two machines must not both submit jobs for one home."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import structlog

from genesis_fp16.executors.kubernetes.api import ApiError, KubernetesApi
from genesis_fp16.executors.remote import EngineError
from genesis_fp16.settings.kubernetes import KubernetesSettings

LEASE_SECONDS = 15
RENEW_SECONDS = 5.0

log = structlog.get_logger()


class VolumeLease:
    """The right to submit jobs that use one folder of one volume.

    The store's lock decides which daemon serves a home. Some shared file systems do not carry
    that lock from one machine to another; the Lease holds there, because it lives in the cluster.
    Its holder is a host name, so a daemon that was restarted on the same host, or in the same pod
    of a StatefulSet, goes on at once. Two daemons of one host have the lock between them.

    A daemon that cannot reach the API server keeps what it has: nobody else can take a Lease
    from it without being seen, and it cannot submit meanwhile.

    Args:
        api: The API server.
        namespace: Namespace of the Lease.
        settings: Name the volume and the folder in it.
        holder: Identity of this daemon.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        settings: KubernetesSettings,
        holder: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.name = lease_name(settings)
        self._holder = holder or socket.gethostname()
        self._clock = clock
        self._renewed_at: float | None = None  # by this object
        self._took_it = False  # from another holder or from nobody
        self._seen: tuple[object, ...] = ()  # another's holder and renewal
        self._seen_at = 0.0

    def hold(self) -> None:
        """Take the Lease, or renew it.

        Raises:
            EngineError: Another daemon holds it, or the API server did not answer.
        """
        if self._renewed_at is not None and self._clock() - self._renewed_at < RENEW_SECONDS:
            return
        try:
            lease = dict(self._api.get(f"{self._path}/{self.name}").body)
        except ApiError as error:
            if error.status != 404:
                raise
            self._write(self._api.post, self._path, {})
            return
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") in (None, "", self._holder) or self._has_expired(spec):
            self._write(self._api.put, f"{self._path}/{self.name}", lease)
            return
        self._renewed_at = None
        raise EngineError(
            f"the daemon on {spec['holderIdentity']} holds the Lease {self.name}, and submits jobs "
            "for the same volume: stop one of the two; this one goes on "
            f"{LEASE_SECONDS} s after the other has ended",
            temporary=True,
        )

    def renew(self) -> None:
        """Renew the Lease if this daemon holds it.

        Raises:
            EngineError: See `hold`.
        """
        if self._renewed_at is not None:
            self.hold()

    def release(self) -> None:
        """Give the Lease back if this object took it.

        One that only renewed it leaves it: a command on the daemon's host does not end its Lease.

        Raises:
            EngineError: The API server refused or did not answer.
        """
        held, self._renewed_at = self._renewed_at is not None, None
        if not held or not self._took_it:
            return
        lease = dict(self._api.get(f"{self._path}/{self.name}").body)
        if (lease.get("spec") or {}).get("holderIdentity") == self._holder:
            lease["spec"] = {**lease["spec"], "holderIdentity": None}
            self._api.put(f"{self._path}/{self.name}", lease)

    def _has_expired(self, spec: dict[str, Any]) -> bool:
        """Whether its holder has not renewed it while this daemon looked on.

        Only this machine's clock counts: the holder's may be wrong.
        """
        seen = (spec.get("holderIdentity"), spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        seconds = spec.get("leaseDurationSeconds") or LEASE_SECONDS
        return self._clock() - self._seen_at > seconds

    def _write(self, send: Callable[..., object], path: str, lease: dict[str, Any]) -> None:
        """Write this daemon as the holder; the resource version forbids two at the same time."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease.get("spec") or {}
        is_mine = before.get("holderIdentity") == self._holder
        changes = int(before.get("leaseTransitions") or 0)
        spec = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": before.get("acquireTime") if is_mine else now,
            "renewTime": now,
            "leaseTransitions": changes if is_mine or not before else changes + 1,
        }
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            **lease,
            "metadata": lease.get("metadata") or {"name": self.name},
            "spec": spec,
        }
        started = self._clock()
        send(path, body)
        if not is_mine:
            self._took_it = True
            log.info("lease_taken", lease=self.name, holder=self._holder)
        self._renewed_at = started


def lease_name(settings: KubernetesSettings) -> str:
    """Name of the Lease of the volume's folder."""
    folder = settings.kubernetes_volume_folder.strip("/").replace("/", ".").replace("_", "-")
    parts = ["genesis-fp16", settings.kubernetes_volume_claim, folder.lower()]
    return ".".join(part for part in parts if part)
