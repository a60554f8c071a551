"""Any text in place of a manifest is a clear error; paths never leave the folder."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infrastructure.precision_lab.frozen.manifest import FrozenError, read_manifest

HASH = "0" * 64
VALID = {
    "format": 1,
    "kind": "world-model",
    "created": "2026-01-01T00:00:00+00:00",
    "source": {"agent": "pendulum"},
    "seed": 0,
    "environment": {"device": "cpu"},
    "precision": {"world_model": "fp32/fp32/fp32"},
    "dtypes": {},
    "weights": {"world_model": "weights/world_model.pt"},
    "batches": ["batches/00000.pt"],
    "files": {
        name: {"bytes": 1, "sha256": HASH}
        for name in ("weights/world_model.pt", "batches/00000.pt")
    },
    "agent": {"name": "pendulum", "seed": 0, "settings_sha256": HASH, "transitions": {}},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def _write(folder, manifest):
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    (folder / "manifest.json").write_text(text)
    return folder


def test_a_valid_manifest_is_read(tmp_path):
    assert read_manifest(_write(tmp_path, VALID)).agent.name == "pendulum"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2, .* 1"),
        ({"format": True}, "no format"),
        ({"kind": "other"}, "kind: .*'policy' or 'world-model'"),
        ({"kind": "policy"}, "details of a policy"),
        ({"batches": ["../../etc/passwd"]}, "batches.0: .* pattern"),
        ({"batches": ["/etc/passwd"]}, "batches.0: .* pattern"),
        ({"batches": ["batches/../../x"]}, "batches.0: .* pattern"),
        ({"batches": ["batches/00001.pt"]}, "batches/00001.pt .* no hash"),
        ({"batches": ["batches/00000.pt"] * 2}, "twice"),
        ({"files": {"weights/a": {"bytes": -1, "sha256": HASH}}}, "bytes"),
        ({"precision": {"policy": "fp64/fp32/fp32"}}, "precision.policy"),
        ({"unknown": 1}, "unknown: Extra inputs"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_named(tmp_path, change, message):
    with pytest.raises(FrozenError, match=message):
        read_manifest(_write(tmp_path, VALID | change))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "NaN", '{"format": NaN}', "\ufeff{}"])
def test_text_that_is_not_json_is_named(tmp_path, text):
    with pytest.raises(FrozenError, match=r"manifest.json: is not"):
        read_manifest(_write(tmp_path, text))


def test_a_folder_or_nothing_in_its_place_is_named(tmp_path):
    with pytest.raises(FrozenError, match="no frozen"):
        read_manifest(tmp_path / "nowhere")
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(FrozenError, match="cannot be read"):
        read_manifest(tmp_path)


def test_a_pipe_in_its_place_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(FrozenError, match="regular file"):
        read_manifest(tmp_path)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(sorted(VALID)), value=JSON, binary=st.none() | st.binary(max_size=40))
def test_a_hostile_manifest_raises_nothing_else(tmp_path, key, value, binary):
    _write(tmp_path, VALID | {key: value})
    if binary is not None:
        (tmp_path / "manifest.json").write_bytes(binary)
    try:
        found = read_manifest(tmp_path)
    except FrozenError:
        return
    assert all(not name.startswith("/") and ".." not in name for name in found.files)
