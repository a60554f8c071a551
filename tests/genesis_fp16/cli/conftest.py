"""What the commands' tests share."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from genesis_fp16.cli.app import app
from genesis_fp16.settings import load_settings
from genesis_fp16.store import Store
from tests.genesis_fp16.new_store import new_store


@pytest.fixture
def ask() -> Callable[..., Result]:
    """Run the program's commands in this process."""
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.fixture
def ask_json(ask: Callable[..., Result]) -> Callable[..., object]:
    """Run a command with ``--json`` and read its answer."""

    def ask_json(*arguments: str) -> object:
        result = ask(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return ask_json


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    """The store below the working folder."""
    with closing(new_store(load_settings())) as store:
        yield store
