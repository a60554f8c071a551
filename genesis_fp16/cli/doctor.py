"""``genesis-fp16 doctor``: checks what the daemon needs and prints what to do about problems."""

from __future__ import annotations

from dataclasses import asdict

import typer

from genesis_fp16.cli.output import JsonFlag, print_json, print_table


def doctor(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Check everything the daemon needs; exit code 1 if something must be fixed."""
    from genesis_fp16.daemon.checks import run_checks

    built_in = getattr(context.find_root().command, "commands", {})
    results = run_checks(built_in=list(built_in))
    if as_json:
        print_json([asdict(result) for result in results])
    else:
        rows = []
        for result in results:
            rows.append([result.verdict, result.check, result.found])
            if result.remedy:  # below, since what was found may be long
                rows.append(["", "", f"remedy: {result.remedy}"])
        print_table(["", "check", "found"], rows)
    raise typer.Exit(1 if any(result.verdict == "fail" for result in results) else 0)
