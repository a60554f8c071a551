"""Decisions with their outcomes, as the log holds them: for estimates and for export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infrastructure.decisions.content_hash import content_hash
from infrastructure.decisions.log import (
    DecisionLog,
    LogWriteError,
    OnDamage,
    read_record,
    read_records,
)
from infrastructure.decisions.records import BEGINNING, DamagedLineError, LogRecord, Place

_TOGETHER = 1000  # decisions that are appended in one batch


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedDecision:
    """A decision, or a choice that a client made by itself, and what came of it.

    Attributes:
        id: Id of the decision.
        group: Task, conversation or customer that it belongs to.
        at: Unix time of the decision in seconds; 0 if the client did not tell.
        observation: What was known.
        actions: Options in the order given.
        chosen: Position of the action that was taken.
        propensity: Probability with which it was chosen; None if unknown, or if the outcome came
            too late to count as the decision's.
        propensities: Probabilities of all actions; None if only that of the chosen one is known.
        version: Version of the model that answered; None without one.
        reward: Reported reward; None if none was reported.
        next_observation: Reported fields of the outcome.
    """

    id: str
    group: str
    at: float
    observation: Mapping[str, Any]
    actions: Sequence[Mapping[str, Any]]
    chosen: int
    propensity: float | None
    propensities: Sequence[float] | None
    version: str | None
    reward: float | None
    next_observation: Mapping[str, Any]


def logged_decisions(log: Path, on_damage: OnDamage | None = None) -> Iterator[LoggedDecision]:
    """Yield each decision in the folder *log* that has an outcome, in the order of the outcomes.

    Decisions whose outcome is known only in part come last. Damaged lines are left out.

    Raises:
        OSError: A segment cannot be read.
    """
    partial: dict[str, LogRecord] = {}
    for _, _, record in read_records(log, BEGINNING, on_damage):
        if record["kind"] != "outcome":
            continue
        if record["state"] == "partial":
            partial[record["id"]] = record
            continue
        partial.pop(record["id"], None)
        yield from _joined(log, record)
    for record in partial.values():
        yield from _joined(log, record)


def _joined(log: Path, outcome: LogRecord) -> Iterator[LoggedDecision]:
    try:
        decision = read_record(log, Place(*outcome["of"]))
    except (OSError, DamagedLineError):
        return  # its segment was removed or is damaged, which `read_records` reports
    answer, late = decision.get("answer") or {}, outcome["state"] == "late"
    yield LoggedDecision(
        id=decision["id"],
        group=decision["group"],
        at=decision.get("at") or 0.0,
        observation=decision["observation"],
        actions=decision["actions"],
        chosen=decision["chosen"],
        propensity=None if late else decision["propensity"],
        propensities=answer.get("propensities"),
        version=answer.get("version"),
        reward=outcome.get("reward"),
        next_observation=outcome.get("next_observation") or {},
    )


def append_decisions(log: Path, decisions: Iterable[LoggedDecision]) -> int:
    """Append decisions of elsewhere with their outcomes; one whose id is known counts as appended.

    Returns:
        Number of decisions that were new.

    Raises:
        LogBusyError: A predictor writes to this log.
        LogWriteError: The disk is full or fails.
    """
    with closing(DecisionLog(log)) as writer:
        try:
            writer.open()
        except OSError as error:
            raise error if isinstance(error, LogWriteError) else LogWriteError(log, error) from None
        known = {record["id"] for _, _, record in read_records(log) if record["kind"] != "outcome"}
        new, waiting = 0, list[LoggedDecision]()
        for decision in decisions:
            if decision.id not in known:
                known.add(decision.id)
                waiting.append(decision)
                new += 1
            if len(waiting) >= _TOGETHER:
                _append(writer, waiting)
                waiting = []
        _append(writer, waiting)
    return new


def _append(writer: DecisionLog, decisions: Sequence[LoggedDecision]) -> None:
    """Append the decisions as choices, then their outcomes."""
    choices = [
        {
            "kind": "choice",
            "id": each.id,
            "at": each.at,
            "content": content_hash("imported", each.id),
            "group": each.group,
            "observation": each.observation,
            "actions": each.actions,
            "chosen": each.chosen,
            "propensity": each.propensity,
            "deadline": each.at,
        }
        for each in decisions
    ]
    places = writer.append(choices) if choices else []
    outcomes = [
        {
            "kind": "outcome",
            "id": each.id,
            "at": each.at,
            "content": content_hash("imported", each.id),
            "report": None,
            "of": place,
            "deadline": each.at,
            "state": "recorded",
            "next_observation": each.next_observation,
            **({} if each.reward is None else {"reward": each.reward}),
        }
        for place, each in zip(places, decisions, strict=True)
    ]
    if outcomes:
        writer.append(outcomes)
