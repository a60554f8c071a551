"""Log lines: a constant event and its fields, for people on a terminal, as JSON elsewhere."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

import structlog
from structlog.typing import EventDict, Processor

from genesis_fp16.settings import Settings

log = structlog.get_logger()


def configure_logging(settings: Settings, copy: Processor | None = None) -> None:
    """Send the daemon's log, and warnings of libraries, to stderr.

    The stream is looked up at each line, because a progress bar replaces it. *copy* sees each line,
    too.
    """
    as_json = settings.log_format == "json" or (
        settings.log_format == "auto" and not sys.stderr.isatty()
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso" if as_json else "%Y-%m-%d %H:%M:%SZ", utc=True),
    ]
    if copy is not None:
        shared.append(copy)
    rendering: list[Processor]
    if as_json:
        rendering = [
            structlog.processors.format_exc_info,
            _head_first,
            structlog.processors.JSONRenderer(),
        ]
    else:
        rendering = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                sort_keys=False,  # fields in the order in which they were written
                exception_formatter=structlog.dev.plain_traceback,  # rich's shows every local value
            )
        ]
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        logger_factory=lambda *_: _Printer(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)


def log_ignored_settings(settings: Settings) -> None:
    """Warn once of all settings that a release has removed, and of names that are not settings."""
    if settings.removed:
        log.warning("settings_removed", ignored=tuple(settings.removed.values()))
    if settings.unknown:
        log.warning("settings_unknown", ignored=tuple(settings.unknown.values()))


class _Printer(structlog.PrintLogger):
    """Prints lines. One that cannot be written, for example to a full disk, is lost.

    The daemon must go on without its log: an error here would end its loop.
    """

    def msg(self, message: str) -> None:
        """Print *message*, if its stream takes it."""
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def keep_stdout_clear() -> None:
    """Send what the library logs in a command to stderr; stdout is for the command's result."""
    structlog.configure(
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _head_first(_logger: object, _name: str, line: EventDict) -> EventDict:
    """Begin each line with the fields that every line has."""
    return {name: line.pop(name) for name in ("timestamp", "level", "event")} | dict(line)
