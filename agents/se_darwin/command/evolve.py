"""``genesis-fp16 evolve``: repairs a user's function so that it passes the user's tests."""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, TextIO

import typer
from pydantic import JsonValue, ValidationError

from agents.se_darwin.command.child import (
    Certainty,
    ChildAnswer,
    ChildRequest,
    ProposerReport,
    RepairResult,
)
from agents.se_darwin.command.program_files import ProgramFiles
from agents.se_darwin.command.proposer_options import Options, announce, chosen_proposers
from agents.se_darwin.command.suite_files import SuiteFiles
from agents.se_darwin.command.target import RepairTarget
from infrastructure.agent_contract.command import CommandContext, CommandError, InstalledAgent
from infrastructure.agent_contract.proposer import EDITS
from infrastructure.events.plain_text import plain

RANKERS = ("model", "suspicion", "random")

_MOST_FAILING = 5  # names of checks that are printed
_POLL_SECONDS = 0.1
_STOP_SECONDS = 10.0  # from an interrupt to the end of the generation under way
_ENDS = {
    "evaluations": "all candidates that --max-evaluations allows were run",
    "seconds": "the time that --seconds allows is up",
    "exhausted": "every candidate was run: this fault is not among those that small edits repair "
    "(with more checks in the tests, more edits are tried together)",
    "stopped": "interrupted",
    "contradicted": "but not the docstring's examples (--no-docstring if these are outdated)",
}
_SPLIT = {
    "single_edits": "single edits",
    "second_edits": "second edits",
    "further_edits": "further edits",
    "recombinations": "recombinations",
    "proposed": "proposed",
    "minimising": "to drop edits that the repair does not need",
    "order_runs": "of repairs under another order of sets",
    "duplicates": "not run again",
}


def evolve(  # noqa: PLR0913, PLR0917 - each option is a parameter
    context: CommandContext,
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE[::FUNCTION]",
            help="What to repair; of FILE, the functions that failing tests visit.",
        ),
    ],
    tests: Annotated[Path, typer.Option(help="A file of tests in the style of pytest.")],
    keyword: Annotated[
        str, typer.Option("-k", help="Run only tests that match, as in pytest.")
    ] = "",
    max_evaluations: Annotated[int, typer.Option(min=1, help="Most candidates to run.")] = 20_000,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, max=3600.0, help="Most seconds that FILE may take for all tests."),
    ] = 5.0,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Most seconds that the search may take.")
    ] = 60.0,
    no_docstring: Annotated[
        bool, typer.Option("--no-docstring", help="Examples in the docstring need not hold.")
    ] = False,
    ranker: Annotated[
        str,
        typer.Option(help="What ranks candidates: model (world model), suspicion or random."),
    ] = "model",
    proposer: Annotated[
        list[str] | None,
        typer.Option(help="What writes candidates besides the edits, such as llm; repeatable."),
    ] = None,
    proposer_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME.KEY=VALUE", help="An option of a proposer; repeatable."),
    ] = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print what a proposer would send; send nothing.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The same seed, the same search.")] = 0,
    agent: Annotated[str, typer.Option(help="The agent that repairs.")] = "se-darwin",
    no_record: Annotated[
        bool, typer.Option("--no-record", help="Do not let the agent learn from what is run.")
    ] = False,
) -> None:
    """Repair FUNCTION of FILE, or the suspicious functions of FILE: print a diff that passes TESTS.

    Candidates run in a sandbox only. FILE is not changed: pipe the output into "patch -p1".
    Exit code 0: repaired; 1: not; 74: the result was not written; 75: interrupted; others:
    nothing was tried, and why.
    After an interrupt the best program so far is shown; the candidates run are recorded.
    """
    if ranker not in RANKERS:
        raise typer.BadParameter(
            f"{ranker!r} is not one of {', '.join(RANKERS)}", param_hint="--ranker"
        )
    if sys.__stdout__ is None:
        raise CommandError("stdout is closed, so no diff could be printed", os.EX_IOERR)
    repair_target = RepairTarget.read(target)
    program = ProgramFiles.read(repair_target.program, repair_target.code)
    files = SuiteFiles.read(tests, program)
    installed = context.find_agent(agent)
    proposers = chosen_proposers(installed, proposer or [], proposer_option or [])
    for line in [] if show_prompt else announce(proposers):
        typer.echo(plain(line, 1000), err=True)
    answer = _repair(
        context,
        installed,
        repair_target,
        shows_prompts=show_prompt,
        proposers=proposers,
        module=program.name,
        own_modules=dict(program.sources),
        test_code=files.code,
        conftests=list(files.conftests),
        test_helpers=dict(files.helpers),
        test_aliases=dict(files.aliases),
        test_keyword=keyword,
        test_path=files.path,
        record=not no_record,
        max_evaluations=max_evaluations,
        max_seconds=seconds,
        docstring=not no_docstring,
        ranker=ranker,
        seed=seed,
        timeout_seconds=timeout,
    )
    if show_prompt:
        _print_prompts(context, answer.prompts or {})
        return
    result = answer.result
    if result is None:
        raise CommandError(answer.refused, answer.exit_code)
    with _writing_to_stdout():
        if context.as_json:
            context.print_json(result.model_dump(mode="json"))
        else:
            _print(result, repair_target.folder)
    if result.ended == "stopped":
        raise CommandError("interrupted: the program was not changed", os.EX_TEMPFAIL)
    raise typer.Exit(0 if result.success and result.best_trajectory.edits else 1)


def _repair(
    context: CommandContext,
    agent: InstalledAgent,
    target: RepairTarget,
    *,
    record: bool,
    shows_prompts: bool,
    proposers: Options,
    **options: JsonValue,
) -> ChildAnswer:
    """Have the agent repair *target* in a child process; the user's files are not written.

    Args:
        context: Context of the command.
        agent: Agent that repairs, with its published world model and replay buffer.
        target: Function to repair.
        record: Whether the agent may learn from the candidates that are run.
        shows_prompts: Whether only to return what the proposers would send.
        proposers: Options of the proposers.
        options: Further context of `evolve_solution`, such as ``test_code`` and ``seed``.

    Raises:
        CommandError: The request was refused, the child failed, or the user interrupted it.
    """
    with tempfile.TemporaryDirectory(prefix="genesis-evolve-") as folder:
        request = ChildRequest(
            agent=agent.name,
            entry_point=agent.entry_point,
            folder=Path(folder),
            problem=f"repair {target.function or 'a function'} of {target.path}",
            context={
                "code": target.code,
                "function": target.function,
                "path": target.path,
                "agent_folder": str(agent.folder),
                "record": record and not agent.not_writable,
                **({"proposers": proposers} if proposers else {}),
                **options,
            },
            shows_progress=sys.stderr.isatty() and not context.as_json,
            shows_prompts=shows_prompts,
        )
        answer = _ask_child(context, request)
    if answer.refused:
        raise CommandError(answer.refused, answer.exit_code)
    if answer.result and record and agent.not_writable:
        recorded = {"recorded": f"not recorded: {agent.not_writable}"}
        result = answer.result.model_copy(update=recorded)
        return answer.model_copy(update={"result": result})
    return answer


def _ask_child(context: CommandContext, request: ChildRequest) -> ChildAnswer:
    """Run the child to its end; no process of it outlives this call."""
    request_file = request.folder / "request.json"
    request_file.write_text(request.model_dump_json())
    with request_file.open() as stdin, (request.folder / "answer.json").open("w+") as answers:
        may_record = bool(request.context["record"])
        status = _run_child(context, answers.fileno(), stdin, may_record=may_record)
        answers.seek(0)
        try:
            return ChildAnswer.model_validate_json(answers.read())
        except ValidationError:
            raise CommandError(
                f"{request.agent} ended with status {status} and without an answer; its last "
                "output is above"
            ) from None


def _run_child(context: CommandContext, answers: int, stdin: TextIO, *, may_record: bool) -> int:
    """Wait for the child; after a signal to this process it may end the search, then is killed.

    Raises:
        CommandError: The child did not answer after the signal.
    """
    with context.defer_interrupts() as interrupted:
        child, kill_at = _start_child(answers, stdin), math.inf
        try:
            while time.monotonic() < kill_at:
                with suppress(subprocess.TimeoutExpired):
                    status = child.wait(_POLL_SECONDS)
                    if status == 0 or kill_at == math.inf:
                        return status
                    break
                if interrupted() and kill_at == math.inf:
                    kill_at = time.monotonic() + _STOP_SECONDS
                    child.terminate()
            kept = "; candidates run so far may have been recorded" if may_record else ""
            raise CommandError(f"interrupted: the program was not changed{kept}", os.EX_TEMPFAIL)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _start_child(answers: int, stdin: TextIO) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "agents.se_darwin.command.child"),
                *(str(answers), str(os.getpid())),
            ],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            pass_fds=(answers,),
            start_new_session=True,
        )
    except OSError as error:
        raise CommandError(
            f"this user cannot start the interpreter {sys.executable}: {error.strerror}. Install "
            "Python and genesis-fp16 where this user may read them, or run as another user",
            os.EX_NOPERM,
        ) from None


@contextmanager
def _writing_to_stdout() -> Iterator[None]:
    """Let the block print the result.

    Raises:
        CommandError: It cannot be written, for example because the disk is full.
    """
    try:
        yield
    except BrokenPipeError:  # the reader has closed the pipe; the program ends silently
        raise
    except OSError as error:
        raise CommandError(
            f"the result cannot be written to stdout: {error.strerror}", os.EX_IOERR
        ) from None


def _print(result: RepairResult, folder: Path) -> None:
    best = result.best_trajectory
    count = f"{sum(best.test_results)} of {len(best.test_results)}"
    if result.success and not best.edits:
        remedy = "some tests cannot be run" if result.left_out else "add a test that fails"
        typer.echo(f"nothing to repair: {count} checks pass; {remedy}")
        _print_left_out(result)
        return
    if result.success:
        typer.echo(_shown(best.diff, sys.stdout))
        typer.echo(f"repaired: {count} checks pass")
        if folder != Path.cwd():
            typer.echo(f"to apply: patch -p1 -d {shlex.quote(str(folder))}")
    else:
        reason = f"; {_ENDS[result.ended]}" if result.ended in _ENDS else ""
        typer.echo(f"not repaired: at best {count} checks pass{reason}")
        _print_failing(result.failing)
        if best.edits:
            diff = _shown(best.diff, sys.stderr)
            typer.echo(f"the best program so far:\n{diff}", err=True)
    for line in result.functions:
        typer.echo(f"tried: {plain(line, 1000)}")
    if result.certainty is not None:
        _print_certainty(result.certainty)
    _print_search(result)


def _shown(diff: str, stream: TextIO) -> str:
    """Return *diff* as it is for ``patch``, and without control characters for a terminal."""
    return plain(diff, len(diff)) if stream.isatty() else diff


def _print_prompts(context: CommandContext, prompts: dict[str, str]) -> None:
    with _writing_to_stdout():
        if context.as_json:
            context.print_json(prompts)
            return
        for name, prompt in prompts.items():
            what = plain(prompt, len(prompt)) or "it sends nothing"
            typer.echo(f"{plain(name, 100)}: {what}")
        if not prompts:
            typer.echo("nothing is sent: no proposer is used (--proposer)")


def _print_proposers(reports: list[ProposerReport]) -> None:
    for report in reports:
        line = f"proposer {plain(report.name, 100)}: {report.share:.0%} of the executions now"
        if report.name != EDITS:
            dropped = [f"{n} {plain(why, 100)}" for why, n in sorted(report.dropped.items())]
            not_run = f" (not run: {', '.join(dropped)})" if dropped else ""
            line += (
                f", {report.proposed} candidates{not_run}, {report.run} run, {report.descendants} "
                f"with further edits, {report.repairs} repairs"
            )
        for text in (report.problem, report.summary):
            line += f"; {plain(' '.join(text.split()), 1000)}" if text else ""
        typer.echo(line)


def _print_search(result: RepairResult) -> None:
    best, statistics = result.best_trajectory, result.pool_statistics
    typer.echo(
        f"evaluations: {statistics['evaluations']:.0f}, from {statistics['candidate_edits']:.0f} "
        f"single edits; chosen by {result.ranked_by}; {result.total_time:.1f} s"
    )
    counts = [
        f"{statistics.get(key, 0.0):.0f} {name}"
        for key, name in _SPLIT.items()
        if key != "proposed" or result.proposers
    ]
    typer.echo(f"split: {', '.join(counts)}")
    if unstable := statistics.get("order_dependent"):
        typer.echo(
            f"no repairs: {unstable:.0f} candidates pass all checks under one order of sets, or of "
            "random numbers, only; if a test depends on that itself, compare sorted values in it"
        )
    if late := statistics.get("timed_out"):
        remedy = "" if result.success else "; if the tests are slow, raise --timeout"
        typer.echo(f"ran too long: {late:.0f} candidates{remedy}")
    if result.ended_process:
        check = plain(result.ended_process, 200)
        typer.echo(f"the process of your program ended in {check}: checks after it did not run")
    _print_left_out(result)
    _print_proposers(result.proposers)
    if best.lineage:
        typer.echo("lineage:")
    for step in best.lineage:
        typer.echo(f"  {plain(step, 1000)}")
    if result.recorded:
        typer.echo(result.recorded)


def _print_left_out(result: RepairResult) -> None:
    for reason in result.left_out:
        typer.echo(f"not run: {plain(reason, 1000)}")


def _print_failing(names: list[str]) -> None:
    if names:
        shown = "; ".join(plain(name, 200) for name in names[:_MOST_FAILING])
        more = len(names) - _MOST_FAILING
        typer.echo(f"it fails {shown}{f' and {more} more' if more > 0 else ''}")


def _print_certainty(certainty: Certainty) -> None:
    note = f" ({certainty.note})" if certainty.note else ""
    typer.echo(f"{certainty.level}: {certainty.summary}{note}; {certainty.seconds:.1f} s")
    if certainty.question:
        typer.echo(f"question: {plain(certainty.question, 2000)}")
