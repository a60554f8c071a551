"""All checks of recorded data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories.data_checks.duplicates import find_duplicates
from infrastructure.trajectories.data_checks.finding import Finding
from infrastructure.trajectories.data_checks.leaks import find_leaks
from infrastructure.trajectories.data_checks.time_order import find_drift
from infrastructure.trajectories.split import Part

SAMPLED_ROWS = 20_000
"""Rows that the checks for leaks and for drift look at, at most, evenly spread."""


def check_data(
    spec: TransitionSpec, transitions: Sequence[Transition], rows: Mapping[Part, Sequence[int]]
) -> list[Finding]:
    """Look for duplicates across groups, leaks of the outcome, and drift over time.

    Args:
        transitions: Usable transitions, in the order in which they were recorded.
        rows: Numbers of the rows of each part, as a split gives them.
    """
    duplicates = find_duplicates(spec, transitions, rows)
    found = [] if duplicates.finding is None else [duplicates.finding]
    copies = frozenset(duplicates.repeated.tolist() if found else ())
    every = max(1, len(transitions) // SAMPLED_ROWS)
    sampled: dict[Part, Sequence[int]] = {
        part: [row for row in numbers if row % every == 0 and row not in copies]
        for part, numbers in rows.items()
    }
    learned = [transitions[row] for row in sampled["train"]]
    held_out = [transitions[row] for part in ("calibration", "test") for row in sampled[part]]
    if learned and held_out:
        found += find_leaks(spec, learned, held_out)
    if spec.split == "group":
        kept = sorted(row for numbers in sampled.values() for row in numbers)
        found += find_drift(spec, [transitions[row] for row in kept])
    return found
