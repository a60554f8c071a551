from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.se_darwin.collection import CORPUS_LIMITS, open_corpus_sandbox
from agents.se_darwin.sandbox import Sandbox
from benchmarks.se_darwin.recording import RecordingSandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_corpus_sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordingSandbox]:
    path: Path = tmp_path_factory.mktemp("record") / "executions.sqlite"
    sandbox = RecordingSandbox(path, modules=["math"], limits=CORPUS_LIMITS, parallel=2)
    yield sandbox
    sandbox.close()
