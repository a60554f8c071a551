"""``genesis-fp16 agents add`` and ``enable``: definitions of agents without code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genesis_fp16.cli.output import JsonFlag, print_json, print_line, print_table
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.plugins.discovery import DEFINITIONS_FOLDER, agent_entry_points
from genesis_fp16.settings import AGENTS_PREFIX, load_settings
from genesis_fp16.system.permissions import private_umask
from infrastructure.agent_contract import Schedule
from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.events.plain_text import plain
from infrastructure.files import write_atomically

if TYPE_CHECKING:
    from infrastructure.trajectories.record_source.proposal import Proposal

GENESIS_AGENTS = (
    *("marketing", "builder", "content", "deploy", "support", "qa", "seo", "email", "legal"),
    *("security", "billing", "analyst", "maintenance", "onboarding", "spec"),
)
"""The fifteen business agents of Genesis' runtime."""

WALTZRL_AGENTS = ("waltzrl-conversation", "waltzrl-feedback")
GENESIS_FORMATS = ("replay-trajectories", "casebank")


class DefinitionNotWrittenError(GenesisError, ValueError):
    """A definition was not written; the message says why, and what to do."""

    exit_code = os.EX_DATAERR


def add(
    name: Annotated[str, typer.Argument(help="Name of the new agent.")],
    sample: Annotated[Path, typer.Option("--from", help="File with records of the agent.")],
    records: Annotated[
        Path | None,
        typer.Option(help="Folder where its records arrive; by default the sample's."),
    ] = None,
    group: Annotated[str, typer.Option(help="Key of the episode, task or conversation.")] = "",
    target: Annotated[
        list[str] | None, typer.Option(help="Field to predict; may be repeated.")
    ] = None,
    schedule: Annotated[str, typer.Option(help="When it is trained.")] = "every 6h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the file only.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write the definition of an agent without code, as a sample of its records suggests it."""
    home = load_settings().home.absolute()
    path = _free_path(name, home)
    from infrastructure.trajectories.record_source.definition import parse_definition
    from infrastructure.trajectories.record_source.proposal import propose
    from infrastructure.trajectories.record_source.sample import SampleError

    try:
        Schedule.parse(schedule)
        proposal = propose(sample, name, group=group, targets=target or ())
    except OSError as error:
        raise DefinitionNotWrittenError(f"{sample} cannot be read: {error.strerror}") from error
    except SampleError as error:
        raise DefinitionNotWrittenError(plain(str(error))) from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    folder = (records or sample.parent).absolute()
    text = proposal.to_toml(folder, schedule)
    if not proposal.missing:
        parse_definition(text.encode(), path)
        if not dry_run:
            _write(path, text, home)
    if as_json:
        print_json(
            {
                "file": str(path),
                "written": not (dry_run or proposal.missing),
                "definition": text,
                "records": proposal.records,
                "transitions": proposal.transitions,
                "groups": proposal.groups,
                "notes": proposal.notes,
                "missing": proposal.missing,
            }
        )
    else:
        _print_proposal(proposal, text, path, written=not (dry_run or proposal.missing))
    if proposal.missing:
        raise typer.Exit(os.EX_DATAERR)


def enable(
    preset: Annotated[str, typer.Argument(help="The only preset is genesis.")],
    records: Annotated[
        Path, typer.Option(help="Folder where Genesis' records arrive; below GENESIS_HOME.")
    ] = Path("records/genesis"),
    record_format: Annotated[
        str, typer.Option("--format", help=f"{' or '.join(GENESIS_FORMATS)}.")
    ] = GENESIS_FORMATS[0],
    as_json: JsonFlag = False,
) -> None:
    """Write definitions of Genesis' fifteen business agents; print how to enable WaltzRL's."""
    if preset != "genesis":
        raise typer.BadParameter(f"the preset {preset!r} is unknown: the only one is genesis")
    if record_format not in GENESIS_FORMATS:
        raise typer.BadParameter(
            f"{record_format!r} is not one of {', '.join(GENESIS_FORMATS)}", param_hint="--format"
        )
    home = load_settings().home.absolute()
    taken = agent_entry_points(home)
    written, kept = [], []
    try:
        with private_umask(home):
            (home / records).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DefinitionNotWrittenError(
            f"{home / records} cannot be made a folder: {error.strerror}; name another with "
            "--records"
        ) from error
    for name in GENESIS_AGENTS:
        if name in taken:
            kept.append(name)
        else:
            text = preset_definition(name, records, record_format, usual_ids(name))
            _write(_path_of(name, home), text, home)
            written.append(name)
    pair = [name for name in WALTZRL_AGENTS if name in taken]
    switches = [f"{AGENTS_PREFIX}{name.upper().replace('-', '_')}__ENABLED=true" for name in pair]
    if as_json:
        print_json(
            {
                "written": written,
                "kept": kept,
                "records": str(home / records),
                "settings": switches,
            }
        )
        return
    typer.echo(f"{len(written)} definitions written to {home / DEFINITIONS_FOLDER}")
    if kept:
        typer.echo(f"left as they are: {', '.join(kept)}")
    if written:
        typer.echo(f"let Genesis write its records to {home / records} ({record_format})")
    if switches:
        typer.echo(f"for the WaltzRL pair, set {' and '.join(switches)} in the settings file")


def usual_ids(name: str) -> tuple[str, ...]:
    """Patterns of the ids under which records of Genesis' agent *name* are written."""
    written = name.replace("-", "_")
    return tuple(dict.fromkeys((name, written, f"{written}_*", f"{name}-*")))


def preset_definition(name: str, records: Path, record_format: str, ids: Sequence[str]) -> str:
    """Content of the definition of Genesis' agent *name*, whose records name one of *ids*.

    Without *ids*, every record in the folder *records* is its own.
    """
    from infrastructure.trajectories.record_source.proposal import toml_string

    names = ", ".join(toml_string(pattern) for pattern in ids)
    return (
        f'description = "Genesis\' agent {name}"\n'
        'schedule = "every 6h"\n\n'
        "[source]\n"
        f"path = {toml_string(str(records))}  # shared by the agents: each takes its own records\n"
        f'format = "{record_format}"\n'
        f"agents = [{names}]\n"
    )


def _path_of(name: str, home: Path) -> Path:
    return home / DEFINITIONS_FOLDER / f"{name}.toml"


def _free_path(name: str, home: Path) -> Path:
    """File of the new agent *name*.

    Raises:
        BadParameter: The name is malformed, or taken.
    """
    if not AGENT_NAME.fullmatch(name):
        raise typer.BadParameter(f"{plain(name)!r} must match {AGENT_NAME.pattern}")
    path = _path_of(name, home)
    if path.exists():
        raise typer.BadParameter(f"{path} exists: edit or remove it")
    if name in agent_entry_points(home):
        raise typer.BadParameter(f"an agent named {name!r} is installed: choose another name")
    return path


def _write(path: Path, text: str, home: Path) -> None:
    try:
        with private_umask(home):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
    except OSError as error:
        raise DefinitionNotWrittenError(f"{path} cannot be written: {error.strerror}") from error


def _print_proposal(proposal: Proposal, text: str, path: Path, *, written: bool) -> None:
    typer.echo(plain(text, len(text)))
    for note in proposal.notes:
        print_line(f"note: {note}")
    print_table(
        ["in the sample", ""],
        [
            ["records", proposal.records],
            ["transitions", proposal.transitions],
            ["groups", proposal.groups],
        ],
    )
    for what in proposal.missing:
        print_line(f"missing: {what}")
    if written:
        typer.echo(f"\nwritten to {path}; look through it: a daemon that serves finds it by itself")
    else:
        typer.echo(f"\nnothing was written to {path}")
