"""Settings for Kubernetes that are wrong are refused with the reason."""

from pathlib import Path

import pytest

from genesis_fp16.settings import SettingsError, load_settings

WRONG = {
    "NAMESPACE": ("Training", "lower-case letters"),
    "VOLUME_CLAIM": ("a_b", "lower-case letters"),
    "VOLUME_FOLDER": ("../other", "relative path"),
    "GPU_RESOURCE": ("nvidia gpu", "nvidia.com/gpu"),
    "POD": ("{", "not JSON"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str, tmp_path: Path) -> None:
    value, said = WRONG[name]
    with pytest.raises(SettingsError, match=f"GENESIS_KUBERNETES_{name}.*{said}"):
        load_settings(tmp_path / "none", {f"GENESIS_KUBERNETES_{name}": value})


@pytest.mark.parametrize(
    ("value", "said"), [("[]", "JSON object"), ('{"containers": []}', "cannot be changed")]
)
def test_a_pod_that_cannot_be_merged(value: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(tmp_path / "none", {"GENESIS_KUBERNETES_POD": value})


def test_right(tmp_path: Path) -> None:
    environ = {
        "GENESIS_KUBERNETES_VOLUME_FOLDER": "genesis/home.1",
        "GENESIS_KUBERNETES_POD": '{"nodeSelector": {"disk": "ssd"}}',
        "GENESIS_KUBERNETES_CONFIG": "",
    }
    settings = load_settings(tmp_path / "none", environ)
    assert settings.kubernetes_volume_folder == "genesis/home.1"
    assert settings.kubernetes_config is None
