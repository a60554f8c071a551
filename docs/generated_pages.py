"""Writes the pages made from the code: commands, settings, metrics, the library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import typer
from prometheus_client import CollectorRegistry
from typer.cli import get_docs_for_click

from genesis_fp16.cli.app import app
from genesis_fp16.metrics.series import Series
from infrastructure.options import StepOptions
from infrastructure.training import FP16TrainingConfig

ROOT = Path(__file__).parents[1]
LIBRARY = (
    "infrastructure.options",
    "infrastructure.training",
    "infrastructure.training.loop",
    "infrastructure.training.checkpoints",
    "infrastructure.agent_contract",
    "infrastructure.agent_contract.transition",
    "infrastructure.agent_contract.on_policy_job",
    "infrastructure.agent_contract.command",
    "infrastructure.world_model_agent",
    "infrastructure.world_model",
    "infrastructure.trajectories",
    "infrastructure.policy",
    "infrastructure.policy.losses",
    "infrastructure.policy.losses.advantages",
    "infrastructure.policy.losses.reductions",
    "infrastructure.policy.corrections",
    "infrastructure.environments",
    "infrastructure.precision_lab.metrics.accumulation",
    "infrastructure.precision_lab.metrics.clipping",
    "infrastructure.precision_lab.metrics.errors",
    "infrastructure.precision_lab.metrics.kl",
    "infrastructure.precision_lab.metrics.resolution",
    "infrastructure.precision_lab.metrics.values",
    "infrastructure.fleet",
    "genesis_fp16.testing",
)
_REPEATED = {  # names that another module of the list shows already
    "infrastructure.agent_contract.transition": "Transition",
    "infrastructure.world_model_agent": (
        "Box, Discrete, RunContext, Schedule, Text, Transition, TransitionSpec"
    ),
}
_SECTION = re.compile(r"^# --- (.+)$")
_SETTING = re.compile(r"^#?([A-Z][A-Z0-9_]+)=(.*)$")
_TABLE = ("", "| setting | default | hot | effect |", "|---|---|---|---|")


def write(folder: Path) -> None:
    """Write each generated page into *folder* if its text has changed."""
    folder.mkdir(parents=True, exist_ok=True)
    example = (ROOT / ".env.example").read_text()
    pages = {"commands": commands(), "settings": settings(example), "library": library()}
    pages["metrics"] = metrics()
    for name, text in pages.items():
        page = folder / f"{name}.md"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def commands() -> str:
    """The page of all commands with their arguments and options, plugins' included."""
    program = typer.main.get_command(app)
    context = typer.Context(program, info_name="genesis-fp16")
    text = get_docs_for_click(obj=program, ctx=context, name="genesis-fp16", title="Commands")
    return f"{text.strip()}\n"


def settings(example: str) -> str:
    """The page of all settings from *example*, the text of ``.env.example``."""
    introduction, _, rest = example.partition("\n\n")
    title, *words = (line.removeprefix("#").strip() for line in introduction.splitlines())
    lines = ["# Settings", "", title, *words]
    effect = ""
    for line in rest.splitlines():
        if section := _SECTION.match(line):
            lines += ["", f"## {section[1]}", *_TABLE]
        elif setting := _SETTING.match(line):
            hot = "yes" if effect.endswith("Hot.") else ""
            effect = effect.removesuffix("Hot.").strip().replace("|", "\\|")
            default = f"`{setting[2]}`" if setting[2] else ""
            lines.append(f"| `{setting[1]}` | {default} | {hot} | {effect} |")
        effect = line.removeprefix("# ") if line.startswith("# ") else ""
    return "\n".join(lines) + "\n"


def declared_metrics() -> dict[str, tuple[str, set[str], str]]:
    """Type, labels and help text of every metric of ours, by name."""
    registry = CollectorRegistry()
    series = Series(registry)
    labels = {family.name: set(family.label_names) for family in series.families}
    declared = {}
    for family in registry.collect():
        if family.name.startswith("process_"):
            continue  # the client library's own, of the daemon's process
        name = family.name + "_total" * (family.type == "counter")
        named = labels.get(name, {label for sample in family.samples for label in sample.labels})
        declared[name] = (family.type, named, family.documentation)
    return declared


def metrics() -> str:
    """The page of all metrics."""
    lines = ["# Every metric", "", "[Labels, alerts and dashboards](../metrics.md).", ""]
    lines += ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, (kind, labels, meaning) in declared_metrics().items():
        shown = ", ".join(f"`{label}`" for label in sorted(labels))
        lines.append(f"| `{name}` | {kind} | {shown} | {meaning} |")
    return "\n".join(lines) + "\n"


def leave_out_bounds() -> None:
    """Have Sphinx show the types of the options of the step without their bounds."""
    for options in (StepOptions, FP16TrainingConfig):
        options.__annotations__ = get_type_hints(options)


def library() -> str:
    """The page of the public library, whose text Sphinx takes from the docstrings."""
    lines = ["# The library", "", "What a module's `__all__` names is public; the rest may change."]
    for module in LIBRARY:
        lines += ["", f"## {module}", "", "```{eval-rst}", f".. automodule:: {module}"]
        if module in _REPEATED:
            lines.append(f"   :exclude-members: {_REPEATED[module]}")
        lines.append("```")
    return "\n".join(lines) + "\n"
