"""What a check finds where no sound cluster is; `test_engine` has one."""

import json
from pathlib import Path

from genesis_fp16.executors.ray.check import check_cluster
from tests.genesis_fp16.executors.ray.web_server import served


def test_a_check_finds_what_is_wrong(tmp_path: Path) -> None:
    """An old version, a token that nobody asks for, a wrong clock, and no machine alive."""
    token_file = tmp_path / "token"
    token_file.write_text("secret")
    nodes = {"data": {"result": {"result": [{"state": "DEAD", "resources_total": {}}]}}}
    pages = {"/api/version": '{"ray_version": "2.9.3"}', "/api/v0/nodes": json.dumps(nodes)}
    with served({path: (200, text) for path, text in pages.items()}) as address:
        findings = check_cluster(address, token_file)
        unprotected = check_cluster(address, None)[1]
    assert [finding.ok for finding in findings] == [False] * 4
    version, protection, clock, machines = findings
    assert "2.52 or newer" in version.remedy
    assert "RAY_AUTH_MODE=token" in protection.remedy
    assert "clocks" in clock.remedy
    assert "ray start" in machines.remedy
    assert unprotected.ok
    assert "can run commands" in unprotected.what


def test_a_check_of_something_else_says_so() -> None:
    for pages in ({}, {"/api/version": (200, "<html>")}):
        with served(pages) as address:
            (finding,) = [finding for finding in check_cluster(address, None) if not finding.ok][:1]
        assert "GENESIS_RAY_ADDRESS" in finding.remedy
        assert address in finding.what
