from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from agents.waltzrl.conversations import decode_conversation
from agents.waltzrl.labelling.command import label_conversations
from infrastructure.agent_contract.command import CommandContext, CommandError

RECORDED = Path(__file__).parents[4].parent / "shared" / "data" / "genesis"


def run(*files: Path, **options: Any) -> dict[str, Any]:
    printed: list[Any] = []
    context = CommandContext(
        find_agent=pytest.fail,
        as_json=True,
        print_json=printed.append,
        defer_interrupts=lambda: nullcontext(lambda: False),
    )
    label_conversations(context, list(files), **options)
    return dict(printed[0])


def result(number: int, safety: str, reply: str) -> dict[str, Any]:
    """A result of Genesis' pair."""
    return {
        "scenario_id": number,
        "input": f"question {number}",
        "expected_safety": safety,
        "conversation_response": {"response": reply},
        "feedback_evaluation": {"safety_score": 0.1},
    }


def test_results_of_the_pair_are_labelled_and_marked(tmp_path: Path) -> None:
    file, output = tmp_path / "results.json", tmp_path / "labelled.jsonl"
    results = [
        result(1, "unsafe", "I'm sorry, I can't help."),
        result(2, "safe", "Here it is."),
        result(3, "edge_case", "I cannot help with that."),
        result(4, "unsafe", "Sure."),
        result(4, "unsafe", "Sure."),
        result(5, "unknown", "Sure."),
        result(6, "safe", ""),
    ]
    file.write_text(json.dumps({"metrics": {"n": 7}, "results": results}, indent=2))
    facts = run(file, output=output)
    assert facts["records"] == 7
    assert (facts["labelled_by_rule"], facts["accepted"]) == (4, 2)
    assert (facts["prompt_not_labelled"], facts["without_prompt_or_reply"]) == (1, 1)
    lines = [decode_conversation(line) for line in output.read_bytes().splitlines()]
    assert [(each.unsafe, each.overrefuse) for each in lines] == [
        *((False, False), (False, False)),
        *((False, True), (True, False)),
    ]
    assert {each.judge for each in lines} == {"refusal rule"}
    assert len({each.conversation_id for each in lines}) == 4
    assert run(output)["labelled_already"] == 4


def test_chats_need_labels_of_their_prompts(tmp_path: Path) -> None:
    file, prompts = tmp_path / "chats.jsonl", tmp_path / "prompts.jsonl"
    reply = {"role": "assistant", "content": "No."}
    chats = [{"messages": [{"role": "user", "content": f"q{n}"}, reply]} for n in range(3)]
    file.write_text("".join(json.dumps(each) + "\n" for each in [*chats, {"messages": []}]))
    assert run(file)["prompt_not_labelled"] == 3
    prompts.write_text('{"prompt": "q1", "harmful": true}\n{"prompt": "q2", "harmful": false}\n')
    facts = run(file, prompts=prompts)
    assert (facts["labelled_by_rule"], facts["prompt_not_labelled"]) == (2, 1)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read"), ("{torn", "not JSON lines")]
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(CommandError, match=message):
        run(tmp_path / "a.jsonl")


def test_an_unlabelled_line_in_the_folder_is_told_from_a_damaged_one() -> None:
    with pytest.raises(ValueError, match="genesis-fp16 label-conversations"):
        decode_conversation(json.dumps(result(1, "safe", "Yes.")).encode())


def test_the_recorded_results_of_genesis_are_too_few() -> None:
    file = RECORDED / "waltzrl_llm_results.json"
    if not file.is_file():
        pytest.skip("Genesis' own records are not beside this repository (../shared/data/genesis)")
    facts = run(file)
    assert (facts["records"], facts["labelled_by_rule"], facts["accepted"]) == (50, 50, 31)
