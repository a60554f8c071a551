"""``genesis-fp16 models``: kept versions of an agent's model, an earlier one put back, ONNX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from genesis_fp16.cli.arguments import check_agent_name
from genesis_fp16.cli.output import JsonFlag, print_json, print_line, print_table
from genesis_fp16.cli.settings import load_location
from genesis_fp16.cli.store import ReasonOption, changing, open_existing_store
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.moments import moment

if TYPE_CHECKING:
    from genesis_fp16.daemon.models import AgentModels
    from genesis_fp16.guard.models import WatchedAgent
    from genesis_fp16.plugins.model_versions import KeptVersion


class ModelExportError(GenesisError, ValueError):
    """A model was not exported; the message says why, and what to do."""

    exit_code = os.EX_DATAERR


app = typer.Typer(help="Kept versions of an agent's published model.", no_args_is_help=True)


@app.command("list")
def list_versions(agent: str, as_json: JsonFlag = False) -> None:
    """List the kept versions of AGENT's model, which one is in use, and how its predictions do."""
    from genesis_fp16.daemon.models import list_models
    from genesis_fp16.guard.models import read_watched

    settings = load_location()
    with open_existing_store(settings) as store:
        name = check_agent_name(agent, store) or agent
        kept = None if store is None else store.overrides.kept_models().get(name)
    models, watched = list_models(settings, name), read_watched(settings.home.absolute(), name)
    if as_json:
        reading = watched.reading and watched.reading.model_dump()
        guard = {"reading": reading, "taken_back": watched.taken_back, "kept": kept}
        guard["explanation"] = watched.explanation
        versions = _as_json(models)
        print_json({"agent": name, "in_use": models.in_use, "versions": versions, "guard": guard})
        return
    if not models.versions:
        typer.echo(f"no version of a model of {name} is kept: none was published yet")
        return
    print_table(
        ["version", "", "published", "transitions", "data", "hash of the data", "why"],
        [[version.id, *_cells(version, models.in_use)] for version in models.versions],
    )
    if models.in_use is None:
        print_line(f"the model of {name} in use is none of these")
    _print_reading(watched, kept)


@app.command("rollback")
def roll_back(
    agent: str,
    reason: ReasonOption,
    to: Annotated[
        str | None, typer.Option("--to", help="Version to use; else the one in use before.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make an earlier version of AGENT's model the one in use; later runs must beat that one."""
    from genesis_fp16.daemon import models

    with changing(agent, reason) as change:
        name = change.agent
        version = models.roll_back(change.settings, change.store, name, to, **change.audit)
    if as_json:
        print_json(version.model_dump(mode="json"))
        return
    typer.echo(f"{name} uses version {version.id}, published {moment(version.published_at)}")
    typer.echo(f"a run may publish a better one: genesis-fp16 agents pause {name} prevents that")


@app.command("export")
def export(
    agent: str,
    to: Annotated[
        Path | None, typer.Option("--to", help="File to write; else AGENT.onnx in this folder.")
    ] = None,
    file_format: Annotated[
        Literal["onnx"], typer.Option("--format", help="Format of the file.")
    ] = "onnx",
) -> None:
    """Write AGENT's published model as one ONNX graph, and a file that describes its inputs."""
    from genesis_fp16.plugins.model_versions import PUBLISHED
    from infrastructure.world_model import ModelFileError, WorldModel
    from infrastructure.world_model.onnx_export import OnnxExportError, export_onnx

    settings = load_location()
    with open_existing_store(settings) as store:
        name = check_agent_name(agent, store) or agent
    target = to or Path(f"{name}.{file_format}")
    try:
        model = WorldModel.load(settings.home / "agents" / name / PUBLISHED).fitted_model
        description = None if model is None else export_onnx(model, target)
    except FileNotFoundError:
        raise ModelExportError(f"no model of {name} is published yet") from None
    except (ModelFileError, OnnxExportError, OSError) as error:
        raise ModelExportError(f"the model of {name} was not exported: {error}") from error
    typer.echo(f"{target} holds the model of {name}, {description} describes its inputs")


@app.command("keep")
def keep(
    agent: str,
    reason: ReasonOption,
    as_json: JsonFlag = False,
) -> None:
    """Let the guard leave AGENT's model in use alone, until another version is published."""
    from genesis_fp16.daemon import models

    with changing(agent, reason) as change:
        name = change.agent
        version = models.keep_in_use(change.settings, change.store, name, **change.audit)
    if as_json:
        print_json({"agent": name, "kept": version})
        return
    typer.echo(f"the guard leaves version {version} of {name} in use until another is published")


def _print_reading(watched: WatchedAgent, kept: str | None) -> None:
    reading = watched.reading
    if watched.explanation:
        print_line(f"the guard took version {watched.taken_back[-1]} back: {watched.explanation}")
    if reading is None:
        return
    print_line(
        f"in {reading.outcomes:,} outcomes, version {reading.version} has the log loss "
        f"{reading.log_loss:.4f} ({reading.held_out_loss:.4f} held out, where the base rate has "
        f"{reading.base_rate_loss:.4f}); the evidence against it is "
        f"{reading.evidence:.0%} of what the guard asks for"
    )
    if reading.expected_loss is not None and reading.expected_loss > reading.held_out_loss:
        print_line(
            f"of its own choices it expected {reading.expected_loss:.4f}: that is what they are "
            "held to"
        )
    more = {
        "calibration error": reading.calibration_error,
        "coverage of 90 % intervals": reading.coverage,
        "input drift": reading.input_drift,
        "gain over the agent's own order": reading.gain,
    }
    known = [f"{name} {value:.3f}" for name, value in more.items() if value is not None]
    if known:
        print_line(", ".join(known))
    if kept == reading.version:
        print_line("an operator keeps it in use: the guard leaves it alone")


def _cells(version: KeptVersion, in_use: str | None) -> list[object]:
    facts, data = version.facts, version.facts.data if version.facts is not None else None
    return [
        "in use" if version.id == in_use else "damaged" if version.problem else "",
        moment(facts.published_at) if facts is not None else "",
        *((data.transitions, f"{data.size / 2**20:.2f} MiB") if data is not None else ("", "")),
        data.sha256[:12] if data is not None else "",
        version.problem or (facts.reason if facts is not None else ""),
    ]


def _as_json(models: AgentModels) -> list[dict[str, object]]:
    return [
        {
            **(
                version.facts.model_dump(mode="json")
                if version.facts is not None
                else {"id": version.id}
            ),
            "in_use": version.id == models.in_use,
            "problem": version.problem,
        }
        for version in models.versions
    ]
