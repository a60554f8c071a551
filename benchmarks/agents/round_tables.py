"""What the processes of a round took, and how good their models are, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.agents.businesses import BUSINESSES
from benchmarks.agents.records import rule_of
from benchmarks.agents.round import THEN, Measured, Quality, Way

Table = tuple[list[dict[str, str]], Sequence[str]]
"""Rows and columns."""

_NUMBERS = ("CPU seconds", "steps", "accuracy", "nats")
_BEST = {b.name: 1.0 - rule_of(b, number).noise for number, b in enumerate(BUSINESSES)}


class OtherWeightsError(RuntimeError):
    """An agent learned something else than in a worker of its own."""


def require_equal_weights(way: Way, done: Measured, cold: Mapping[str, Measured]) -> None:
    """Compare the weights of all agents with those of workers of their own.

    Raises:
        OtherWeightsError: A bit differs.
    """
    for name, outcome in done.outcomes.items():
        if outcome.weights != cold[name].outcomes[name].weights:
            raise OtherWeightsError(f"{way}: {name} has other weights than in a worker of its own")


def agent_rows(
    cold: Mapping[Way, Mapping[str, Measured]], qualities: Mapping[Way, Mapping[str, Quality]]
) -> Table:
    """A row for each agent: what its cold worker took, and how good its published model is."""
    rows = []
    for name in next(iter(cold.values())):
        row = {"agent": name, "best possible": f"{_BEST[name]:.2f}"}
        for way, measured in cold.items():
            process, quality = measured[name], qualities[way].get(name)
            row |= {
                f"{column}, {_time(way)}": text
                for column, text in zip(
                    _NUMBERS,
                    (
                        f"{process.cpu_seconds:.1f}",
                        str(process.outcomes[name].steps),
                        "none published" if quality is None else f"{quality.accuracy:.3f}",
                        "" if quality is None else f"{quality.nats:.3f}",
                    ),
                    strict=True,
                )
            }
        rows.append(row)
    columns = [f"{column}, {_time(way)}" for column in _NUMBERS for way in cold]
    return rows, ("agent", *columns, "best possible")


def way_rows(cold: Mapping[Way, Mapping[str, Measured]], together: Mapping[Way, Measured]) -> Table:
    """A row for each way: what the round took, compared with the first way and the one before."""
    processes: dict[Way, Iterable[Measured]] = {way: each.values() for way, each in cold.items()}
    processes |= {way: [done] for way, done in together.items()}
    first, before, rows = None, None, []
    for way, measured in processes.items():
        seconds = sum(each.cpu_seconds for each in measured)
        first, before = first or seconds, before or seconds
        published = sum(o.published for each in measured for o in each.outcomes.values())
        rows.append(
            {
                "way": way,
                "CPU seconds": f"{seconds:.1f}",
                "first way ÷ this": f"{first / seconds:.2f}",
                "way before ÷ this": f"{before / seconds:.2f}",
                "largest process, MiB": f"{max(each.peak_mebibytes for each in measured):.0f}",
                "published": str(published),
            }
        )
        before = seconds
    return rows, tuple(rows[0])


def _time(way: Way) -> str:
    return "then" if way == THEN else "now"
