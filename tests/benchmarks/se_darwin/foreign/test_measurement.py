from pathlib import Path

import pytest

from benchmarks.se_darwin.foreign.attempt import AttemptRecord, Conditions, request_attempt
from benchmarks.se_darwin.foreign.bug import ForeignBug
from benchmarks.se_darwin.foreign.measurement import measure, read_records

BUG = ForeignBug(
    source="handwritten",
    name="half",
    code="def half(number):\n    return number // 3\n",
    function="half",
    test_code="from program import half\n\n\ndef test_half():\n    assert half(8) == 4\n",
    hidden_test_code="from program import half\n\n\ndef test_half():\n    assert half(9) == 4\n",
)
CONDITIONS = Conditions(ranker="suspicion", max_seconds=20.0, max_evaluations=200)


@pytest.mark.process
def test_a_repair_is_held_to_hidden_tests_and_a_second_call_resumes(tmp_path: Path) -> None:
    output, lines = tmp_path / "attempts.jsonl", list[str]()

    measure([BUG], CONDITIONS, output, jobs=1, log=lines.append)
    with output.open("a") as file:
        file.write('{"source": "cut')  # by an interrupt
    measure([BUG], CONDITIONS, output, jobs=1, log=lines.append)

    [record] = read_records(output)
    assert record.repaired
    assert record.right
    assert record.executions > 0
    assert len(lines) == 1


def test_attempts_under_other_conditions_are_not_mixed(tmp_path: Path) -> None:
    output = tmp_path / "attempts.jsonl"
    other = CONDITIONS.model_copy(update={"seed": 1})
    record = AttemptRecord.failed(request_attempt(BUG, other), "")
    output.write_text(record.model_dump_json() + "\n")

    with pytest.raises(ValueError, match="another file"):
        measure([BUG], CONDITIONS, output, jobs=1, log=print)


def test_attempts_at_bugs_that_are_not_chosen_now_are_not_dropped(tmp_path: Path) -> None:
    output = tmp_path / "attempts.jsonl"
    record = AttemptRecord.failed(request_attempt(BUG, CONDITIONS), "")
    output.write_text(record.model_dump_json() + "\n")

    with pytest.raises(ValueError, match=r"'half'.* not among"):
        measure([], CONDITIONS, output, jobs=1, log=print)

    assert read_records(output) == [record]


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    output = tmp_path / "attempts.jsonl"
    output.write_text("{}\n")

    with pytest.raises(ValueError, match=r"attempts.jsonl:1"):
        read_records(output)
