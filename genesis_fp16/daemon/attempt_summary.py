"""What an attempt's row and its files say about it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from genesis_fp16.domain.attempt import Attempt, attempt_folder
from genesis_fp16.domain.proposals import LastProposal
from infrastructure.events import EventTail
from infrastructure.events.event import (
    Evaluated,
    Notice,
    PhaseStarted,
    PrecisionChanged,
    Progress,
)

_DOING = {
    "collect": "collecting",
    "train": "training",
    "evaluate": "evaluating",
    "publish": "publishing",
}
_ABOUT_DATA = ("training_data_incomplete", "training_data_doubtful")  # events of notices
_ABOUT_END = ("training_stopped_early", "preemption_noticed")
_MOST_PROBLEMS = 20


def summarize_attempt(home: Path, attempt: Attempt, longest: float) -> dict[str, Any]:
    """The attempt's row, the paths of its files that exist, and a summary of its events.

    Of more than *longest* bytes of events, the newest quarter of that is read.
    """
    folder = attempt_folder(home, attempt)
    log, events_file = folder / "worker.log", folder / "events.ndjson"
    tail = EventTail(events_file, longest_backlog=longest)
    counts: Counter[str] = Counter()
    changes: list[PrecisionChanged] = []
    evaluated, activity, trouble = None, None, ""
    data_problems: dict[str, None] = {}
    about_end: dict[str, Mapping[str, str]] = {}
    proposal = LastProposal()
    try:
        for event in tail.read():
            counts[event.kind] += 1
            proposal.note(event)
            if isinstance(event, PrecisionChanged):
                changes.append(event)
            elif isinstance(event, PhaseStarted):
                activity = _DOING[event.phase]
            elif isinstance(event, Progress):
                activity = _described(event)
            elif isinstance(event, Evaluated):
                evaluated = event
            elif isinstance(event, Notice) and event.event in _ABOUT_END:
                about_end[event.event] = event.fields
            elif isinstance(event, Notice) and event.event in _ABOUT_DATA:
                said = (event.fields.get("problem"), event.fields.get("remedy"))
                data_problems["; ".join(filter(None, said))] = None
    except OSError as error:
        trouble = f"{events_file.name} cannot be read: {error.strerror or error}"
    return {
        **asdict(attempt),
        "ending": about_end.get("preemption_noticed", {}).get("notice", attempt.ending),
        "log": str(log) if os.path.lexists(log) else None,
        "events_file": str(events_file) if os.path.lexists(events_file) else None,
        "events_trouble": trouble,
        "events": dict(counts),
        "events_not_read_bytes": tail.skipped_bytes,
        "activity": activity if attempt.finished_at is None else None,
        "training_stopped_early": about_end.get("training_stopped_early"),
        "precision_proposal": proposal.text,
        "data_problems": list(data_problems)[:_MOST_PROBLEMS],
        "precision": [
            {"time": event.time, "step": event.step, "loss_scale": event.loss_scale}
            | event.state.fields
            for event in changes
        ],
        "evaluation": None if evaluated is None else evaluated.model_dump(mode="json"),
    }


def _described(progress: Progress) -> str:
    """Such as ``collecting: 150 of 12,000 candidates``."""
    total = "" if progress.total is None else f" of {progress.total:,}"
    return f"{_DOING[progress.phase]}: {progress.done:,}{total} {progress.unit}".rstrip()
