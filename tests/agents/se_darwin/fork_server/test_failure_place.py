from __future__ import annotations

import pytest

from agents.se_darwin.fork_server.failure_place import failure_place


class SilentError(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError


def helper(error: Exception) -> None:
    raise error


def outer(error: Exception) -> None:
    helper(error)


@pytest.mark.parametrize(
    ("error", "files", "place"),
    [
        (ValueError("no"), {__file__: ""}, "helper: no"),
        (ValueError("x" * 900), {__file__: ""}, f"helper: {'x' * 200}"),
        (ValueError(), {__file__: ""}, "helper"),
        (SilentError(), {__file__: ""}, "helper"),
        (ValueError("no"), {}, ""),
    ],
)
def test_the_innermost_function_of_the_tests_is_named(
    error: Exception, files: dict[str, str], place: str
) -> None:
    with pytest.raises(type(error)) as caught:
        outer(error)
    assert failure_place(caught.value, files) == place
