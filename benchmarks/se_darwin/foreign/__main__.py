"""``python -m benchmarks.se_darwin.foreign``: measure repairs of bugs that nobody here wrote."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random

from agents.se_darwin.search.ranker import CombinedRanker
from agents.se_darwin_agent import SEDarwinAgent
from benchmarks.se_darwin.foreign.attempt import Conditions, RankerName
from benchmarks.se_darwin.foreign.bug import ForeignBug
from benchmarks.se_darwin.foreign.building import MANIFESTS, build
from benchmarks.se_darwin.foreign.clones import Clones
from benchmarks.se_darwin.foreign.comparison import compare
from benchmarks.se_darwin.foreign.measurement import measure, read_records
from benchmarks.se_darwin.foreign.ranking import first_fix, report
from benchmarks.se_darwin.foreign.singles import record
from benchmarks.se_darwin.foreign.sources import FOREIGN, SOURCES
from benchmarks.se_darwin.foreign.trial import problem_of

RANKERS = ("model", "suspicion", "random")
_SAMPLE_SEED = 15


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
    _measure(options, options.source, options.ranker, options.output)


def _all(options: argparse.Namespace) -> None:
    files = []
    for source in FOREIGN:
        for ranker in options.rankers:
            file = options.output / f"{source}-{ranker}.jsonl"
            _log(f"{source}, {ranker}:")
            _measure(options, source, ranker, file)
            files.append(file)
    print(compare([record for file in files for record in read_records(file)]))


def _measure(options: argparse.Namespace, source: str, ranker: RankerName, output: Path) -> None:
    if options.model is not None and not (options.model / "model.json").is_file():
        raise ValueError(f"{options.model} has no published model: model.json is missing")
    bugs = _chosen(options, source)
    is_used = options.model is not None and ranker == "model"
    conditions = Conditions(
        ranker=ranker,
        model=options.model.resolve() if is_used else None,
        max_seconds=options.seconds,
        max_evaluations=options.max_evaluations,
        seed=options.seed,
        answers=options.answers,
        proposer=options.proposer,
        proposer_options=json.loads(options.proposer_options),
    )
    measure(bugs, conditions, output, jobs=options.jobs, log=_log)


def _ranks(options: argparse.Namespace) -> None:
    model = SEDarwinAgent().model_in_use(options.model).model
    if model is None:
        raise ValueError(f"no world model in {options.model}: correct --model, or leave it out")
    rows = []
    for source in options.source:
        for bug in _chosen(options, source):
            try:
                singles = record(bug)
            except ValueError as error:
                _log(f"{source}, {bug.name}: {error}")
                continue
            if any(singles.fixes):
                rows.append(first_fix(singles, CombinedRanker(model)))
                ranks = ", ".join(f"{name} {rank:.0f}" for name, rank in rows[-1].ranks.items())
                _log(f"{source}, {bug.name}: {rows[-1].edits} edits, {ranks}")
            else:
                _log(f"{source}, {bug.name}: {len(singles.steps)} edits, none is a fix")
    print(report(rows))


def _chosen(options: argparse.Namespace, source: str) -> list[ForeignBug]:
    bugs = SOURCES[source]()
    if options.only:
        bugs = [bug for bug in bugs if bug.name in options.only]
    return _sampled(bugs, options.sample) if options.sample else bugs


def _sampled(bugs: list[ForeignBug], count: int) -> list[ForeignBug]:
    return Random(_SAMPLE_SEED).sample(bugs, min(count, len(bugs)))


def _build(options: argparse.Namespace) -> None:
    with closing(Clones(options.clones)) as clones:
        for source in options.source or MANIFESTS:
            print(f"{source}: {len(build(source, clones))} bugs, all texts as in the manifest")


def _check(options: argparse.Namespace) -> None:
    bugs = SOURCES[options.source]()
    with ThreadPoolExecutor(options.jobs) as pool:
        problems = list(pool.map(problem_of, bugs))
    for bug, problem in zip(bugs, problems, strict=True):
        if problem:
            print(f"{bug.name}: {problem}")
    print(f"{options.source}: {problems.count('')} of {len(bugs)} as they should be")


def _log(line: str) -> None:
    print(line, flush=True)


def _report(options: argparse.Namespace) -> None:
    records = [record for file in options.files for record in read_records(file)]
    if options.without_sample:
        sources = {record.source for record in records}
        sampled = {
            bug.digest
            for source in sources
            for bug in _sampled(SOURCES[source](), options.without_sample)
        }
        records = [record for record in records if record.digest not in sampled]
    print(compare(records, options.within))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.se_darwin.foreign", description=__doc__
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="attempt every bug of a source with a ranker")
    run.add_argument("--source", choices=sorted(SOURCES), required=True)
    run.add_argument("--ranker", choices=RANKERS, required=True)
    run.add_argument("--output", type=Path, required=True, help="JSON lines; resumed if it exists")
    run.set_defaults(command=_run)
    every = commands.add_parser("all", help="attempt every bug of the four sources, and report")
    every.add_argument("--rankers", choices=RANKERS, nargs="+", default=["model", "suspicion"])
    every.add_argument("--output", type=Path, required=True, help="folder of the attempts; resumed")
    every.set_defaults(command=_all)
    ranks = commands.add_parser(
        "ranks", help="run every single edit once, and print the rank of the first fix"
    )
    ranks.add_argument("--source", choices=sorted(SOURCES), nargs="+", default=list(FOREIGN))
    ranks.set_defaults(command=_ranks)
    for command in (run, every, ranks):
        command.add_argument(
            "--model", type=Path, help="folder 'published' of an agent; else the shipped model"
        )
        command.add_argument("--only", nargs="*", help="names of bugs; all without it")
        command.add_argument("--sample", type=int, help="this many bugs of each source, by chance")
    for command in (run, every):
        command.add_argument("--seconds", type=float, default=60.0, help="of each search")
        command.add_argument("--max-evaluations", type=int, default=1000, help="of each search")
        command.add_argument("--seed", type=int, default=0, help="of each search")
        command.add_argument(
            "--answers",
            type=int,
            default=0,
            help="most questions about a repair that the right program answers, as a test each",
        )
        command.add_argument(
            "--proposer",
            choices=("", "scripted", "useless", "llm"),
            default="",
            help="writes candidates besides the edits: llm, or answers that are known",
        )
        command.add_argument(
            "--proposer-options", default="{}", help="options of llm as JSON: url, model, ..."
        )
        command.add_argument("--jobs", type=int, default=2, help="bugs at the same time")
    make = commands.add_parser("build", help="build the bugs of the manifests from clones")
    make.add_argument("--clones", type=Path, required=True, help="folder; missing ones are cloned")
    make.add_argument("--source", choices=MANIFESTS, nargs="*", help="all without it")
    make.set_defaults(command=_build)
    check = commands.add_parser("check", help="run the tests on wrong and right programs only")
    check.add_argument("--source", choices=sorted(SOURCES), required=True)
    check.add_argument("--jobs", type=int, default=2, help="bugs at the same time")
    check.set_defaults(command=_check)
    report = commands.add_parser("report", help="compare the attempts in files of `run`")
    report.add_argument("files", type=Path, nargs="+")
    report.add_argument(
        "--within", type=int, help="cut all to this budget of executions; else all had the same"
    )
    report.add_argument(
        "--without-sample", type=int, help="leave out the bugs that --sample of this number takes"
    )
    report.set_defaults(command=_report)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
