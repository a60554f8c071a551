"""The error of modules that need the extra ``policy``, where it is not installed."""

from __future__ import annotations


class MissingExtraError(ModuleNotFoundError):
    """A library that policies need is not installed; names the command that installs it.

    Args:
        cause: Error of the import.
    """

    def __init__(self, cause: ModuleNotFoundError) -> None:
        super().__init__(
            f"{cause.name} is not installed: pip install 'genesis-fp16[policy]'", name=cause.name
        )
