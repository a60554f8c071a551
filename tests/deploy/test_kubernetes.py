"""The manifests: rendered, held to Kubernetes' own schemas, and to what the daemon needs."""

import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from genesis_fp16.daemon.http import TICK_STALE_SECONDS
from genesis_fp16.settings import ENV_FILE_VARIABLE, Settings, load_settings

pytestmark = pytest.mark.process

INSTALL = "not installed: the extra 'deploy' has it"
VERSIONS = ("1.31", "1.37")
RECORDING_SECONDS = 5.0  # of a stop, beyond the checkpoints

Manifests = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def yaml() -> ModuleType:
    return pytest.importorskip("yaml", reason=INSTALL)


def _render(folder: Path, yaml: ModuleType) -> Manifests:
    """Kind to manifest, as ``kubectl apply -k`` would send them."""
    program = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    if shutil.which(program[0]) is None:
        pytest.skip("needs kustomize, or kubectl of 1.21 or newer")
    done = subprocess.run([*program, folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    rendered = list(yaml.safe_load_all(done.stdout))
    assert len({manifest["kind"] for manifest in rendered}) == len(rendered)
    return {manifest["kind"]: manifest for manifest in rendered}


@pytest.fixture(scope="session", params=["cpu", "gpu"])
def manifests(request: pytest.FixtureRequest, yaml: ModuleType) -> Manifests:
    root = Path(__file__).resolve().parents[2]
    return _render(root / "deploy/kubernetes/overlays" / request.param, yaml)


@pytest.fixture
def pod(manifests: Manifests) -> dict[str, Any]:
    return manifests["StatefulSet"]["spec"]["template"]["spec"]


@pytest.fixture
def daemon(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["containers"]
    return container


@pytest.fixture
def settings(manifests: Manifests, daemon: dict[str, Any], tmp_path: Path) -> Settings:
    """What the daemon would read in its pod."""
    file = tmp_path / ".env"
    file.write_text(manifests["ConfigMap"]["data"][".env"])
    environ = {variable["name"]: variable["value"] for variable in daemon.get("env", [])}
    return load_settings(file, environ)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_schemas_accept_them(manifests: Manifests, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason=INSTALL)
    for manifest in manifests.values():
        validator.validate(manifest, version, strict=True)


def test_the_pod_may_do_little(pod: dict[str, Any], daemon: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert daemon["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_no_role_is_granted(manifests: Manifests) -> None:
    assert not {kind for kind in manifests if "Role" in kind}
    assert manifests["ServiceAccount"]["automountServiceAccountToken"] is False


def test_no_variable_of_a_service_is_taken_for_a_setting(pod: dict[str, Any]) -> None:
    """The Service genesis-fp16 would give GENESIS_FP16_SERVICE_HOST, which is no setting."""
    assert pod["enableServiceLinks"] is False


def test_the_flag_is_hot(pod: dict[str, Any], daemon: dict[str, Any], manifests: Manifests) -> None:
    """From a file in a folder that kubelet keeps up to date, under a name that never changes."""
    assert "envFrom" not in daemon
    assert "ENABLE_FP16_TRAINING" not in {variable["name"] for variable in daemon.get("env", [])}
    [volume] = [volume for volume in pod["volumes"] if "configMap" in volume]
    [mount] = [mount for mount in daemon["volumeMounts"] if mount["name"] == volume["name"]]
    assert mount["mountPath"] == "/etc/genesis-fp16"
    assert "subPath" not in mount
    assert volume["configMap"]["name"] == manifests["ConfigMap"]["metadata"]["name"]
    assert manifests["ConfigMap"]["metadata"]["name"] == "genesis-fp16-settings"
    assert "immutable" not in manifests["ConfigMap"]


def test_a_stop_has_time_for_checkpoints(pod: dict[str, Any], settings: Settings) -> None:
    needed = settings.stop_timeout_seconds + RECORDING_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= needed


def test_what_a_lost_pod_costs_is_stated(settings: Settings) -> None:
    assert settings.source_of("checkpoint_interval_seconds") != "default"


def test_a_gpu_that_is_asked_for_is_demanded(daemon: dict[str, Any], settings: Settings) -> None:
    asks = "nvidia.com/gpu" in daemon["resources"]["limits"]
    assert settings.device == ("cuda" if asks else "auto")


def test_probes_ask_what_the_daemon_serves(daemon: dict[str, Any], settings: Settings) -> None:
    [port] = daemon["ports"]
    assert port["containerPort"] == settings.metrics_port
    assert settings.metrics_host == "0.0.0.0"
    paths = {kind: daemon[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness")}
    assert paths == {"startup": "/readyz", "liveness": "/healthz"}
    startup, liveness = daemon["startupProbe"], daemon["livenessProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] > TICK_STALE_SECONDS
    assert liveness["failureThreshold"] * liveness["periodSeconds"] >= TICK_STALE_SECONDS


def test_selectors_select_the_pod(manifests: Manifests, root: Path, yaml: ModuleType) -> None:
    labels = manifests["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    spec = {kind: manifest.get("spec", {}) for kind, manifest in manifests.items()}
    assert spec["Service"]["selector"] == labels
    assert spec["PodDisruptionBudget"]["selector"]["matchLabels"] == labels
    assert spec["NetworkPolicy"]["podSelector"]["matchLabels"] == labels
    monitor = yaml.safe_load(
        (root / "deploy/kubernetes/monitoring/servicemonitor.yaml").read_text()
    )
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= manifests["Service"]["metadata"]["labels"].items()
    [port] = spec["Service"]["ports"]
    assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == [port["name"]]
    assert manifests["Service"]["metadata"]["name"] == "genesis-fp16", "the rules' job"


def test_the_rules_are_prometheus_own(root: Path, yaml: ModuleType) -> None:
    rules = yaml.safe_load((root / "deploy/prometheus/rules/genesis.rules.yml").read_text())
    monitoring = _render(root / "deploy/kubernetes/monitoring", yaml)
    assert monitoring["PrometheusRule"]["spec"] == rules, "make manifests"


def test_se_darwin_has_its_namespaces_where_asked(
    root: Path, yaml: ModuleType, tmp_path: Path
) -> None:
    folder = root / "deploy/kubernetes/components/se-darwin"
    overlay = tmp_path / "overlay"
    shutil.copytree(root / "deploy/kubernetes", tmp_path / "kubernetes")
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(
        "resources: [../kubernetes/overlays/cpu]\n"
        "components: [../kubernetes/components/se-darwin]\n"
    )
    pod = _render(overlay, yaml)["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["seccompProfile"]["type"] == "Localhost"
    [variable] = pod["containers"][0]["env"]
    assert (variable["name"], variable["value"]) == ("GENESIS_AGENTS__SE_DARWIN__ENABLED", "true")
    profile = json.loads((folder / "seccomp.json").read_text())
    denied = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert not denied & {"unshare", "mount", "mount_setattr", "clone", "clone3", "capset"}
    assert {"bpf", "kexec_load", "ptrace", "setns"} <= denied


def test_the_pod_finds_its_file_by_the_image(root: Path, daemon: dict[str, Any]) -> None:
    """The image names the file that is mounted."""
    assert f"{ENV_FILE_VARIABLE}=/etc/genesis-fp16/.env" in (root / "Dockerfile").read_text()
