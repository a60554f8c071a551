"""Results as tables and as rows of CSV files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from benchmarks.measuring.spread import Spread
from benchmarks.measuring.table import format_table
from benchmarks.step.results import Figure, NotRun, Result

_MEBI = 1024 * 1024
STEP_COLUMNS = (
    "device", "torch", "size", "loop", "mode", "requested", "effective", "milliseconds",
    "low_quartile", "high_quartile", "rounds", "host_reads_per_step", "peak_mebibytes", "remark",
)  # fmt: skip
FIGURE_COLUMNS = (
    "device", "torch", "what", "figure", "low_quartile", "high_quartile", "at_most", "verdict",
)  # fmt: skip


def step_rows(results: Iterable[Result], machine: Mapping[str, str]) -> list[dict[str, str]]:
    """Return a row of `STEP_COLUMNS` per case; the remark of a case not run is its reason."""
    return [{**dict.fromkeys(STEP_COLUMNS, ""), **machine, **_step_row(r)} for r in results]


def _step_row(result: Result) -> dict[str, str]:
    case = result.case
    row = {
        "size": case.size,
        "loop": case.loop,
        "mode": case.mode,
        "requested": case.precision,
    }
    if isinstance(result, NotRun):
        return {**row, "effective": "not run", "remark": result.reason}
    spread = Spread.of([1000.0 * seconds for seconds in result.seconds])
    peak = result.peak_bytes
    return {
        **row,
        "effective": result.effective,
        "milliseconds": f"{spread.median:.4f}",
        "low_quartile": f"{spread.low:.4f}",
        "high_quartile": f"{spread.high:.4f}",
        "rounds": str(len(result.seconds)),
        "host_reads_per_step": f"{result.host_reads:g}",
        "peak_mebibytes": "" if peak is None else f"{peak / _MEBI:.1f}",
        "remark": result.note,
    }


def figure_rows(figures: Iterable[Figure], machine: Mapping[str, str]) -> list[dict[str, str]]:
    """Return a row of `FIGURE_COLUMNS` per figure."""
    return [{**machine, **_figure_row(figure)} for figure in figures]


def _figure_row(figure: Figure) -> dict[str, str]:
    spread = figure.spread
    limit = figure.exactly if figure.exactly is not None else figure.at_most
    return {
        "what": figure.what,
        "figure": "" if spread is None else f"{spread.median:.4g}",
        "low_quartile": "" if spread is None else f"{spread.low:.4g}",
        "high_quartile": "" if spread is None else f"{spread.high:.4g}",
        "at_most": "" if limit is None else f"{limit:g}",
        "verdict": figure.verdict,
    }


def format_steps(results: Iterable[Result], machine: Mapping[str, str]) -> str:
    """Return the measured cases as a table, then the other cases by reason."""
    rows = step_rows(results, machine)
    missing: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        if row["effective"] == "not run":
            missing[row["remark"]].append(row)
    columns = [name for name in STEP_COLUMNS if name not in machine]
    measured = [row for row in rows if row["effective"] != "not run"]
    lines = [format_table(measured, columns)]
    for reason, cases in missing.items():
        what = "; ".join(
            f"{name} {', '.join(dict.fromkeys(row[name] for row in cases))}"
            for name in ("size", "loop", "requested", "mode")
        )
        lines.append(f"not run ({len(cases)} cases: {what}): {reason}")
    return "\n".join(lines)


def format_figures(figures: Iterable[Figure]) -> str:
    """Return the figures with a value or a limit as a table that ends in limit and verdict."""
    shown = [f for f in figures if f.spread is not None or f.at_most is not None]
    rows = figure_rows(shown, {})
    for row in rows:
        row["limit"] = f"{row['at_most'] or '-':<5} {row['verdict']}"
    return format_table(rows, ["what", "figure", "low_quartile", "high_quartile", "limit"])
