"""Errors of the database, with the remedy for what SQLite or the system reports."""

from __future__ import annotations

import errno
import os
import pwd
import sqlite3
import stat
from pathlib import Path

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.system.disk import DISK_FULL, is_full

_PRIMARY = 0xFF  # SQLite's extended codes carry the plain one in their lowest byte
_LOCK_NOT_AVAILABLE = "55P03"  # a condition of PostgreSQL
_LOCKED = "another client of the server keeps a table locked, see pg_locks; try again when it ends"
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NO_ACCESS = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
_NO_ACCESS_ERRNO = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


class StoreError(GenesisError, RuntimeError):
    """The database cannot be used; the message names it and the remedy."""

    exit_code = os.EX_DATAERR


def store_error(url: URL, error: Exception) -> StoreError:
    """The error to raise for what SQLAlchemy or the system raised about the database *url*."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    message = " ".join(str(cause).split())
    missing = isinstance(cause, ModuleNotFoundError)
    remedy = "install genesis-fp16[postgres]" if missing else _remedy(url, cause)
    return StoreError(f"database {display_name(url)} cannot be used: {message}; {remedy}")


def display_name(url: URL) -> str:
    """The database for messages: a path, or a URL without its password."""
    sqlite = url.get_backend_name() == "sqlite"
    return str(url.database) if sqlite else url.set(query={}).render_as_string()


def _remedy(url: URL, cause: BaseException) -> str:
    if url.get_backend_name() != "sqlite" or not url.database:
        locked = getattr(cause, "sqlstate", None) == _LOCK_NOT_AVAILABLE
        return _LOCKED if locked else "check that the server runs and GENESIS_DATABASE_URL is right"
    path = Path(url.database)
    code = (getattr(cause, "sqlite_errorcode", None) or 0) & _PRIMARY
    number = cause.errno if isinstance(cause, OSError) else None
    if code in _BUSY:
        return f"another process keeps it locked; fuser {path} names it; try again when it ends"
    full = code == sqlite3.SQLITE_IOERR and is_full(path.parent)  # no room for the log's index
    if full or code == sqlite3.SQLITE_FULL or number in DISK_FULL:
        return f"make room on the disk of {path.parent} and try again; nothing was changed"
    if code == sqlite3.SQLITE_IOERR:
        return f"check the disk of {path.parent}: its free space and the kernel's log"
    if code in _NO_ACCESS or number in _NO_ACCESS_ERRNO:
        return _access(path)
    return (
        "restore it from a backup, or set GENESIS_HOME; to start without history and overrides, "
        "move it away, and also runs, guard, agents and rollbacks.json of GENESIS_HOME, until a "
        "new one exists"
    )


def _access(path: Path) -> str:
    """What prevents this user from writing the database, and the remedy."""
    files = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
    folder = next(parent for parent in path.parents if _exists(parent))
    if not folder.is_dir() or (_exists(path) and not path.is_file()):
        return "its path is not a regular file: move that away, or set GENESIS_HOME"
    for entry in (*filter(_exists, files), folder):
        needed = os.W_OK | os.X_OK if entry == folder else os.R_OK | os.W_OK
        if not os.access(entry, needed, effective_ids=True):
            return _forbidden(entry)
    return f"let SQLite read and write in {folder}, or set GENESIS_HOME"


def _forbidden(path: Path) -> str:
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return f"{path} is on a disk that is mounted read-only: remount it, or set GENESIS_HOME"
    status, owner = path.stat(), user_name(path.stat().st_uid)
    return (
        f"{path} belongs to {owner} (mode {stat.filemode(status.st_mode)}) and "
        f"{user_name(os.geteuid())} may not write it: run this as {owner} "
        f"(sudo -u {owner}), or set GENESIS_HOME"
    )


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


def user_name(uid: int) -> str:
    """The account's name; its number if it has no name, as in many containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
