"""Attempts at all bugs of a source, each in a process of its own; resumable."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from pydantic import ValidationError

from benchmarks.se_darwin.foreign.attempt import AttemptRecord, Conditions, request_attempt
from benchmarks.se_darwin.foreign.bug import ForeignBug

_GRACE_SECONDS = 180.0  # for the start, what follows the search, and the hidden tests


def read_records(file: Path) -> list[AttemptRecord]:
    """Return the records of *file*, without a last line that an interrupt cut off.

    Raises:
        ValueError: Another line is not a record; the message names it.
    """
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(AttemptRecord.model_validate_json(line))
        except ValidationError as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise ValueError(f"{file}:{number} is not a record of an attempt: {error}") from None
    return records


def measure(
    bugs: Sequence[ForeignBug],
    conditions: Conditions,
    output: Path,
    *,
    jobs: int,
    log: Callable[[str], None],
) -> None:
    """Attempt *bugs* and append a record of each to *output*; skip those recorded there.

    Raises:
        ValueError: *output* has records under other conditions or of other bugs, or the agent
            ranked by something else than *conditions* say.
    """
    done = read_records(output)
    _check(done, bugs, conditions, output)
    known = {record.digest for record in done}
    remaining = [bug for bug in bugs if bug.digest not in known]
    text = "".join(record.model_dump_json() + "\n" for record in done)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    with output.open("a") as file, ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_attempt, bug, conditions) for bug in remaining]
        try:
            for count, future in enumerate(as_completed(futures), 1 + len(done)):
                record = future.result()
                _check_ranker(record)
                file.write(record.model_dump_json() + "\n")
                file.flush()
                log(f"{count} of {len(bugs)}: {_line(record)}")
        finally:
            pool.shutdown(cancel_futures=True)


def _attempt(bug: ForeignBug, conditions: Conditions) -> AttemptRecord:
    request = request_attempt(bug, conditions)
    seconds = (1 + conditions.answers) * (conditions.max_seconds + _GRACE_SECONDS)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.se_darwin.foreign.attempt"],
            input=request.model_dump_json(),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return AttemptRecord.failed(request, f"the attempt did not end within {seconds:g} s")
    try:
        return AttemptRecord.model_validate_json(done.stdout)
    except ValidationError:
        last = "; ".join(done.stderr.splitlines()[-3:])
        return AttemptRecord.failed(request, f"ended with status {done.returncode}: {last}")


def _check(
    done: Sequence[AttemptRecord], bugs: Sequence[ForeignBug], conditions: Conditions, file: Path
) -> None:
    digests = {bug.digest for bug in bugs}
    for record in done:
        if record.conditions != conditions:
            raise ValueError(
                f"{file} has attempts with {record.conditions!r}, not {conditions!r}: write to "
                "another file"
            )
        if record.digest not in digests:
            raise ValueError(
                f"{file} has an attempt at {record.name!r}, which is not among the bugs to attempt "
                "now, or has changed: write to another file"
            )


def _check_ranker(record: AttemptRecord) -> None:
    """Refuse an attempt without the model that was asked for: it would count as the model's."""
    if record.conditions.ranker == "model" and record.ranked_by.startswith("suspicion"):
        raise ValueError(
            f"{record.name} was ranked by {record.ranked_by}: name a folder with --model"
        )


def _line(record: AttemptRecord) -> str:
    if record.error:
        return f"{record.name}: error: {record.error}"
    how = "right" if record.right else "repaired, wrong" if record.repaired else "not repaired"
    line = f"{record.name}: {how}, {record.executions} executions, {record.seconds:.1f} s"
    for proposer in record.proposers if isinstance(record.proposers, list) else ():
        summary = proposer.get("summary") if isinstance(proposer, dict) else ""
        line += f"; {summary}" if summary else ""
    return f"{line}; answered: {_line(record.answered)}" if record.answered else line
