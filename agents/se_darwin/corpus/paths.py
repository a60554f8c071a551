"""Inputs for functions on paths, on POSIX and on Windows."""

from __future__ import annotations

from random import Random

from agents.se_darwin.corpus.draws import Generator


def _posix(rng: Random) -> str:
    start = rng.choice(("", "/", "//", "///"))
    parts = [rng.choice(("a", "b.c", "..", ".", "")) for _ in range(rng.randint(0, 4))]
    return start + "/".join(parts) + rng.choice(("", "/"))


def _windows(rng: Random) -> str:
    start = rng.choice(("", "c:", "C:\\", "\\\\host\\share", "\\", "//h/s/"))
    parts = [rng.choice(("a", "b.c", "..", ".", "")) for _ in range(rng.randint(0, 4))]
    return start + rng.choice(("\\", "/")).join(parts) + rng.choice(("", "\\"))


def _posix_list(rng: Random) -> list[str]:
    stem = rng.choice(("/a/b", "a", "/"))
    return [stem + "/" + _posix(rng).strip("/") for _ in range(rng.randint(0, 3))]


def _windows_list(rng: Random) -> list[str]:
    stem = rng.choice(("C:\\a\\b", "c:\\a", "a"))
    return [stem + "\\" + rng.choice(("b", "B\\c", "d", "")) for _ in range(rng.randint(0, 3))]


GENERATORS: dict[str, Generator] = {
    "posixpath:join": lambda rng: tuple(_posix(rng) for _ in range(rng.randint(1, 3))),
    "posixpath:split": lambda rng: (_posix(rng),),
    "posixpath:basename": lambda rng: (_posix(rng),),
    "posixpath:dirname": lambda rng: (_posix(rng),),
    "posixpath:normpath": lambda rng: (_posix(rng),),
    "posixpath:commonpath": lambda rng: (_posix_list(rng),),
    "ntpath:join": lambda rng: tuple(_windows(rng) for _ in range(rng.randint(1, 3))),
    "ntpath:split": lambda rng: (_windows(rng),),
    "ntpath:splitdrive": lambda rng: (_windows(rng),),
    "ntpath:splitroot": lambda rng: (_windows(rng),),
    "ntpath:normpath": lambda rng: (_windows(rng),),
    "ntpath:isabs": lambda rng: (_windows(rng),),
    "ntpath:commonpath": lambda rng: (_windows_list(rng),),
    "genericpath:commonprefix": lambda rng: (_posix_list(rng),),
    "genericpath:_splitext": lambda rng: (_posix(rng), "/", None, "."),
    "nturl2path:url2pathname": lambda rng: (
        rng.choice(("", "///", "////h/", "///C|/", "///c:")) + _posix(rng),
    ),
    "nturl2path:pathname2url": lambda rng: (_windows(rng),),
    "zipfile:_parents": lambda rng: (_posix(rng),),
    "zipfile:_ancestry": lambda rng: (_posix(rng),),
    "zipfile._path:_parents": lambda rng: (_posix(rng),),
    "zipfile._path:_ancestry": lambda rng: (_posix(rng),),
}
