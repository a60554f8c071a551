"""``python -m benchmarks.se_darwin.foreign``: measure repairs of bugs that nobody here wrote."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.se_darwin.foreign.attempt import Conditions
from benchmarks.se_darwin.foreign.comparison import compare
from benchmarks.se_darwin.foreign.measurement import measure, read_records
from benchmarks.se_darwin.foreign.sources import SOURCES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; a wrong input is told in one line."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except ValueError as error:
        print(error)
        return 1
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.model is not None and not (options.model / "model.json").is_file():
        raise ValueError(f"{options.model} has no published model: there is no model.json")
    bugs = SOURCES[options.source]()
    if options.only:
        bugs = [bug for bug in bugs if bug.name in options.only]
    conditions = Conditions(
        ranker=options.ranker,
        model=options.model.resolve() if options.model else None,
        max_seconds=options.seconds,
        max_evaluations=options.max_evaluations,
        seed=options.seed,
    )
    measure(bugs, conditions, options.output, jobs=options.jobs, log=_log)


def _log(line: str) -> None:
    print(line, flush=True)


def _report(options: argparse.Namespace) -> None:
    records = [record for file in options.files for record in read_records(file)]
    print(compare(records))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.se_darwin.foreign", description=__doc__
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="attempt every bug of a source")
    run.add_argument("--source", choices=sorted(SOURCES), required=True)
    run.add_argument("--ranker", choices=("model", "suspicion", "random"), required=True)
    run.add_argument(
        "--model", type=Path, help="folder 'published' of an agent; the shipped model without it"
    )
    run.add_argument("--seconds", type=float, default=60.0, help="of each search")
    run.add_argument("--max-evaluations", type=int, default=1000, help="of each search")
    run.add_argument("--seed", type=int, default=0, help="of each search")
    run.add_argument("--jobs", type=int, default=2, help="bugs at the same time")
    run.add_argument("--only", nargs="*", help="names of bugs; all without it")
    run.add_argument("--output", type=Path, required=True, help="JSON lines; resumed if it exists")
    run.set_defaults(command=_run)
    report = commands.add_parser("report", help="compare the attempts in files of `run`")
    report.add_argument("files", type=Path, nargs="+")
    report.set_defaults(command=_report)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
