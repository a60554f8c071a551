"""Credentials of a pod and of kubeconfigs, and what is said where they cannot be used."""

import base64
import json
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from genesis_fp16.executors.kubernetes.api import KubernetesApi
from genesis_fp16.executors.kubernetes.credentials import find_credentials
from genesis_fp16.executors.remote import EngineError
from tests.genesis_fp16.executors.kubernetes_cluster import TOKEN, KubernetesCluster

pytestmark = pytest.mark.process


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(config: object, text: str = "") -> Path:
        path = tmp_path / "config"
        path.write_text(text or json.dumps(config))
        return path

    return write


def test_a_pod_uses_its_service_account(cluster: KubernetesCluster, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(cluster.certificate.read_bytes())
    (tmp_path / "namespace").write_text("training\n")
    (tmp_path / "token").write_text("first\n")
    credentials = find_credentials(None, None, tmp_path)
    assert (credentials.host, credentials.port, credentials.namespace) == (
        "kubernetes.default.svc",
        443,
        "training",
    )
    assert credentials.bearer() == "first"
    (tmp_path / "token").write_text("second\n")
    assert credentials.bearer() == "second", "tokens rotate"
    (tmp_path / "token").unlink()
    with pytest.raises(EngineError, match="token cannot be read"):
        credentials.bearer()


def test_a_named_kubeconfig_outranks_the_pod(cluster: KubernetesCluster, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(cluster.certificate.read_bytes())
    assert find_credentials(cluster.config, None, tmp_path).port == cluster.port


def test_yaml(cluster: KubernetesCluster, write: Any) -> None:
    yaml = pytest.importorskip("yaml", reason="the extra 'kubernetes' has it")
    path = write(None, yaml.safe_dump(cluster.kubeconfig()))
    credentials = find_credentials(path, "test")
    assert credentials.namespace == "training"
    assert KubernetesApi(credentials).get("/version").body["gitVersion"]


def test_files_beside_the_kubeconfig(
    cluster: KubernetesCluster, write: Any, tmp_path: Path
) -> None:
    config = cluster.kubeconfig(tokenFile="token")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "ca.pem").write_bytes(cluster.certificate.read_bytes())
    server = config["clusters"][0]["cluster"]["server"]
    config["clusters"][0]["cluster"] = {"server": server, "certificate-authority": "ca.pem"}
    credentials = find_credentials(write(config), None)
    assert KubernetesApi(credentials).get("/version").body["gitVersion"]


def test_a_client_certificate(cluster: KubernetesCluster, write: Any, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "client.pem"
    options = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=u")
    command = ["openssl", "req", "-x509", *options, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    user = {
        "client-certificate-data": base64.b64encode(certificate.read_bytes()).decode(),
        "client-key-data": base64.b64encode(key.read_bytes()).decode(),
    }
    config = cluster.kubeconfig(**user)
    assert isinstance(find_credentials(write(config), None).tls, ssl.SSLContext)
    config["users"][0]["user"].pop("client-key-data")
    with pytest.raises(EngineError, match="cannot be used"):
        find_credentials(write(config), None)


def _change(section: str, part: str, **values: object) -> Any:
    def change(config: dict[str, Any]) -> None:
        config[section][0][part].update(values)

    return change


WRONG = {
    "skips verification": (
        _change("clusters", "cluster", **{"insecure-skip-tls-verify": True}),
        "insecure-skip-tls-verify is refused",
    ),
    "a program signs in": (
        _change("users", "user", exec={"command": "aws"}),
        "signs in by exec",
    ),
    "plain http": (_change("clusters", "cluster", server="http://a:80"), "not an https"),
    "no cluster": (_change("contexts", "context", cluster="other"), "named other"),
    "not base64": (
        _change("clusters", "cluster", **{"certificate-authority-data": "?"}),
        "authority-data is not base64",
    ),
    "no context": (lambda config: config.pop("current-context"), "GENESIS_KUBERNETES_CONTEXT"),
    "no name": (lambda config: config["users"][0].pop("name"), "it lacks 'name'"),
    "wrong type": (lambda config: config.update(users=7), "cannot be used"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_a_kubeconfig_that_cannot_be_used(
    cluster: KubernetesCluster, write: Any, change: Any, said: str
) -> None:
    config = cluster.kubeconfig()
    change(config)
    with pytest.raises(EngineError, match=said) as caught:
        find_credentials(write(config), None)
    assert not caught.value.temporary
    assert "GENESIS_KUBERNETES_CONFIG" in str(caught.value)


@pytest.mark.parametrize("text", ["[1", "- 1", "\x00"])
def test_a_file_that_is_no_kubeconfig(write: Any, text: str) -> None:
    pytest.importorskip("yaml", reason="the extra 'kubernetes' has it")
    with pytest.raises(EngineError, match="cannot be used"):
        find_credentials(write(None, text), None)


def test_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(EngineError, match="automount"):
        find_credentials(None, None, tmp_path)
    with pytest.raises(EngineError, match="No such file"):
        find_credentials(tmp_path / "missing", None, tmp_path)
