"""Why the database cannot be used and what to do, by what SQLite or the system has answered."""

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

_NEXT_TO_NOTHING = 1 << 20  # bytes free on a disk that is as good as full
_PRIMARY = 0xFF  # SQLite's extended codes carry the plain one in their lowest byte
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NO_ACCESS = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
_NO_ACCESS_ERRNO = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


class StoreError(GenesisError, RuntimeError):
    """The database cannot be used; the message names it and the remedy."""

    exit_code = os.EX_DATAERR


def failure(url: URL, error: Exception) -> StoreError:
    """The error to show for what SQLAlchemy or the system has raised about the database *url*."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    said = " ".join(str(cause).split())
    needed = isinstance(cause, ModuleNotFoundError)
    remedy = "install genesis-fp16[postgres]" if needed else _remedy(url, cause)
    return StoreError(f"database {shown(url)} cannot be used: {said}; {remedy}")


def shown(url: URL) -> str:
    """The database's name for people: a path, or a URL without its password."""
    sqlite = url.get_backend_name() == "sqlite"
    return str(url.database) if sqlite else url.set(query={}).render_as_string()


def _remedy(url: URL, cause: BaseException) -> str:
    if url.get_backend_name() != "sqlite" or not url.database:
        return "check that the server runs and GENESIS_DATABASE_URL is right"
    path = Path(url.database)
    code = (getattr(cause, "sqlite_errorcode", None) or 0) & _PRIMARY
    number = cause.errno if isinstance(cause, OSError) else None
    if code in _BUSY:
        return f"another process keeps it locked, fuser {path} names it; try again when that ends"
    full = code == sqlite3.SQLITE_IOERR and _is_full(path.parent)  # the log's index had no room
    if full or code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT):
        return f"make room on the disk of {path.parent} and try again; nothing was changed"
    if code == sqlite3.SQLITE_IOERR:
        return f"see the disk of {path.parent}: its free space, and what the kernel's log says"
    if code in _NO_ACCESS or number in _NO_ACCESS_ERRNO:
        return _access(path)
    return (
        "restore it from a backup, or set GENESIS_HOME; to begin anew move it away, and runs, "
        "guard and agents of GENESIS_HOME too until a new one is there"
    )


def _is_full(folder: Path) -> bool:
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _NEXT_TO_NOTHING


def _access(path: Path) -> str:
    """What keeps this user from writing the database, whose it is, and what to do."""
    files = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
    folder = next(each for each in path.parents if _there(each))
    if not folder.is_dir() or (_there(path) and not path.is_file()):
        return "something else is in its place: move that away, or set GENESIS_HOME"
    for each in (*filter(_there, files), folder):
        needed = os.W_OK | os.X_OK if each == folder else os.R_OK | os.W_OK
        if not os.access(each, needed, effective_ids=True):
            return _forbidden(each)
    return f"see that SQLite may read and write in {folder}, or set GENESIS_HOME"


def _forbidden(path: Path) -> str:
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return f"{path} is on a disk that is mounted read-only: remount it, or set GENESIS_HOME"
    found, owner = path.stat(), user_name(path.stat().st_uid)
    return (
        f"{path} belongs to {owner} (mode {stat.filemode(found.st_mode)}) and "
        f"{user_name(os.geteuid())} may not write it: do this as {owner}, such as by "
        f"sudo -u {owner}, or set GENESIS_HOME"
    )


def _there(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


def user_name(uid: int) -> str:
    """The account's name; its number where no file knows it, as in many containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
