"""Which proposers `evolve` uses, and with what options."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from pydantic import JsonValue, ValidationError

from agents.se_darwin.llm import LLMOptions
from agents.se_darwin.llm.key import read_key
from agents.se_darwin.llm.options import problems_of
from infrastructure.agent_contract.command import CommandError, InstalledAgent
from infrastructure.agent_contract.proposer import EDITS

AUDIT_FILE = "llm-requests.jsonl"
LLM = "llm"

Options = dict[str, dict[str, JsonValue]]


def chosen_proposers(agent: InstalledAgent, names: Sequence[str], given: Sequence[str]) -> Options:
    """Return the options of the proposers to use, by name.

    They are those of *names*; without any, ``llm`` if the agent's settings have it.

    Args:
        agent: The agent, whose setting ``llm`` has options of the proposer of that name.
        names: Names that the user gave.
        given: Options that the user gave, ``NAME.KEY=VALUE``; a value is JSON or text.

    Raises:
        CommandError: An option is not of that form, or belongs to a proposer that is not used.
    """
    settings = agent.settings.get(LLM)
    of_settings = dict(settings) if isinstance(settings, dict) else {}
    used: Options = {name: {} for name in names if name != EDITS}
    if not names and of_settings:
        used[LLM] = {}
    for text in given:
        name, value = _parse(text)
        if name[0] not in used:
            raise CommandError(
                f"--proposer-option {text}: add --proposer {name[0]}, or remove it", os.EX_USAGE
            )
        used[name[0]][name[1]] = value
    if LLM in used:
        used[LLM] = of_settings | used[LLM]
        if not agent.not_writable:
            used[LLM].setdefault("audit_file", str(agent.folder / AUDIT_FILE))
    return used


def announce(options: Options) -> list[str]:
    """Return a line for each proposer that sends something to another process.

    Raises:
        CommandError: Its options are wrong.
    """
    if LLM not in options:
        return []
    try:
        llm = LLMOptions.model_validate(options[LLM])
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        told = f"proposer llm: {problems_of(error)}"
        if any(detail["type"] == "missing" for detail in details):
            told += (
                ". Name the endpoint and the model: --proposer-option "
                "llm.url=http://127.0.0.1:8080/v1 --proposer-option llm.model=NAME"
            )
        raise CommandError(told, os.EX_USAGE) from None
    try:
        read_key(llm)
    except ValueError as error:
        raise CommandError(f"proposer llm: {error}", os.EX_CONFIG) from None
    audit = f"audited in {llm.audit_file}" if llm.audit_file else "not audited: no agent folder"
    return [f"llm: asking {llm.model} at {llm.url}, {llm.budget()}; {audit}"]


def _parse(text: str) -> tuple[tuple[str, str], JsonValue]:
    name, equals, value = text.partition("=")
    proposer, dot, key = name.partition(".")
    if not (proposer and dot and key and equals):
        raise CommandError(
            f"--proposer-option {text!r} must be NAME.KEY=VALUE, such as llm.samples=8", os.EX_USAGE
        )
    try:
        parsed: JsonValue = json.loads(value)
    except ValueError:
        parsed = value
    return (proposer, key), parsed
