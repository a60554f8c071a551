"""Decisions of running agents: content hashes, and the log of what was acknowledged.

Imports neither torch nor the daemon. The predictor writes the log, the worker takes it in.
"""

from infrastructure.decisions.content_hash import content_hash
from infrastructure.decisions.intake import IntakeReport, take_in
from infrastructure.decisions.log import (
    LOG_FOLDER,
    DecisionLog,
    LogBusyError,
    LogWriteError,
    read_records,
)
from infrastructure.decisions.records import LogRecord, Place
from infrastructure.decisions.waiting import WaitingOutcomes

__all__ = [
    "LOG_FOLDER",
    "DecisionLog",
    "IntakeReport",
    "LogBusyError",
    "LogRecord",
    "LogWriteError",
    "Place",
    "WaitingOutcomes",
    "content_hash",
    "read_records",
    "take_in",
]
