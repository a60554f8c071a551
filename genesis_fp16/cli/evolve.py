"""``genesis-fp16 evolve``: repair a function of one's own so that it passes one's own tests."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from genesis_fp16.cli.output import JsonFlag, print_json
from genesis_fp16.evolve.worker import Evolved
from genesis_fp16.settings.reading import load_settings
from infrastructure.events.plain_text import plain


def evolve(
    target: Annotated[str, typer.Argument(metavar="FILE::FUNCTION", help="What to repair.")],
    tests: Annotated[Path, typer.Option(help="A file of test functions with plain asserts.")],
    max_evaluations: Annotated[int, typer.Option(min=1, help="Most candidates to run.")] = 1000,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, max=3600.0, help="Most seconds that FILE may take for all tests."),
    ] = 5.0,
    seed: Annotated[int, typer.Option(help="The same seed, the same search.")] = 0,
    agent: Annotated[str, typer.Option(help="The agent that does it.")] = "se-darwin",
    no_record: Annotated[
        bool, typer.Option("--no-record", help="Do not let the agent learn from what is run.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Repair FUNCTION of FILE: print a diff that passes TESTS.

    Candidates run in a sandbox only. FILE is not changed: pipe the output into "patch -p1".
    Exit code 0: repaired; 1: not; others: nothing was tried, and why.
    """
    settings = load_settings()
    from genesis_fp16.evolve.evolve import evolve as evolve_by_agent
    from genesis_fp16.evolve.target import EvolveTarget

    found = EvolveTarget.read(target)
    result = evolve_by_agent(
        settings,
        agent,
        found,
        tests,
        record=not no_record,
        max_evaluations=max_evaluations,
        seed=seed,
        timeout_seconds=timeout,
    )
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        _print(result, found.folder)
    raise typer.Exit(0 if result.success and result.best_trajectory.edits else 1)


def _print(result: Evolved, folder: Path) -> None:
    best, statistics = result.best_trajectory, result.pool_statistics
    count = f"{sum(best.test_results)} of {len(best.test_results)}"
    if result.success and not best.edits:
        typer.echo(f"nothing to repair: {count} checks pass; add a test that fails")
        return
    if result.success:
        typer.echo(best.diff)
        typer.echo(f"repaired: {count} checks pass")
        if folder != Path.cwd():
            typer.echo(f"to apply: patch -p1 -d {shlex.quote(str(folder))}")
    else:
        typer.echo(f"not repaired: at best {count} checks pass")
    typer.echo(
        f"evaluations: {statistics['evaluations']:.0f}, from {statistics['candidate_edits']:.0f} "
        f"single edits; chosen by {result.ranked_by}; {result.total_time:.1f} s"
    )
    if late := statistics.get("timed_out"):
        remedy = "" if result.success else "; if the tests are slow, raise --timeout"
        typer.echo(f"ran too long: {late:.0f} of them{remedy}")
    if best.lineage:
        typer.echo("lineage:")
    for step in best.lineage:
        typer.echo(f"  {plain(step, 1000)}")
    if result.recorded:
        typer.echo(result.recorded)
