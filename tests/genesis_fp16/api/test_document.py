"""The API does what its OpenAPI document says, for any request: asked by schemathesis."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.genesis_fp16.api.conftest import TOKEN

pytestmark = pytest.mark.process


def test_every_endpoint_keeps_to_the_document(api, tmp_path: Path) -> None:
    """Right requests and wrong ones, single and in a row; each answer as the document says.

    Left out, with tests of their own: the streams, which do not end; doctor, which takes seconds
    and no parameters; wrong tokens, after which a client must wait.
    """
    api.get("/openapi.json")  # starts the API's process; schemathesis waits for ten seconds only
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("schemathesis"), "run", "--no-color"),
            f"http://127.0.0.1:{api.port}/openapi.json",
            *("--header", f"Authorization: Bearer {TOKEN}"),
            *("--exclude-path-regex", "/(events|doctor)$"),
            *("--checks", "all", "--exclude-checks", "ignored_auth"),
            *("--max-examples", "4", "--request-timeout", "60", "--generation-deterministic"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "Unresolvable references" not in done.stdout
    assert "Tested: 0" not in done.stdout
    assert api.control.pid is not None
    assert api.get("/api/health")["ready"]


def test_the_document_names_every_endpoint_once(api) -> None:
    document = api.get("/openapi.json")
    names = [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert len(names) == len(set(names)) > 25
    described = [
        operation.get("description")
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert all(described)
