from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from agents.waltzrl.conversations import decode_conversation
from agents.waltzrl.labelling.command import label_conversations
from infrastructure.agent_contract.command import CommandContext, CommandError

RECORDED = Path(__file__).parents[4].parent / "shared" / "data" / "genesis"


def run(*files: Path, as_json: bool = True, **options: Any) -> dict[str, Any]:
    printed: list[Any] = []
    context = CommandContext(
        find_agent=pytest.fail,
        as_json=as_json,
        print_json=printed.append,
        defer_interrupts=lambda: nullcontext(lambda: False),
    )
    label_conversations(context, list(files), **options)
    return dict(printed[0]) if as_json else {}


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


def test_what_is_labelled_already_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, refused = tmp_path / "a.jsonl", {"unsafe": False, "overrefuse": True}
    kept = {"revised": "Yes.", "revised_unsafe": False, "revised_overrefuse": False}
    lines = [
        {"prompt": f"q{n}", "response": "No.", **refused, "feedback": "Help.", **kept}
        for n in range(200)
    ]
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    facts = run(file)
    assert (facts["labelled_already"], facts["second_replies"]) == (200, 200)
    run(file, as_json=False)
    shown = capsys.readouterr().out
    assert "200 records have feedback and a second reply" in shown
    assert "enough for waltzrl-conversation" in shown


def test_text_that_utf8_lacks_is_written_as_a_readable_line(tmp_path: Path) -> None:
    file, output = tmp_path / "a.jsonl", tmp_path / "labelled.jsonl"
    file.write_text('{"prompt": "\\ud800 q", "response": "Yes.", "harmful": false}\n')
    run(file, output=output)
    assert decode_conversation(output.read_bytes()).prompt == "? q"


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    for output in (tmp_path / "absent" / "labelled.jsonl", tmp_path, Path()):
        with pytest.raises(CommandError, match="cannot be written"):
            run(tmp_path / "a.jsonl", output=output)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(CommandError, match="not a regular file"):
        run(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("{torn", r"not JSON lines.*a\.jsonl line 1"),
        ('{}\n\n{"a": ' + "[" * 50_000, r"a\.jsonl line 3"),
    ],
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
