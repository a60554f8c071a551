"""The Lease: one daemon submits for a volume."""

from pathlib import Path

import pytest

from genesis_fp16.executors.kubernetes.api import KubernetesApi
from genesis_fp16.executors.kubernetes.credentials import find_credentials
from genesis_fp16.executors.kubernetes.lease import (
    LEASE_SECONDS,
    RENEW_SECONDS,
    VolumeLease,
    lease_name,
)
from genesis_fp16.executors.remote import EngineError
from tests.genesis_fp16.executors.kubernetes_cluster import NAMESPACE, KubernetesCluster

pytestmark = pytest.mark.process


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Daemons:
    """Daemons on several hosts that use one volume; all read one clock."""

    def __init__(self, cluster: KubernetesCluster, claim: str) -> None:
        self.cluster, self.clock = cluster, Clock()
        self.settings = cluster.settings(kubernetes_volume_claim=claim)

    def lease(self, host: str) -> VolumeLease:
        api = KubernetesApi(find_credentials(self.cluster.config, None))
        return VolumeLease(api, NAMESPACE, self.settings, host, self.clock)

    def spec(self) -> dict[str, object]:
        name = lease_name(self.settings)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{name}"
        spec: dict[str, object] = self.cluster.ask("GET", path)["spec"]
        return spec


@pytest.fixture
def daemons(cluster: KubernetesCluster, tmp_path: Path) -> Daemons:
    return Daemons(cluster, f"volume-{tmp_path.name[-20:].replace('_', '-')}")


def test_the_second_daemon_is_told_who_the_first_is(daemons: Daemons) -> None:
    first, second = daemons.lease("node-a"), daemons.lease("node-b")
    first.hold()
    for _ in range(3):
        daemons.clock.seconds += RENEW_SECONDS
        first.hold()
        with pytest.raises(EngineError, match="node-a holds") as caught:
            second.hold()
        assert caught.value.temporary
    assert daemons.spec()["holderIdentity"] == "node-a"


def test_a_dead_daemon_is_followed_after_the_lease_has_run_out(daemons: Daemons) -> None:
    first, second = daemons.lease("node-a"), daemons.lease("node-b")
    first.hold()
    with pytest.raises(EngineError):
        second.hold()
    daemons.clock.seconds += LEASE_SECONDS - 1
    with pytest.raises(EngineError):
        second.hold()
    daemons.clock.seconds += 2
    second.hold()
    assert (daemons.spec()["holderIdentity"], daemons.spec()["leaseTransitions"]) == ("node-b", 1)
    with pytest.raises(EngineError, match="node-b"):
        first.hold()  # it was suspended, say


def test_a_daemon_that_ends_gives_it_back(daemons: Daemons) -> None:
    first, second = daemons.lease("node-a"), daemons.lease("node-b")
    first.hold()
    first.release()
    second.hold()
    first.release()  # it is another's now
    assert daemons.spec()["holderIdentity"] == "node-b"


def test_a_restart_on_the_same_host_goes_on_at_once(daemons: Daemons) -> None:
    daemons.lease("node-a").hold()
    daemons.lease("node-a").hold()
    assert daemons.spec()["leaseTransitions"] == 0


def test_a_command_on_the_daemons_host_does_not_end_its_lease(daemons: Daemons) -> None:
    daemons.lease("node-a").hold()
    command = daemons.lease("node-a")
    command.hold()
    command.release()
    assert daemons.spec()["holderIdentity"] == "node-a"


def test_two_at_the_same_moment_do_not_both_get_it(daemons: Daemons) -> None:
    """Both have read the same free Lease; the resource version lets one of them write."""
    lease = daemons.lease("node-a")
    lease.hold()
    lease.release()
    first, second = daemons.lease("node-b"), daemons.lease("node-c")
    api = second._api
    read = api.get

    def overtaken(path: str, **query: str) -> object:
        answer = read(path, **query)
        first.hold()
        return answer

    api.get = overtaken  # type: ignore[assignment]
    with pytest.raises(EngineError, match="409"):
        second.hold()
    assert daemons.spec()["holderIdentity"] == "node-b"


def test_a_renewal_is_not_sent_each_time(daemons: Daemons) -> None:
    lease = daemons.lease("node-a")
    lease.hold()
    daemons.cluster.requests()
    lease.hold()
    lease.renew()
    assert daemons.cluster.requests() == []
    daemons.clock.seconds += RENEW_SECONDS
    lease.renew()
    assert [request.split()[0] for request in daemons.cluster.requests()] == ["GET", "PUT"]


def test_who_does_not_hold_it_renews_nothing(daemons: Daemons) -> None:
    lease = daemons.lease("node-a")
    daemons.cluster.requests()
    lease.renew()
    lease.release()
    assert daemons.cluster.requests() == []


def test_each_volume_and_folder_has_its_own(cluster: KubernetesCluster) -> None:
    names = [
        lease_name(cluster.settings(kubernetes_volume_folder=folder)) for folder in ("", "a/B_c")
    ]
    assert names == ["genesis-fp16.home", "genesis-fp16.home.a.b-c"]
