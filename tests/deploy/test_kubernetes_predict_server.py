"""The component that answers agents from a Deployment of its own: probes, tokens, volume, image."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from genesis_fp16.settings import load_settings

pytestmark = pytest.mark.process

FOLDER = "deploy/kubernetes/components/predict-server"
NAME = "genesis-fp16-predict-server"


@pytest.fixture(scope="module")
def files(root: Path) -> dict[str, dict[str, Any]]:
    """Kind to manifest, as the component's files have them."""
    yaml = pytest.importorskip("yaml", reason="not installed: the extra 'deploy' has it")
    paths = sorted((root / FOLDER).glob("*.yaml"))
    manifests = [yaml.safe_load(path.read_text()) for path in paths]
    listed = next(each for each in manifests if each["kind"] == "Component")["resources"]
    assert {*listed, "kustomization.yaml"} == {path.name for path in paths}
    return {manifest["kind"]: manifest for manifest in manifests}


@pytest.fixture
def container(files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    [container] = files["Deployment"]["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_kubernetes_schemas_accept_it(files: dict[str, dict[str, Any]], version: str) -> None:
    reason = "not installed: the extra 'deploy' has it"
    validator = pytest.importorskip("kubernetes_validate", reason=reason)
    for kind, manifest in files.items():
        if kind != "Component":
            validator.validate(manifest, version, strict=True)


def test_it_listens_where_probes_and_service_look(
    files: dict[str, dict[str, Any]], container: dict[str, Any], tmp_path: Path
) -> None:
    environ = {variable["name"]: variable["value"] for variable in container["env"]}
    settings = load_settings(tmp_path / ".env", environ)
    [port] = container["ports"]
    assert (settings.predict_host, settings.predict_port) == ("0.0.0.0", port["containerPort"])
    assert files["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert {probe["port"] for probe in probes} == {port["name"]}
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(settings.api_token_file).startswith(f"{mounted['tokens']}/")
    pod = files["Deployment"]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    claim = files["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["home"]["persistentVolumeClaim"]["claimName"] == claim
    assert volumes.keys() == mounted.keys()
    assert files["Deployment"]["spec"]["strategy"]["type"] == "Recreate", "one volume, one pod"


def test_an_overlay_gives_it_the_daemons_image(root: Path, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="not installed: the extra 'deploy' has it")
    program = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    if shutil.which(program[0]) is None:
        pytest.skip("needs kustomize, or kubectl of 1.22 or newer")
    shutil.copytree(root / "deploy/kubernetes", tmp_path / "kubernetes")
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "kustomization.yaml").write_text(
        "resources: [../kubernetes/overlays/cpu]\n"
        "components: [../kubernetes/components/predict-server]\n"
    )
    command = [*program, tmp_path / "overlay"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    rendered = {
        (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)
    }
    pods = [rendered["Deployment", NAME], rendered["StatefulSet", "genesis-fp16"]]
    images = {pod["spec"]["template"]["spec"]["containers"][0]["image"] for pod in pods}
    assert images == {"genesis-fp16:0.2.0-cpu"}
