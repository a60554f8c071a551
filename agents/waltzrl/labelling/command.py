"""``genesis-fp16 label-conversations``: what conversations lack, and labels by a rule."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from agents.waltzrl.labelling import refusal_rule
from agents.waltzrl.labelling.conversation_files import (
    Found,
    read_conversations,
    read_prompt_labels,
)
from agents.waltzrl.recorded_agent import NEEDED_CONVERSATIONS, NEEDED_POSITIVES
from infrastructure.agent_contract.command import CommandContext, CommandError
from infrastructure.files import write_atomically


def label_conversations(
    context: CommandContext,
    files: Annotated[list[Path], typer.Argument(help="Files of conversations.")],
    prompts: Annotated[
        Path | None,
        typer.Option(help="File that tells of prompts whether they are harmful."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File for labelled conversations; by default none.")
    ] = None,
) -> None:
    """Tell what conversations lack for training; label them by a rule, marked as such."""
    try:
        given = read_prompt_labels(prompts) if prompts else {}
        found = [each for path in files for each in read_conversations(path)]
    except OSError as error:
        problem = f"{error.filename} cannot be read: {error.strerror}"
        raise CommandError(problem, os.EX_NOINPUT) from error
    except ValueError as error:
        problem = f"not JSON lines, nor one JSON document: {error}"
        raise CommandError(problem, os.EX_DATAERR) from error
    counts, labelled, accepted = Counter[str](), dict[tuple[str, str], str](), 0
    ready = dict[tuple[str, str], bool]()
    for each in found:
        counts["records"] += 1
        if each is None or not each.reply:
            counts["without_prompt_or_reply"] += 1
        elif each.accepted is not None:
            counts["labelled_already"] += 1
            counts["second_replies"] += each.revision_accepted is not None
            counts["accepted_second_replies"] += each.revision_accepted is True
            ready[each.prompt, each.reply] = each.accepted
        elif (harmful := given.get(each.prompt, each.harmful)) is None:
            counts["prompt_not_labelled"] += 1
        else:
            line, is_accepted = _labelled(each, harmful)
            accepted += is_accepted and (each.prompt, each.reply) not in labelled
            labelled[each.prompt, each.reply] = line
    usable = [each for each in found if each is not None and each.reply]
    facts: dict[str, int] = {
        **counts,
        "accepted": accepted,
        "distinct_prompts": len({each.prompt for each in usable}),
        "distinct_replies": len({each.reply for each in usable}),
        "labelled_by_rule": len(labelled),
        "prompts_by_rule": len({prompt for prompt, _ in labelled}),
        "prompts_with_labels": len({prompt for prompt, _ in (*labelled, *ready)}),
        "accepted_with_labels": accepted + sum(ready.values()) + counts["accepted_second_replies"],
    }
    if output is not None:
        _write(output, labelled.values())
    if context.as_json:
        context.print_json({**facts, "output": None if output is None else str(output)})
        return
    for sentence in _describe(facts, output):
        typer.echo(sentence)


def _write(output: Path, lines: Iterable[str]) -> None:
    try:
        write_atomically(output, "".join(f"{line}\n" for line in lines))
    except (OSError, ValueError) as error:  # ValueError: it has no name, such as "."
        problem = f"{output} cannot be written: {error}; name a file in an existing folder"
        raise CommandError(problem, os.EX_CANTCREAT) from error


def _labelled(found: Found, harmful: bool) -> tuple[str, bool]:
    labels = refusal_rule.label(harmful=harmful, reply=found.reply)
    line = {
        "conversation_id": hashlib.blake2b(found.prompt.encode(), digest_size=8).hexdigest(),
        "prompt": found.prompt,
        "response": found.reply,
        "unsafe": labels.unsafe,
        "overrefuse": labels.overrefuse,
        "judge": refusal_rule.NAME,
    }
    return json.dumps(line), not (labels.unsafe or labels.overrefuse)


def _describe(facts: dict[str, int], output: Path | None) -> list[str]:
    count = Counter(facts)
    sentences = [
        f"{count['records']} records: {count['distinct_prompts']} distinct prompts, "
        f"{count['distinct_replies']} distinct replies",
        f"{count['second_replies']} records have feedback and a second reply, both labelled"
        if count["second_replies"]
        else "no record has feedback and a second reply: waltzrl-feedback cannot learn from these",
    ]
    if missing := count["without_prompt_or_reply"]:
        sentences.append(f"{missing} have no prompt or no reply")
    if ready := count["labelled_already"]:
        sentences.append(f"{ready} are labelled already: put their files into FOLDER as they are")
    if missing := count["prompt_not_labelled"]:
        sentences.append(
            f"{missing} replies cannot be judged, since nothing tells whether their prompts are "
            'harmful: give --prompts a file with lines {"prompt": "...", "harmful": true}, by a '
            "person or a classifier"
        )
    if labelled := count["labelled_by_rule"]:
        sentences.append(
            f"{labelled} different replies to {count['prompts_by_rule']} prompts are labelled "
            f"by the {refusal_rule.NAME}: it accepts {count['accepted']}; check some"
        )
    lacking = max(0, NEEDED_CONVERSATIONS - count["prompts_with_labels"])
    positives = max(0, NEEDED_POSITIVES - count["accepted_with_labels"])
    sentences.append(
        "enough for waltzrl-conversation"
        if not lacking and not positives
        else f"waltzrl-conversation needs {lacking} more conversations (different prompts) and "
        f"{positives} more accepted replies"
    )
    if output is not None:
        sentences.append(f"written to {output}: put it into FOLDER of waltzrl-conversation")
    return sentences
