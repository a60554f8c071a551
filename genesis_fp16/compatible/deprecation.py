"""The warning that every compatible name gives."""

from __future__ import annotations

import warnings


def warn_deprecated(name: str, successor: str, *, stacklevel: int = 3) -> None:
    """Warn that *name* is Genesis' own, and name the *successor*."""
    warnings.warn(
        f"{name} is a name of Genesis' own code: use {successor}",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
