"""Two runs side by side: what was set, what they trained on, how precise, and how it went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from genesis_fp16.api.page.formatting import clock, count, number
from genesis_fp16.api.page.shown import why
from genesis_fp16.api.views import ModelView, RunDetail
from genesis_fp16.domain.moments import duration
from genesis_fp16.domain.redaction import shown

_OF_THE_ATTEMPT = (  # places and identities, which always differ
    *("run_id", "attempt", "incarnation", "agent", "agent_folder", "run_folder", "repeats"),
    *("attempt_folder", "precision", "lab", "profile", "seed", "task"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One thing that two runs are compared by."""

    name: str
    first: str
    second: str

    @property
    def differs(self) -> bool:
        """Whether the two are not alike."""
        return self.first != self.second


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A run with what is known about it.

    Attributes:
        spec: Specification of its newest attempt; empty if it is gone.
        model: The version of the agent's model that it published; None if none is kept.
    """

    run: RunDetail
    spec: Mapping[str, JsonValue]
    model: ModelView | None


def compare_results(first: Side, second: Side) -> list[Fact]:
    """Precision, data, steps and held-out metrics."""
    left, right = _results(first), _results(second)
    return [
        Fact(name=name, first=left.get(name, ""), second=right.get(name, ""))
        for name in dict.fromkeys([*left, *right])
    ]


def compare_settings(first: Side, second: Side) -> list[Fact]:
    """Settings in force, those that differ first."""
    left, right = _settings(first.spec), _settings(second.spec)
    facts = [
        Fact(name=name, first=left.get(name, ""), second=right.get(name, ""))
        for name in dict.fromkeys([*left, *right])
    ]
    return sorted(facts, key=lambda fact: (not fact.differs, fact.name))


def _results(side: Side) -> dict[str, str]:
    run = side.run
    precision = run.precision or {}
    facts = {
        "state": str(run.state).replace("_", " "),
        "began": clock(run.started_at),
        "trained for": duration(run.active_seconds),
        "seed": str(run.seed),
        "precision": str(precision.get("effective", "")).upper(),
        "decided by": why(str(precision.get("reason", ""))),
        "steps": count(run.steps),
        "steps in half precision": count(run.half_steps),
        "overflows": count(run.overflows),
        "losses that were not finite": count(run.nonfinite_losses),
    }
    if side.model is not None and side.model.transitions is not None:
        facts["transitions"] = count(side.model.transitions)
        facts["data (SHA-256)"] = str(side.model.data_sha256 or "")[:16]
    facts |= {f"held-out {name}": number(value) for name, value in (run.metrics or {}).items()}
    if run.published is not None:
        facts["published"] = "yes" if run.published else "no"
    facts["reason"] = run.error or run.reason or ""
    return facts


def _settings(spec: Mapping[str, JsonValue]) -> dict[str, str]:
    """Each setting of *spec* by its dotted name, without credentials."""
    flat: dict[str, str] = {}

    def add(prefix: str, value: JsonValue) -> None:
        if isinstance(value, dict) and value:
            for name, part in value.items():
                add(f"{prefix}.{name}" if prefix else name, part)
        else:
            flat[prefix] = "" if value is None else shown(prefix.rpartition(".")[2], value)

    for name, value in spec.items():
        if name not in _OF_THE_ATTEMPT:
            add("" if name in ("trainer", "loop") else name, value)
    return flat
