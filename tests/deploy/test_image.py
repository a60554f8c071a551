"""The Dockerfile, the compose file, and what both promise to the manifests."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from genesis_fp16 import __version__
from genesis_fp16.settings import load_settings

pytestmark = pytest.mark.process

INSTALL = "not installed: the extra 'deploy' has it"


@pytest.fixture
def dockerfile(root: Path) -> str:
    return (root / "Dockerfile").read_text()


def _compose(root: Path) -> dict:
    yaml: ModuleType = pytest.importorskip("yaml", reason=INSTALL)
    return yaml.safe_load((root / "deploy/compose/compose.yaml").read_text())


@pytest.mark.parametrize("path", ["Dockerfile", "deploy/lab/Dockerfile"])
def test_hadolint_has_nothing_to_say(path: str, root: Path) -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip(f"hadolint is {INSTALL}")
    done = subprocess.run([program, root / path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_image_is_made_of_what_is_sent_to_its_build(root: Path, dockerfile: str) -> None:
    sent = {
        line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = {
        name
        for names in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
        for name in names.split()
    }
    assert sent == copied
    assert [name for name in copied if not (root / name).exists()] == []


def test_tini_is_the_first_process_everywhere(root: Path, dockerfile: str) -> None:
    """The daemon waits for its own children only: as first process it would keep zombies."""
    [entrypoint] = re.findall(r"^ENTRYPOINT (.+)$", dockerfile, re.MULTILINE)
    assert json.loads(entrypoint) == ["tini", "--", "genesis-fp16"]
    assert re.search(r"apt-get install .*\btini=", dockerfile.replace("\\\n", ""))
    assert "entrypoint" not in _compose(root)["services"]["daemon"]
    manifests = [*root.glob("deploy/kubernetes/**/*.yaml")]
    assert [
        path for path in manifests if re.search(r"^\s*-?\s*command:", path.read_text(), re.M)
    ] == []


def test_it_runs_as_the_user_of_the_manifests(root: Path, dockerfile: str) -> None:
    user = re.search(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)
    assert user
    pod = (root / "deploy/kubernetes/base/statefulset.yaml").read_text()
    assert f"runAsUser: {user[1]}\n" in pod
    assert f"fsGroup: {user[2]}\n" in pod


def test_all_name_the_same_release(root: Path, dockerfile: str) -> None:
    places = [
        root / "deploy/compose/compose.yaml",
        root / "deploy/lab/Dockerfile",
        *root.glob("docs/**/*.md"),
        *root.glob("deploy/kubernetes/overlays/*/*.yaml"),
    ]
    texts = [dockerfile, *(place.read_text() for place in places)]
    tags = {tag for text in texts for tag in re.findall(r"\b(\d+\.\d+\.\d+)-(?:cpu|cuda)", text)}
    assert tags == {__version__}


def test_the_laptop_mounts_what_is_there(root: Path) -> None:
    compose = _compose(root)
    folder = root / "deploy" / "compose"
    mounts = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service["volumes"]
    ]
    named = [mount for mount in mounts if not mount.startswith(".")]
    assert set(named) == set(compose["volumes"])
    assert [mount for mount in mounts if mount not in named and not (folder / mount).is_dir()] == []
    [seccomp] = [
        option.partition("=")[2]
        for option in compose["services"]["daemon"]["security_opt"]
        if option.startswith("seccomp")
    ]
    assert (folder / seccomp).is_file()


def test_the_laptops_settings_are_sound_and_a_stop_has_time(root: Path) -> None:
    daemon = _compose(root)["services"]["daemon"]
    settings = load_settings(root / "deploy/compose/settings/genesis.env", {})
    assert float(daemon["stop_grace_period"].removesuffix("s")) > settings.stop_timeout_seconds + 5
    assert set(daemon["environment"]) == {"GENESIS_ENV_FILE"}, "the flag is hot: not here"
    provisioning = (root / "deploy/grafana/provisioning/dashboards/genesis.yml").read_text()
    grafana = _compose(root)["services"]["grafana"]["volumes"]
    path = re.search(r"^\s*path: (\S+)$", provisioning, re.MULTILINE)
    assert path
    assert f"../grafana/dashboards:{path[1]}:ro" in grafana
