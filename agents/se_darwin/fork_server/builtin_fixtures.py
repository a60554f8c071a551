"""Fixtures of pytest itself that the sandbox can offer."""

from __future__ import annotations

import io
import os
import pkgutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .candidate import event_loops
from .log_capture import LogCaptureFixture
from .private_folder import has_folder, make_folder_for

_ENVIRONMENT = os.environ  # noqa: TID251 - that of the tests, in the sandbox
_MISSING = object()


class Captured(NamedTuple):
    """What a test and the function have written since it was last read."""

    out: str
    err: str


class CaptureFixture:
    """What ``capsys`` gives a test: the text that is written to `sys.stdout` and `sys.stderr`."""

    def __init__(self) -> None:
        self._streams = io.StringIO(), io.StringIO()
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._streams

    def readouterr(self) -> Captured:
        """Return what was written since the last call."""
        texts = [stream.getvalue() for stream in self._streams]
        for stream in self._streams:
            stream.seek(0)
            stream.truncate()
        return Captured(*texts)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Capture nothing in the block."""
        captured = sys.stdout, sys.stderr
        self.close()
        try:
            yield
        finally:
            sys.stdout, sys.stderr = captured

    def close(self) -> None:
        """Give both streams back."""
        sys.stdout, sys.stderr = self._before


class MonkeyPatch:
    """What ``monkeypatch`` gives a test: changes that are undone, the last one first."""

    def __init__(self) -> None:
        self._undoing = ExitStack()

    def setattr(
        self,
        target: object,
        name: object,
        value: object = _MISSING,
        raising: bool = True,
    ) -> None:
        """Set an attribute: ``setattr(owner, "name", value)`` or ``setattr("a.b.name", value)``."""
        if value is _MISSING:
            value = name
            target, name = _split(target)
        before = self._attribute(target, str(name), raising)
        if isinstance(target, type):  # a function of a class stays one
            before = vars(target).get(str(name), _MISSING)
        self._undoing.callback(_restore_attribute, target, str(name), before)
        setattr(target, str(name), value)

    def delattr(self, target: object, name: object = _MISSING, raising: bool = True) -> None:
        """Delete an attribute."""
        if name is _MISSING:
            target, name = _split(target)
        before = self._attribute(target, str(name), raising)
        if before is not _MISSING:
            if isinstance(target, type):
                before = vars(target).get(str(name), _MISSING)
            self._undoing.callback(_restore_attribute, target, str(name), before)
            delattr(target, str(name))

    def setitem(self, mapping: MutableMapping[Any, Any], name: object, value: object) -> None:
        """Set an item of a mapping."""
        self._undoing.callback(_restore_item, mapping, name, mapping.get(name, _MISSING))
        mapping[name] = value

    def delitem(
        self,
        mapping: MutableMapping[Any, Any],
        name: object,
        raising: bool = True,
    ) -> None:
        """Delete an item of a mapping."""
        if name not in mapping and not raising:
            return
        before = mapping[name]
        self._undoing.callback(_restore_item, mapping, name, before)
        del mapping[name]

    def setenv(self, name: str, value: object, prepend: str | None = None) -> None:
        """Set an environment variable; with *prepend*, put it and *prepend* before its value."""
        text = str(value)
        if prepend and name in _ENVIRONMENT:
            text = f"{text}{prepend}{_ENVIRONMENT[name]}"
        self.setitem(_ENVIRONMENT, name, text)

    def delenv(self, name: str, raising: bool = True) -> None:
        """Delete an environment variable."""
        self.delitem(_ENVIRONMENT, name, raising)

    def syspath_prepend(self, path: object) -> None:
        """Put *path* at the front of `sys.path`."""
        before = sys.path[:]
        self._undoing.callback(sys.path.__setitem__, slice(None), before)
        sys.path.insert(0, str(path))

    def chdir(self, path: str) -> None:
        """Change the working folder."""
        self._undoing.callback(os.chdir, Path.cwd())
        os.chdir(path)

    @contextmanager
    def context(self) -> Iterator[MonkeyPatch]:
        """Give a further patch, which is undone at the end of the block."""
        inner = MonkeyPatch()
        try:
            yield inner
        finally:
            inner.undo()

    def undo(self) -> None:
        """Undo all changes."""
        self._undoing.close()

    def _attribute(self, target: object, name: str, raising: bool) -> object:
        before = getattr(target, name, _MISSING)
        if before is _MISSING and raising:
            raise AttributeError(f"{target!r} has no attribute {name!r}")
        return before


def _split(path: object) -> tuple[object, str]:
    """Return the owner and the name of the attribute ``a.b.name``."""
    owner, _, name = str(path).rpartition(".")
    return pkgutil.resolve_name(owner), name


def _restore_attribute(target: object, name: str, before: object) -> None:
    if before is not _MISSING:
        setattr(target, name, before)
    elif hasattr(target, name):
        delattr(target, name)


def _restore_item(mapping: MutableMapping[Any, Any], name: object, before: object) -> None:
    if before is not _MISSING:
        mapping[name] = before
    else:
        mapping.pop(name, None)


def _capsys() -> Iterator[CaptureFixture]:
    captured = CaptureFixture()
    yield captured
    captured.close()


def _monkeypatch() -> Iterator[MonkeyPatch]:
    patch = MonkeyPatch()
    yield patch
    patch.undo()


class TempPathFactory:
    """What ``tmp_path_factory`` gives a test: folders in the candidate's private folder."""

    def mktemp(self, basename: str, numbered: bool = True) -> Path:
        """Make a folder."""
        if numbered:
            return make_folder_for(basename)
        folder = self.getbasetemp() / basename
        folder.mkdir()
        return folder

    def getbasetemp(self) -> Path:
        """Return the private folder."""
        return Path(tempfile.gettempdir())


def _caplog() -> Iterator[LogCaptureFixture]:
    captured = LogCaptureFixture()
    yield captured
    captured.close()


class WarningsRecorder:
    """What ``recwarn`` gives a test: the warnings since the fixture was made.

    Args:
        caught: List to which Python appends them.
    """

    def __init__(self, caught: list[warnings.WarningMessage]) -> None:
        self.list = caught

    def __getitem__(self, index: int) -> warnings.WarningMessage:
        return self.list[index]

    def __iter__(self) -> Iterator[warnings.WarningMessage]:
        return iter(self.list)

    def __len__(self) -> int:
        return len(self.list)

    def pop(self, cls: type[Warning] = Warning) -> warnings.WarningMessage:
        """Remove and return the first warning of *cls*, or else of a subclass.

        Raises:
            AssertionError: There is none.
        """
        fitting = [warning for warning in self.list if issubclass(warning.category, cls)]
        if not fitting:
            raise AssertionError(f"{cls.__name__} not found in warning list")
        first = next((warning for warning in fitting if warning.category is cls), fitting[0])
        self.list.remove(first)
        return first

    def clear(self) -> None:
        """Forget the warnings."""
        self.list.clear()


def _recwarn() -> Iterator[WarningsRecorder]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield WarningsRecorder(caught)


def _tmp_path() -> Iterator[Path]:
    yield make_folder_for("test_")


def _tmp_path_factory() -> Iterator[TempPathFactory]:
    yield TempPathFactory()


_WITH_FILES: Mapping[str, Callable[[], Iterator[object]]] = {
    "tmp_path": _tmp_path,
    "tmp_path_factory": _tmp_path_factory,
}


def _event_loop() -> Iterator[object]:
    """What ``event_loop`` of pytest-asyncio was: the loop of all tests."""
    yield event_loops().tests_loop()


def _anyio_backend() -> Iterator[str]:
    yield "asyncio"


_OF_ALL_HOSTS: Mapping[str, Callable[[], Iterator[object]]] = {
    "caplog": _caplog,
    "capsys": _capsys,
    "monkeypatch": _monkeypatch,
    "recwarn": _recwarn,
}


_WITH_LOOP: Mapping[str, Callable[[], Iterator[object]]] = {
    "anyio_backend": _anyio_backend,
    "anyio_backend_name": _anyio_backend,
    "event_loop": _event_loop,
}


def builtin_fixtures() -> Mapping[str, Callable[[], Iterator[object]]]:
    """Generator functions by name; those of files and loops only if this process has these."""
    with_loop = {} if event_loops() is None else _WITH_LOOP
    return {**_OF_ALL_HOSTS, **(_WITH_FILES if has_folder() else {}), **with_loop}


_NO_FILES = (
    "this sandbox has no files, because the host lacks namespaces or Landlock: give the function "
    "text or io.StringIO"
)
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(_WITH_FILES, _NO_FILES),
    **dict.fromkeys(("tmpdir", "tmpdir_factory"), "write tmp_path, a pathlib.Path"),
}
"""Why a fixture of pytest's own cannot be used, by its name."""
