"""A real PostgreSQL server where its programs and psycopg are installed; else its tests skip."""

import getpass
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from tests.genesis_fp16.new_store import new_store

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """Folder of the socket of a server of our own."""
    pytest.importorskip("psycopg")
    if shutil.which("initdb") is None or shutil.which("postgres") is None:
        pytest.skip("PostgreSQL is not installed")
    user = "nobody" if os.getuid() == 0 else getpass.getuser()  # it refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="genesis-pg-"))
    shutil.chown(folder, user)
    as_user = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL}
    initdb = ["initdb", "-D", f"{folder}/data", "-U", "postgres", "-A", "trust", "--no-sync"]
    subprocess.run(initdb, check=True, stderr=subprocess.DEVNULL, **as_user)
    serve = ["postgres", "-D", f"{folder}/data", "-k", str(folder), "-c", "listen_addresses=", "-F"]
    with subprocess.Popen(serve, stderr=subprocess.DEVNULL, **as_user) as server:
        while subprocess.run(["pg_isready", "-q", "-h", folder], check=False).returncode:
            time.sleep(0.05)
        yield folder
        server.send_signal(signal.SIGQUIT)  # at once: nothing is to be kept
    shutil.rmtree(folder)


@pytest.fixture
def postgres_settings(postgres_server: Path, home_settings: Settings) -> Settings:
    """Settings with a new schema on that server, which is faster than a new database."""
    engine = create_engine(
        f"postgresql+psycopg://postgres@/postgres?host={postgres_server}",
        isolation_level="AUTOCOMMIT",
    )
    name = f"genesis{next(_numbers)}"
    with engine.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    engine.dispose()
    url = f"postgresql://postgres@/postgres?host={postgres_server}&options=-csearch_path%3D{name}"
    return home_settings.model_copy(update={"database_url": url})


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def any_settings(request: pytest.FixtureRequest, home_settings: Settings) -> Settings:
    """Settings of a home, once with each kind of database."""
    if request.param == "sqlite":
        return home_settings
    return request.getfixturevalue("postgres_settings")


@pytest.fixture
def store(any_settings: Settings) -> Iterator[Store]:
    """A new, real database of each kind."""
    with closing(new_store(any_settings)) as store:
        yield store
