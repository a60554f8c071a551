"""Results as a table, as CSV and as a plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from benchmarks.measuring.spread import Spread
from benchmarks.measuring.table import format_table
from benchmarks.step.results import Finding, NotRun, Result

_MEBI = 1024 * 1024
STEP_COLUMNS = (
    "device", "torch", "size", "loop", "mode", "requested", "effective", "milliseconds",
    "low_quartile", "high_quartile", "rounds", "host_reads_per_step", "peak_mebibytes", "remark",
)  # fmt: skip
FINDING_COLUMNS = (
    "device", "torch", "what", "figure", "low_quartile", "high_quartile", "at_most", "verdict",
)  # fmt: skip


def step_rows(results: Iterable[Result], machine: Mapping[str, str]) -> list[dict[str, str]]:
    """One row a case, with `STEP_COLUMNS`; a case that did not run has its reason as remark."""
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


def finding_rows(findings: Iterable[Finding], machine: Mapping[str, str]) -> list[dict[str, str]]:
    """One row a finding, with `FINDING_COLUMNS`."""
    return [{**machine, **_finding_row(finding)} for finding in findings]


def _finding_row(finding: Finding) -> dict[str, str]:
    spread = finding.spread
    limit = finding.exactly if finding.exactly is not None else finding.at_most
    return {
        "what": finding.what,
        "figure": "" if spread is None else f"{spread.median:.4g}",
        "low_quartile": "" if spread is None else f"{spread.low:.4g}",
        "high_quartile": "" if spread is None else f"{spread.high:.4g}",
        "at_most": "" if limit is None else f"{limit:g}",
        "verdict": finding.verdict,
    }


def format_steps(results: Iterable[Result], machine: Mapping[str, str]) -> str:
    """The measured cases as a table, then the others by reason."""
    rows = step_rows(results, machine)
    missing: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        if row["effective"] == "not run":
            missing[row["remark"]].append(row)
    columns = [name for name in STEP_COLUMNS if name not in machine]
    measured = [row for row in rows if row["effective"] != "not run"]
    lines = [format_table(measured, columns)]
    for reason, same in missing.items():
        what = "; ".join(
            f"{name} {', '.join(dict.fromkeys(row[name] for row in same))}"
            for name in ("size", "loop", "requested", "mode")
        )
        lines.append(f"not run ({len(same)} cases: {what}): {reason}")
    return "\n".join(lines)


def format_findings(findings: Iterable[Finding]) -> str:
    """What has a figure or a limit, as a table that ends in the limit and the verdict."""
    shown = [f for f in findings if f.spread is not None or f.at_most is not None]
    rows = finding_rows(shown, {})
    for row in rows:
        row["limit"] = f"{row['at_most'] or '-':<5} {row['verdict']}"
    return format_table(rows, ["what", "figure", "low_quartile", "high_quartile", "limit"])
