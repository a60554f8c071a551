from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.se_darwin.collection import CORPUS_LIMITS, open_corpus_sandbox
from agents.se_darwin.sandbox import Sandbox
from benchmarks.se_darwin.caching_sandbox import CachingSandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_corpus_sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def caching_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CachingSandbox]:
    path: Path = tmp_path_factory.mktemp("cache") / "executions.sqlite"
    sandbox = CachingSandbox(path, modules=["math"], limits=CORPUS_LIMITS, parallel=2)
    yield sandbox
    sandbox.close()
