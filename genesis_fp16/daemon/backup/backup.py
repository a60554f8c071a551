"""A backup: the home's files, its database as SQLite, and a manifest with the hash of each."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import URL, Engine
from sqlalchemy.exc import SQLAlchemyError

import genesis_fp16
from genesis_fp16.daemon.backup import database
from genesis_fp16.daemon.backup.files import (
    RestlessError,
    copy_at_rest,
    digest,
    flush,
    links,
    read_regular,
)
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.settings import Settings
from genesis_fp16.store import StoreError
from genesis_fp16.store.database import database_exists, database_url, open_database
from genesis_fp16.system.permissions import private_umask
from infrastructure.files import write_atomically

DATABASE, MANIFEST, HOME = "genesis.db", "manifest.json", "home"
FORMAT = 1


class BackupError(GenesisError, RuntimeError):
    """A backup cannot be made, or is damaged; the message has the remedy."""

    exit_code = os.EX_DATAERR


class _File(BaseModel):
    size: int
    sha256: str


class Facts(BaseModel):
    """What is in a backup.

    Attributes:
        format: Version of the form of a backup.
        release: Version of genesis-fp16 that made it.
        made_at: Unix time in seconds.
        database: The saved database.
        files: Path in the home to the file.
        runs: Number of runs.
        left_out: Links in the home, which are not followed.
    """

    model_config = ConfigDict(frozen=True)

    format: int
    release: str
    made_at: float
    database: _File
    files: dict[str, _File]
    runs: int
    left_out: list[str] = []


def back_up(settings: Settings, folder: Path) -> Facts:
    """Save the home and the database of *settings* to *folder*, also while a daemon serves.

    The backup is read again and checked before it gets its name: an interrupted one has none.

    Raises:
        BackupError: *folder* exists, files do not come to rest, or cannot be read or written.
        StoreError: The database cannot be read.
    """
    with _told(f"the backup {folder} cannot be made", "name a folder with room that you may write"):
        return _back_up(settings, folder)


def _back_up(settings: Settings, folder: Path) -> Facts:
    home, folder = settings.home.absolute(), folder.absolute()
    if folder.exists():
        raise BackupError(f"{folder} exists already: name a folder that does not, such as a date's")
    if folder.is_relative_to(home):
        raise BackupError(f"{folder} is in the home {home}: name a folder outside of it")
    if not database_exists(settings):
        raise BackupError(f"{home} has no database: nothing to back up; see GENESIS_HOME")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    url = database_url(settings)
    with _removed_on_failure(partial), private_umask(partial), _opened(url) as engine:
        (partial / HOME).mkdir(parents=True)
        saved = partial / DATABASE
        made_at = 0.0

        def snapshot() -> None:
            nonlocal made_at
            made_at = time.time()
            database.save(engine, saved)

        own = Path(str(url.database)) if engine.dialect.name == "sqlite" else home / DATABASE
        try:
            files = copy_at_rest(home, partial / HOME, own, snapshot)
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise StoreError(f"the database cannot be saved: {error}; try again") from error
        except RestlessError as error:
            raise BackupError(f"{error}: pause the agents (agents pause --all --now)") from error
        flush(saved)
        facts = Facts(
            format=FORMAT,
            release=genesis_fp16.__version__,
            made_at=made_at,
            database=_File(**asdict(digest(saved))),
            files={name: _File(**asdict(file)) for name, file in sorted(files.items())},
            runs=_count_runs(saved),
            left_out=links(home),
        )
        write_atomically(partial / MANIFEST, facts.model_dump_json(indent=1))
        verify(partial)
        partial.rename(folder)
    return facts


def verify(folder: Path) -> Facts:
    """Read all of the backup in *folder* and compare it with its manifest.

    Raises:
        BackupError: A file is missing, differs, or is of a newer form.
        StoreError: The saved database is damaged.
    """
    try:
        facts = Facts.model_validate_json(read_regular(folder / MANIFEST))
    except (OSError, ValidationError) as error:
        raise BackupError(
            f"{folder} is not a backup: its {MANIFEST} cannot be read: {error}"
        ) from error
    if facts.format > FORMAT:
        raise BackupError(
            f"{folder} was made by release {facts.release} in a newer form than this release, "
            f"{genesis_fp16.__version__}, knows: restore it with that one or a newer one"
        )
    _compare(folder / DATABASE, facts.database)
    for name, file in facts.files.items():
        path = folder / HOME / name
        if not path.resolve().is_relative_to((folder / HOME).resolve()):
            raise BackupError(f"{folder} names a file outside of itself: {name}")
        _compare(path, file)
    database.check(folder / DATABASE)
    return facts


def restore(settings: Settings, folder: Path) -> tuple[Facts, int]:
    """Put the backup in *folder* back as the home and the database of *settings*.

    Runs that were under way go on from their last checkpoints.

    Returns:
        What was in it, and the number of those runs.

    Raises:
        BackupError: It is damaged, the home is in use or not empty, or cannot be written.
        StoreError: The database on a server is not empty, or the backup's is of a newer release.
    """
    home = settings.home.absolute()
    remedy = "set GENESIS_HOME to a folder with room that you may write"
    with _told(f"{folder} cannot be restored as {home}", remedy):
        return _restore(settings, folder)


def _restore(settings: Settings, folder: Path) -> tuple[Facts, int]:
    home, folder = settings.home.absolute(), folder.absolute()
    if home.exists() and any(home.iterdir()):
        raise BackupError(
            f"the home {home} is not empty: move it away, or set GENESIS_HOME to a new folder"
        )
    facts = verify(folder)
    url = database_url(settings)
    place = Path(str(url.database)) if url.get_backend_name() == "sqlite" else None
    if place is not None and place.exists():
        raise BackupError(f"the database {place} exists already: move it away")
    partial = home.with_name(f".{home.name}.restoring")
    shutil.rmtree(partial, ignore_errors=True)
    with _removed_on_failure(partial), private_umask(partial):
        partial.mkdir(parents=True)
        shutil.copytree(folder / HOME, partial, dirs_exist_ok=True)
        restored = partial / DATABASE
        shutil.copyfile(folder / DATABASE, restored)
        with _opened(database.sqlite_url(restored)) as engine:
            requeued = database.requeue_active(engine, facts.made_at)
        if place is None:
            with _opened(url) as server:
                database.put_back(restored, server)
            restored.unlink()
        elif place != home / DATABASE:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(restored, place)
        if home.exists():
            home.rmdir()
        partial.rename(home)
    return facts, requeued


@contextmanager
def _told(what: str, remedy: str) -> Iterator[None]:
    """Say in one line why the disk or the database on it refused."""
    try:
        yield
    except shutil.Error as error:  # a list of source, target and reason
        first = error.args[0][0][-1] if error.args and error.args[0] else error
        raise BackupError(f"{what}: {first}: {remedy}") from error
    except OSError as error:
        raise BackupError(f"{what}: {error}: {remedy}") from error
    except (SQLAlchemyError, sqlite3.Error) as error:
        reason = str(error).partition("\n")[0]
        raise BackupError(f"{what}: {reason}: {remedy}") from error


@contextmanager
def _removed_on_failure(partial: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def _opened(url: URL) -> Iterator[Engine]:
    """The database at *url*, in this release's form; its log is merged at the end."""
    engine = open_database(url)
    try:
        yield engine
    finally:
        engine.dispose()


def _count_runs(saved: Path) -> int:
    with closing(sqlite3.connect(saved)) as copy:
        return int(copy.execute("SELECT count(*) FROM runs").fetchone()[0])


def _compare(path: Path, recorded: _File) -> None:
    try:
        found = digest(path)
    except OSError as error:
        raise BackupError(f"{path} of the backup cannot be read: {error}") from error
    if asdict(found) != recorded.model_dump():
        raise BackupError(f"{path} of the backup is damaged: use another backup")
