"""Keeps another distribution's ``infrastructure`` or ``agents`` from replacing ours in an import.

Ours are namespace packages, so that they overwrite nothing; a regular package of the same name,
anywhere on the path, would win. Genesis has both.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path

LIBRARY = "infrastructure"
AGENTS = "agents"
OURS = Path(__file__).resolve().parents[2]


class ForeignLibraryError(ImportError):
    """This process uses another package of our library's name."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"{LIBRARY!r} in this process is {found}, not the library of genesis-fp16 in {OURS}; "
            "run the program genesis-fp16, which puts its own first, or ask its models from here "
            "by genesis-client"
        )


def own_distribution_first() -> None:
    """Make ``infrastructure`` ours in this process, and in the children that it starts.

    For processes of our own alone: code of Genesis could no longer import its own.

    Raises:
        ForeignLibraryError: The process has imported another one already.
    """
    prefer_ours(LIBRARY)
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in entries if not _is_foreign(PathFinder.find_spec(LIBRARY, [entry]))]
    if kept != entries:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)


def prefer_ours(package: str) -> None:
    """Import our *package* as it would be if no other distribution had one of that name.

    Raises:
        ForeignLibraryError: The process has imported another one already.
    """
    loaded = sys.modules.get(package)
    if loaded is not None:
        if _is_foreign(loaded.__spec__):
            raise ForeignLibraryError(_place(loaded.__spec__))
        return
    try:
        found = find_spec(package)
    except ValueError:  # a damaged module of that name
        found = None
    if found is None or _is_foreign(found):
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(OURS / package)]
        sys.modules[package] = module_from_spec(spec)


def require_own_library() -> None:
    """Check that our library can be imported, whose name another package may have.

    Raises:
        ForeignLibraryError: It cannot.
    """
    loaded = sys.modules.get(LIBRARY)
    spec = find_spec(LIBRARY) if loaded is None else loaded.__spec__
    in_spec = None if spec is None else spec.submodule_search_locations
    places = getattr(loaded, "__path__", in_spec)  # its code may have added to it
    if OURS / LIBRARY not in {Path(place).resolve() for place in places or ()}:
        raise ForeignLibraryError(_place(spec))


def _is_foreign(spec: ModuleSpec | None) -> bool:
    """Whether importing *spec* would not yield our namespace package, or not before others."""
    if spec is None:
        return False
    places = [*(spec.submodule_search_locations or ())]
    is_namespace = spec.origin is None and bool(places)
    return not is_namespace or Path(places[0]).resolve().parent != OURS


def _place(spec: ModuleSpec | None) -> str:
    if spec is None:
        return "missing"
    places = [*(spec.submodule_search_locations or ())]
    return str(Path(spec.origin or (places or ["nothing"])[0]).resolve())
