"""Evidence bundles: whole, readable, where the decision says."""

import json
import math
from pathlib import Path

import pytest

from genesis_fp16.guard import Decision, GuardState, Trigger
from genesis_fp16.guard.evidence import read_evidence, write_evidence

DECISION = Decision(
    agent="a", state=GuardState.TRIPPED, at=1_700_000_000.25, trigger=Trigger.UNDERFLOW, run_id="r"
)


def test_a_bundle_is_json_below_the_home_folder(tmp_path: Path) -> None:
    seen = {"scales": [1.0, math.inf], "nothing": math.nan, "inside": {"list": (1, "x")}}
    written = write_evidence(tmp_path, DECISION, seen)
    path = tmp_path / written.evidence
    assert written.evidence == "guard/a/20231114T221320.250000-tripped.json"
    bundle = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (bundle["trigger"], bundle["state"], bundle["run_id"]) == ("underflow", "tripped", "r")
    assert bundle["scales"] == [1.0, "inf"]
    assert bundle["inside"] == {"list": [1, "x"]}
    assert read_evidence(tmp_path, written) == bundle
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{torn"])
def test_a_bundle_that_cannot_be_read_is_none(tmp_path: Path, content: bytes | None) -> None:
    written = write_evidence(tmp_path, DECISION, {})
    path = tmp_path / written.evidence
    path.unlink() if content is None else path.write_bytes(content)
    assert read_evidence(tmp_path, written) is None


def test_no_evidence_is_none(tmp_path: Path) -> None:
    assert read_evidence(tmp_path, DECISION) is None
