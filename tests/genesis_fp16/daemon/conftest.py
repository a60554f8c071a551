"""Tests of the daemon in this process leave its logging as it was."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    handlers = logging.root.handlers[:]
    yield
    logging.captureWarnings(capture=False)
    logging.root.handlers[:] = handlers
    structlog.reset_defaults()
