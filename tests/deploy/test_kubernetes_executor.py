"""The component that lets the daemon run attempts as Jobs: rights, volume, image, network."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from genesis_fp16.executors.kubernetes.checks import RIGHTS
from genesis_fp16.executors.kubernetes.manifest import job_manifest
from genesis_fp16.executors.remote import JobRequest, Resources
from genesis_fp16.settings import Settings, load_settings

pytestmark = pytest.mark.process

Manifests = dict[tuple[str, str], dict[str, Any]]
NAMESPACE = "genesis-fp16"
DAEMON = ("StatefulSet", "genesis-fp16")


@pytest.fixture(scope="session", params=["cpu", "gpu"])
def manifests(
    request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Manifests:
    """Kind and name to manifest, as an overlay with the component sends them."""
    yaml = pytest.importorskip("yaml", reason="not installed: the extra 'deploy' has it")
    program = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    if shutil.which(program[0]) is None:
        pytest.skip("needs kustomize, or kubectl of 1.22 or newer")
    folder = tmp_path_factory.mktemp("deploy")
    shutil.copytree(root / "deploy/kubernetes", folder / "kubernetes")
    overlay = folder / "overlay"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(
        f"resources: [../kubernetes/overlays/{request.param}]\n"
        "components: [../kubernetes/components/kubernetes-executor]\n"
    )
    done = subprocess.run([*program, overlay], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for manifest in yaml.safe_load_all(done.stdout)
    }


@pytest.fixture
def pod(manifests: Manifests) -> dict[str, Any]:
    pod: dict[str, Any] = manifests[DAEMON]["spec"]["template"]["spec"]
    return pod


@pytest.fixture
def settings(manifests: Manifests, pod: dict[str, Any], tmp_path: Path) -> Settings:
    """What the daemon would read in its pod."""
    file = tmp_path / ".env"
    file.write_text(manifests["ConfigMap", "genesis-fp16-settings"]["data"][".env"])
    return load_settings(
        file, {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}
    )


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_kubernetes_schemas_accept_them(manifests: Manifests, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="the extra 'deploy' has it")
    for manifest in manifests.values():
        validator.validate(manifest, version, strict=True)


def test_the_role_grants_what_the_engine_asks_for_and_no_more(manifests: Manifests) -> None:
    granted = {
        (group, resource, verb)
        for rule in manifests["Role", "genesis-fp16"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {(group, name, verb) for group, name, verbs in RIGHTS for verb in verbs}
    assert not {kind for kind, _ in manifests if kind.startswith("Cluster")}


def test_the_daemon_has_the_role(manifests: Manifests, pod: dict[str, Any]) -> None:
    binding = manifests["RoleBinding", "genesis-fp16"]
    assert binding["roleRef"]["name"] == "genesis-fp16"
    [subject] = binding["subjects"]
    assert subject["name"] == pod["serviceAccountName"]
    assert subject["namespace"] == NAMESPACE
    assert pod["automountServiceAccountToken"] is True
    for key in (("Role", "genesis-fp16"), ("NetworkPolicy", "genesis-fp16-runs")):
        assert manifests[key]["metadata"]["namespace"] == NAMESPACE


def test_workers_use_the_daemons_image_and_volume(
    manifests: Manifests, pod: dict[str, Any], settings: Settings
) -> None:
    assert settings.executor == "kubernetes"
    assert settings.kubernetes_image == pod["containers"][0]["image"]
    assert settings.kubernetes_image.startswith("genesis-fp16:0.2.0-")
    claims = _claims(manifests)
    assert settings.kubernetes_volume_claim == f"home-{manifests[DAEMON]['metadata']['name']}-0"
    assert claims["home"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_database_is_on_a_volume_of_the_daemon_alone(
    manifests: Manifests, pod: dict[str, Any], settings: Settings
) -> None:
    assert _claims(manifests)["store"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert settings.database_url == f"sqlite:///{mounts['store']}/genesis.db"
    assert mounts["home"] == "/var/lib/genesis-fp16", "the base's own mounts stay"


def _claims(manifests: Manifests) -> dict[str, dict[str, Any]]:
    claims = manifests[DAEMON]["spec"]["volumeClaimTemplates"]
    return {claim["metadata"]["name"]: claim for claim in claims}


def test_policies_tell_the_workers_from_the_daemon(
    manifests: Manifests, settings: Settings
) -> None:
    job = JobRequest(name="n", command=("true",), folder=Path("/x"), resources=Resources())
    labels = job_manifest(job, settings, Path("/x"), NAMESPACE)["metadata"]["labels"]
    isolated = manifests["NetworkPolicy", "genesis-fp16-runs"]["spec"]
    assert isolated["podSelector"]["matchLabels"].items() <= labels.items()
    assert not {"egress", "ingress"} & isolated.keys(), "nothing is allowed"
    daemon = manifests["NetworkPolicy", "genesis-fp16"]["spec"]
    assert not daemon["podSelector"]["matchLabels"].items() <= labels.items()
    assert not manifests["Service", "genesis-fp16"]["spec"]["selector"].items() <= labels.items()
    ports = {port["port"] for rule in daemon["egress"] for port in rule["ports"]}
    assert ports == {53, 443, 6443}


def test_the_job_passes_the_namespaces_security_rule(
    manifests: Manifests, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`restricted`, as the daemon's user: what each rule of it demands."""
    namespace = manifests["Namespace", NAMESPACE]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    monkeypatch.setattr("os.getuid", lambda: 10001)
    job = JobRequest(name="n", command=("true",), folder=Path("/x"), resources=Resources())
    pod = job_manifest(job, settings, Path("/x"), NAMESPACE)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = pod["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {key for volume in pod["volumes"] for key in volume} == {
        "name",
        "persistentVolumeClaim",
        "emptyDir",
    }
