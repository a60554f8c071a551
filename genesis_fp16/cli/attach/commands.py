"""The commands ``attach`` and ``detach``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from genesis_fp16.cli.attach.attachment import SETTINGS_FILE, AttachError, Attachment
from genesis_fp16.cli.attach.checkout import (
    CASES_FOLDER,
    CodeOfAgent,
    RecordFile,
    is_checkout,
    read_code,
    read_records,
)
from genesis_fp16.cli.configured_agents import GENESIS_AGENTS, preset_definition
from genesis_fp16.cli.output import JsonFlag, print_json, print_line, print_table
from genesis_fp16.plugins.discovery import (
    AGENTS_GROUP,
    DEFINITIONS_FOLDER,
    installed_entry_points,
)
from genesis_fp16.settings import load_settings
from genesis_fp16.settings.settings import variable_name

CASES = "genesis-cases"  # agent that learns from the case bank
_MOST_NAMES = 4

Folder = Annotated[Path, typer.Argument(help="Root of the checkout of Genesis.")]
SettingsOption = Annotated[
    Path | None, typer.Option(help=f"Settings file; by default {SETTINGS_FILE} in FOLDER.")
]


def attach(
    folder: Folder,
    home: Annotated[
        Path | None, typer.Option(help="Home of the daemon; by default .genesis in FOLDER.")
    ] = None,
    settings: SettingsOption = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Where Genesis writes records; by default records/genesis in the home."),
    ] = None,
    group: Annotated[str, typer.Option(help="Group that may write records and ask.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Attach to a checkout of Genesis: write settings and definitions; change no file of it."""
    with _reading():
        checkout = _checkout(folder)
    place = _real(home or checkout / ".genesis")
    attachment = Attachment(
        checkout=checkout,
        settings=_real(settings or checkout / SETTINGS_FILE),
        home=place,
        records=_real(records or place / "records" / "genesis"),
        group=group,
    )
    with _reading():
        if attachment.settings.is_file() and (named := _home_in(attachment.settings)) != place:
            raise AttachError(
                f"{attachment.settings} names the home {named}, not {place}: run genesis-fp16 "
                "detach first, or name another file by --settings"
            )
        code, files = read_code(checkout), read_records(checkout, attachment.records)
    definitions = _definitions(attachment, code, files)
    written, kept = ([], []) if dry_run else attachment.write(definitions)
    if as_json:
        print_json(
            {
                "agents": [_row(agent, files) for agent in code],
                "records": [_file_row(file) for file in files],
                "settings": str(attachment.settings),
                "home": str(attachment.home),
                "records_folder": str(attachment.records),
                "would_write": [str(path) for path in (attachment.settings, *definitions)],
                "written": [str(path) for path in written],
                "kept": [str(path) for path in kept],
            }
        )
        return
    _print_found(code, files)
    if dry_run:
        names = ", ".join(path.stem for path in definitions)
        print_line(f"would write {attachment.settings} and definitions of {names}; wrote nothing")
        return
    _print_written(attachment, written, kept)


def detach(folder: Folder, settings: SettingsOption = None, as_json: JsonFlag = False) -> None:
    """Take back what attach has written; records, runs and models stay in the home."""
    from genesis_fp16.store.daemon_status import find_daemon

    checkout = _real(folder)
    path = _real(settings or checkout / SETTINGS_FILE)
    with _reading():
        is_attached = path.is_file()
    if not is_attached:
        raise AttachError(f"{path} does not exist: nothing is attached, or name it by --settings")
    home = _home_in(path)
    attachment = Attachment(checkout=checkout, settings=path, home=home, records=home)
    removed, changed = attachment.take_back()
    daemon = find_daemon(home)
    if as_json:
        shown = {"removed": removed, "changed": changed, "home": home, "served": daemon is not None}
        print_json(shown)
        return
    print_line(f"{len(removed)} files removed; records, runs and models stay in {home}")
    for file in changed:
        print_line(f"changed since, so it stays: {file}")
    if daemon is not None:
        print_line(f"a daemon still serves {home} ({daemon}): stop it")


@contextmanager
def _reading() -> Iterator[None]:
    """Say it if this user may not enter a folder."""
    try:
        yield
    except PermissionError as error:
        raise AttachError(
            f"{error.filename} cannot be read: {error.strerror}; give this user the right, or run "
            "this as the user that owns the checkout"
        ) from error


def _real(path: Path) -> Path:
    """The absolute path without links and ``..``: one name for what may be called by several."""
    return Path(os.path.realpath(path))


def _home_in(settings: Path) -> Path:
    return _real(load_settings(settings, {}, only=(variable_name("home"),)).home)


def _checkout(folder: Path) -> Path:
    checkout = _real(folder)
    if not is_checkout(checkout):
        raise AttachError(
            f"{checkout} is not a checkout of Genesis that this user may read: it needs the "
            "folders agents, with files *_agent.py, and infrastructure"
        )
    return checkout


def _definitions(
    attachment: Attachment, code: Sequence[CodeOfAgent], files: Sequence[RecordFile]
) -> dict[Path, str]:
    """Path to content of the definition of each agent that Genesis' records can train."""
    folder = attachment.home / DEFINITIONS_FOLDER
    installed = {point.name for point in installed_entry_points(AGENTS_GROUP)}
    texts = {
        folder / f"{agent.name}.toml": preset_definition(
            agent.name, attachment.records, "replay-trajectories", agent.ids
        )
        for agent in code
        if agent.name in GENESIS_AGENTS and agent.files and agent.name not in installed
    }
    if any(file.form == "casebank" and file.path.startswith(str(CASES_FOLDER)) for file in files):
        place = attachment.checkout / CASES_FOLDER
        texts[folder / f"{CASES}.toml"] = preset_definition(CASES, place, "casebank", ())
    return texts


def _row(agent: CodeOfAgent, files: Sequence[RecordFile]) -> dict[str, object]:
    form = "replay-trajectories" if agent.name in GENESIS_AGENTS else "casebank"
    own = [file for file in files if file.form == form]  # others are read by no definition of it
    usable = {file.path: n for file in own if (n := file.usable_by(agent.ids))}
    return {
        "agent": agent.name,
        "files": agent.files,
        "writes": agent.writes,
        "ids": agent.ids,
        "usable_records": sum(usable.values()),
        "where": list(usable),
        "can_rank": any(file.can_rank for file in own if file.path in usable),
    }


def _file_row(file: RecordFile) -> dict[str, object]:
    return {
        "file": file.path,
        "form": file.form,
        "usable_records": file.by_agent.total(),
        "agents": dict(file.by_agent.most_common()),
        "refused": file.refused,
        "can_rank": file.can_rank,
        "note": file.note,
    }


def _print_found(code: Sequence[CodeOfAgent], files: Sequence[RecordFile]) -> None:
    rows = [_row(agent, files) for agent in code]
    print_table(
        ["agent", "in the checkout", "stores", "ids of its records", "usable records", "can rank"],
        [
            [
                row["agent"],
                "yes" if agent.files else "no",
                row["writes"] or "nothing",
                ", ".join(agent.ids),
                row["usable_records"],
                ("yes" if row["can_rank"] else "no") if row["usable_records"] else "",
            ]
            for agent, row in zip(code, rows, strict=True)
        ],
    )
    typer.echo()
    print_table(
        ["records", "usable", "of agents", "note"],
        [[file.path, file.by_agent.total(), _names(file), _note(file)] for file in files],
    )
    typer.echo()


def _names(file: RecordFile) -> str:
    names = [name or "(none)" for name, _ in file.by_agent.most_common(_MOST_NAMES)]
    more = len(file.by_agent) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _note(file: RecordFile) -> str:
    notes = [file.note] if file.note else []
    if file.form and not file.can_rank and not file.note:
        notes.append("no action: a model can predict, but not rank options")
    if file.refused:
        notes.append(f"{file.refused} lines cannot be read")
    return "; ".join(notes)


def _print_written(attachment: Attachment, written: Sequence[Path], kept: Sequence[Path]) -> None:
    print_line(f"{len(written)} files written: {attachment.settings}, and below {attachment.home}")
    if kept:
        print_line(f"left as they are: {', '.join(str(path) for path in kept)}")
    print_line(f"let Genesis append its trajectories to a file *.jsonl in {attachment.records}")
    if attachment.group:
        print_line(
            f"for the service: systemctl edit genesis-fp16, [Service], "
            f"SupplementaryGroups={attachment.group}"
        )
    print_line(f"start: GENESIS_ENV_FILE={attachment.settings} genesis-fp16 serve")
