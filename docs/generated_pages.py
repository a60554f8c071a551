"""Writes the pages made from the code: commands, settings, metrics, the library."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from pathlib import Path
from typing import get_args, get_type_hints

import typer
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from typer.cli import get_docs_for_click

from agents.policy.settings import PolicySettings
from agents.se_darwin.llm import LLMOptions
from agents.se_darwin.settings import SEDarwinSettings
from agents.waltzrl.recorded_agent import RecordedConversationSettings
from genesis_fp16.cli.app import app
from genesis_fp16.metrics.series import Series
from infrastructure.events import Role
from infrastructure.events.role_precision import PRESETS
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
    "infrastructure.agent_contract.proposer",
    "infrastructure.world_model_agent",
    "infrastructure.world_model",
    "infrastructure.world_model.planning",
    "infrastructure.trajectories",
    "infrastructure.policy",
    "infrastructure.policy.losses",
    "infrastructure.policy.losses.advantages",
    "infrastructure.policy.losses.reductions",
    "infrastructure.policy.corrections",
    "infrastructure.policy.mismatch",
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
OWN_SETTINGS: dict[str, tuple[str, type[BaseModel]]] = {  # prefix and model by heading
    "The policy agent": ("GENESIS_AGENTS__POLICY__SETTINGS__", PolicySettings),
    "SE-Darwin": ("GENESIS_AGENTS__SE_DARWIN__SETTINGS__", SEDarwinSettings),
    "SE-Darwin's language model": ("llm.", LLMOptions),
    "WaltzRL's agents": (
        "GENESIS_AGENTS__WALTZRL_FEEDBACK__SETTINGS__",
        RecordedConversationSettings,
    ),
}
_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
_SECTION = re.compile(r"^# --- (.+)$")
_SETTING = re.compile(r"^#?([A-Z][A-Z0-9_]+)=(.*)$")
_TABLE = ("", "| setting | default | hot | effect |", "|---|---|---|---|")


def write(folder: Path) -> None:
    """Write each generated page into *folder* if its text has changed."""
    folder.mkdir(parents=True, exist_ok=True)
    example = (ROOT / ".env.example").read_text()
    pages = {"commands": commands(), "library": library()}
    pages["settings"] = settings(example) + own_settings()
    pages |= {"metrics": metrics(), "presets": presets()}
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


def own_settings() -> str:
    """The sections of the built-in agents' own settings, from their docstrings."""
    lines = []
    for heading, (prefix, model) in OWN_SETTINGS.items():
        lines += ["", f"## {heading}", "", "| setting | default | effect |", "|---|---|---|"]
        for name, words in _ATTRIBUTE.findall(inspect.getdoc(model) or ""):
            field = model.model_fields[name]
            shown = prefix + (name if prefix.islower() else name.upper())
            default = "" if field.is_required() or field.default is None else field.default
            default = default.value if isinstance(default, Enum) else default
            choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
            effect = " ".join(words.replace("``", "`").split())
            effect += f" One of {', '.join(f'`{choice}`' for choice in choices)}." * bool(choices)
            lines.append(f"| `{shown}` | {f'`{default}`' if default != '' else ''} | {effect} |")
    return "\n".join(lines) + "\n"


def presets() -> str:
    """The page of all presets of precision by role."""
    lines = ["# Presets", "", "[What they mean](../../how-to/policies.md#precision-by-role).", ""]
    lines.append(f"| preset | {' | '.join(role.replace('_', ' ') for role in Role)} | source |")
    lines.append("|---" * (len(Role) + 2) + "|")
    for name, preset in PRESETS.items():
        types = [preset[role] for role in Role]
        shown = [t.store if t.store == t.compute == t.out else str(t) for t in types]
        source = preset.source + ", for measurements only" * preset.pure
        lines.append(f"| `{name}` | {' | '.join(shown)} | {source} |")
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
