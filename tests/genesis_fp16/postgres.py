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
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from genesis_fp16.settings import Settings

on_each_database = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.process)], indirect=True
)
"""Marks a test whose store is to be of each kind; it uses `store` or `database`."""

_numbers = itertools.count()


@contextmanager
def running_server() -> Iterator[Path]:
    """A server of our own; yields the folder of its socket."""
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
    server = subprocess.Popen(serve, stderr=subprocess.DEVNULL, **as_user)
    try:
        while subprocess.run(["pg_isready", "-q", "-h", folder], check=False).returncode:
            assert server.poll() is None, "PostgreSQL ended before it served"
            time.sleep(0.05)
        yield folder
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: nothing is to be kept
        server.wait(60)
        shutil.rmtree(folder, ignore_errors=True)  # what is still ending may write to it


def in_new_schema(settings: Settings, server: Path) -> Settings:
    """Those *settings* with a new schema on that server, which is faster than a new database."""
    engine = create_engine(
        f"postgresql+psycopg://postgres@/postgres?host={server}",
        isolation_level="AUTOCOMMIT",
    )
    name = f"genesis{next(_numbers)}"
    with engine.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    engine.dispose()
    url = f"postgresql://postgres@/postgres?host={server}&options=-csearch_path%3D{name}"
    return settings.model_copy(update={"database_url": url})
