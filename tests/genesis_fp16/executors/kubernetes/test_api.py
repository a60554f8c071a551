"""Requests: what is sent, and how long an answer may take."""

import time

import pytest

from genesis_fp16.executors.kubernetes.api import ApiError, KubernetesApi
from genesis_fp16.executors.kubernetes.credentials import find_credentials
from tests.genesis_fp16.executors.kubernetes_cluster import KubernetesCluster

pytestmark = pytest.mark.process


@pytest.fixture
def api(cluster: KubernetesCluster) -> KubernetesApi:
    return KubernetesApi(find_credentials(cluster.config, None))


def test_a_query_is_quoted(cluster: KubernetesCluster, api: KubernetesApi) -> None:
    api.get("/api/v1/namespaces/training/pods", labelSelector="a=b,c=d")
    assert cluster.requests()[-1] == (
        "GET /api/v1/namespaces/training/pods?labelSelector=a%3Db%2Cc%3Dd"
    )


def test_the_whole_request_has_one_deadline(cluster: KubernetesCluster) -> None:
    """A server that sends a byte now and then keeps every single read alive."""
    api = KubernetesApi(find_credentials(cluster.config, None), 1.0)
    cluster.fault(drip=0.5)
    began = time.monotonic()
    with pytest.raises(ApiError, match="within 1 s"):
        api.get("/version")
    assert time.monotonic() - began < 20.0, "the answer would take 35 s"


def test_a_certificate_of_another_is_refused(
    cluster: KubernetesCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    impostor = KubernetesCluster(tmp_path_factory.mktemp("other"))
    try:
        text = cluster.config.read_text().replace(str(cluster.port), str(impostor.port))
        impostor.config.write_text(text)
        with pytest.raises(ApiError, match="does not trust") as caught:
            KubernetesApi(find_credentials(impostor.config, None)).get("/version")
        assert not caught.value.temporary
        assert impostor.requests() == [], "it has seen no token"
    finally:
        impostor.close()


def test_a_wrong_token_is_not_shown(cluster: KubernetesCluster) -> None:
    config = cluster.config.with_name("wrong-token.json")
    config.write_text(cluster.config.read_text().replace("a-token-of-the-tests", "secret-one"))
    with pytest.raises(ApiError, match="with 401") as caught:
        KubernetesApi(find_credentials(config, None)).get("/version")
    assert "secret-one" not in str(caught.value)
