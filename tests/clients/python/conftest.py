"""A predictor that runs, and an agent that finds it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from genesis_client import Agent

from tests.clients.python.predictor_process import PredictorProcess


@pytest.fixture
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PredictorProcess]:
    process = PredictorProcess(tmp_path_factory.mktemp("p"))
    process.start()
    yield process
    process.kill()


@pytest.fixture
def agent(predictor: PredictorProcess, tmp_path: Path) -> Iterator[Agent]:
    """An agent whose deadline bears a crowded machine."""
    with Agent("qa", home=predictor.folder, spool=tmp_path / "spool", deadline=5.0) as agent:
        yield agent
