"""What ``caplog`` gives a test: the records that are logged in its process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from .refusal import NotOfferedError

_FORMAT = "%(levelname)-8s %(name)s:%(filename)s:%(lineno)d %(message)s"


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__(0)
        self.setFormatter(logging.Formatter(_FORMAT))
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class LogCaptureFixture:
    """Records what reaches the root logger."""

    def __init__(self) -> None:
        self.handler = _Recorder()
        self._levels: dict[logging.Logger, int] = {}
        logging.getLogger().addHandler(self.handler)

    @property
    def records(self) -> list[logging.LogRecord]:
        """Records since the last `clear`."""
        return self.handler.records

    @property
    def text(self) -> str:
        """Formatted records, one a line."""
        return "".join(f"{self.handler.format(record)}\n" for record in self.records)

    @property
    def messages(self) -> list[str]:
        """Messages of the records."""
        return [record.getMessage() for record in self.records]

    @property
    def record_tuples(self) -> list[tuple[str, int, str]]:
        """Logger, level and message of the records."""
        return [(record.name, record.levelno, record.getMessage()) for record in self.records]

    def get_records(self, when: str) -> list[logging.LogRecord]:
        """Records of the test's own phase, ``call``.

        Raises:
            NotOfferedError: *when* is another phase: the sandbox runs a test as one.
        """
        if when != "call":
            raise NotOfferedError(f"caplog.get_records({when!r})")
        return self.records

    def clear(self) -> None:
        """Forget the records."""
        self.handler.records = []

    def set_level(self, level: int | str, logger: str | None = None) -> None:
        """Set the level of a logger, by default the root, until the test ends."""
        target = logging.getLogger(logger)
        self._levels.setdefault(target, target.level)
        target.setLevel(level)
        self.handler.setLevel(level)

    @contextmanager
    def at_level(self, level: int | str, logger: str | None = None) -> Iterator[None]:
        """Set the level of a logger in the block."""
        target = logging.getLogger(logger)
        before = target.level, self.handler.level
        target.setLevel(level)
        self.handler.setLevel(level)
        try:
            yield
        finally:
            target.setLevel(before[0])
            self.handler.setLevel(before[1])

    @contextmanager
    def filtering(self, filter_: logging.Filter) -> Iterator[None]:
        """Record only what passes a filter in the block."""
        self.handler.addFilter(filter_)
        try:
            yield
        finally:
            self.handler.removeFilter(filter_)

    def close(self) -> None:
        """Stop recording; loggers have their levels again."""
        for logger, level in self._levels.items():
            logger.setLevel(level)
        logging.getLogger().removeHandler(self.handler)
