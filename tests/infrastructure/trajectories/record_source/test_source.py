from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infrastructure.trajectories.record_source import RecordSource, SourceFolderError
from infrastructure.trajectories.record_source.lines import MAX_LINE_BYTES

Make = Callable[..., dict[str, object]]


def test_each_record_is_read_once(desk: Any, make_record: Make) -> None:
    desk.write("a.jsonl", make_record("1"), make_record("2"))
    assert desk.run() == ["1", "2"]
    assert desk.run() == []
    assert desk.source.report.duplicates == 0  # the file was not read again
    desk.write("a.jsonl", make_record("3"))
    desk.write("b.jsonl", make_record("4"))
    assert sorted(desk.run()) == ["3", "4"]


def test_a_run_ended_by_its_budget_or_a_crash_loses_and_doubles_nothing(
    desk: Any, make_record: Make
) -> None:
    desk.write("a.jsonl", *(make_record(str(number)) for number in range(10)))
    assert desk.run(stop_after=4) == ["0", "1", "2", "3"]  # its budget is spent
    assert desk.run(stop_after=3, keep=False) == ["4", "5", "6"]  # killed while collecting
    assert desk.run() == ["7", "8", "9"]
    (desk.agent_folder / "source-positions.json").write_text("{torn")
    assert desk.run() == []
    assert desk.source.report.duplicates == 10


def test_records_collected_elsewhere_are_read_again(desk: Any, make_record: Make) -> None:
    desk.write("a.jsonl", make_record("1"))
    source = desk.new_source()  # a pre-flight: it records into a folder of its own
    assert [each.group for each in source.new_transitions(60.0)] == ["1"]
    source.keep_positions()
    assert desk.run() == ["1"]


def test_a_partial_last_line_waits_for_its_end(desk: Any, make_record: Make) -> None:
    whole = json.dumps(make_record("2"))
    desk.write("a.jsonl", make_record("1"), whole[:20], end="")
    assert desk.run() == ["1"]
    assert desk.source.report.incomplete == 1
    desk.write("a.jsonl", whole[20:])
    assert desk.run() == ["2"]
    desk.write("a.jsonl", make_record("3"), end="")  # whole, but without its newline
    assert desk.run() == ["3"]
    desk.write("a.jsonl", "", make_record("4"))
    assert desk.run() == ["4"]


@pytest.mark.parametrize("how", ["rename", "dated", "copy and truncate", "truncate", "replace"])
def test_rotation(desk: Any, make_record: Make, how: str) -> None:
    path = desk.write("a.jsonl", make_record("1"), make_record("2"))
    assert desk.run(stop_after=1) == ["1"]
    if how == "rename":
        path.rename(path.with_name("a.jsonl.1"))
    elif how == "dated":
        path.rename(path.with_name("a.jsonl-20261122"))
    elif how == "copy and truncate":
        shutil.copy(path, path.with_name("a.jsonl.1"))
        os.truncate(path, 0)
    elif how == "truncate":
        assert desk.run() == ["2"]
        os.truncate(path, 0)
    else:
        assert desk.run() == ["2"]
        path.unlink()
    desk.write("a.jsonl", make_record("3"), make_record("4"), make_record("5"))
    assert sorted(desk.run()) == (
        ["3", "4", "5"] if how in ("truncate", "replace") else ["2", "3", "4", "5"]
    )
    assert desk.run() == []
    assert sorted(desk.recorded()) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(("ending", "module"), [(".gz", gzip), (".bz2", bz2), (".xz", lzma)])
def test_a_compressed_rotated_file(
    desk: Any, make_record: Make, ending: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = desk.write("a.jsonl", *(make_record(str(number)) for number in range(4)))
    assert desk.run(stop_after=1) == ["0"]
    content = module.compress(path.read_bytes())
    path.unlink()
    compressed = path.with_name(f"a.jsonl.1{ending}")
    compressed.write_bytes(content[: len(content) // 2])  # it is being written
    before = desk.run()
    assert "not complete yet" in next(desk.source.report.problems())
    compressed.write_bytes(content)
    assert [*before, *desk.run()] == ["1", "2", "3"]
    with monkeypatch.context() as patch:
        patch.setattr(RecordSource, "_lines", None)  # what was read whole is not opened again
        assert desk.run() == []
    assert not list(desk.source.report.problems())


def test_a_truncated_file_that_begins_with_zero_bytes(desk: Any, make_record: Make) -> None:
    path = desk.write("a.jsonl", make_record("1"))
    desk.run()
    size = path.stat().st_size
    os.truncate(path, 0)
    with path.open("r+b") as file:  # a writer that does not append
        file.seek(size)
        file.write(json.dumps(make_record("2")).encode() + b"\n")
    assert desk.run() == ["2"]
    assert not desk.source.report.refused


def test_duplicates_are_known_by_id_else_by_content(desk: Any, make_record: Make) -> None:
    desk.write("a.jsonl", make_record("1"), make_record("1"), make_record("1", id="x"))
    desk.write("b.jsonl", make_record("1"), make_record("2", id="x"), make_record("3", id=7))
    assert desk.run() == ["1", "1", "3"]
    assert desk.source.report.duplicates == 3
    desk.write("c.jsonl", make_record("4", id="7"), make_record("1"))
    assert desk.run() == []


def test_two_writers_of_one_file(desk: Any, make_record: Make) -> None:
    one, two = json.dumps(make_record("1")), json.dumps(make_record("2"))
    third = json.dumps(make_record("3"))
    desk.write("a.jsonl", one + two, f"{one[:30]}{third}", f"{one[:30]}{two[:10]}{one[30:]}")
    assert desk.run() == ["1", "2", "3"]
    report = desk.source.report
    assert report.refused.total() == 2
    assert all("not JSON" in reason for reason in report.refused)
    assert "a.jsonl line 2" in " ".join(report.problems())


def test_what_cannot_be_a_record_is_counted_with_its_place(desk: Any, make_record: Make) -> None:
    desk.write(
        "a.jsonl",
        make_record("1"),
        "[]",
        make_record(""),
        {"observation": {"x": 1.0}},
        make_record("2", obsrvation={}),
        make_record("3", reward="high"),
        "",
        "x" * (MAX_LINE_BYTES + 10),
        make_record("4"),
    )
    assert desk.run() == ["1", "4"]
    text = "\n".join(desk.source.report.problems())
    for part in (
        "a record is a JSON object",
        "needs a group",
        "the key 'group' is missing (first: a.jsonl line 4)",
        "no key 'obsrvation'; did you mean observation?",
        "reward and propensity must be numbers",
        "longer than 1 MiB (first: a.jsonl line 8)",
        "correct the lines",
    ):
        assert part in text


@pytest.mark.parametrize("records", [3, 20_000])  # the second file is larger than the longest line
def test_lines_that_end_with_a_carriage_return_are_told(
    desk: Any, make_record: Make, records: int
) -> None:
    path = desk.write("a.jsonl", end="")
    path.write_text("\r".join(json.dumps(make_record(str(n))) for n in range(records)) + "\r")
    desk.write("b.jsonl", make_record("x"))
    with (desk.folder / "b.jsonl").open("ab") as file:
        file.write(b'{"group"\r')  # half of a line end
    assert desk.run() == ["x"]
    [problem] = desk.source.report.problems()
    assert problem.startswith("a.jsonl cannot be read: lines end with a carriage")
    assert desk.source.report.incomplete == 1
    path.write_text(path.read_text().replace("\r", "\n")[:100_000].rpartition("\n")[0] + "\n")
    assert desk.run()[:2] == ["0", "1"]


def test_a_compressed_file_with_other_line_ends_is_told_in_each_pass(
    desk: Any, make_record: Make
) -> None:
    text = "\r".join(json.dumps(make_record(str(n))) for n in range(3)) + "\r"
    (desk.folder / "a.jsonl.1.gz").write_bytes(gzip.compress(text.encode()))
    for _ in range(2):
        assert desk.run() == []
        [problem] = desk.source.report.problems()
        assert problem.startswith("a.jsonl.1.gz cannot be read: lines end with a carriage")


def test_lines_that_are_wrong_in_the_same_way_are_counted_together(
    desk: Any, make_record: Make
) -> None:
    """A file of another encoding would otherwise hide what else is wrong."""
    path = desk.write("a.jsonl", *('{"g": "%s\\' % ("x" * number) for number in range(20)))
    with path.open("ab") as file:
        file.writelines(b"{" + b" " * number + b'"g": "\xe9"}\n' for number in range(20))
    desk.write("b.jsonl", make_record("1"))
    assert desk.run() == ["1"]
    assert sorted(desk.source.report.refused.values()) == [20, 20]
    problems = "\n".join(desk.source.report.problems())
    assert "20 records cannot be read: not UTF-8 (first: a.jsonl line 21)" in problems


def test_a_changed_schema_is_recorded_and_told(desk: Any, make_record: Make) -> None:
    desk.write("a.jsonl", make_record("1"))
    desk.write("a.jsonl", {"group": "2", "observation": {"z": 1.0}, "next_observation": {"y": 1.0}})
    assert desk.run() == ["1", "2"]  # a later definition may need it
    [problem] = desk.source.report.problems()
    assert "1 transition cannot" in problem
    assert "every input is missing ('x')" in problem
    desk.text = desk.text.replace('x = { type = "box" }', 'z = { type = "box" }')
    assert desk.run() == []
    assert desk.recorded() == ["1", "2"]


def test_records_of_other_agents_are_left_to_them(desk: Any, make_record: Make) -> None:
    desk.write("a.jsonl", make_record("1", agent="legal"), make_record("2", agent="seo"))
    assert desk.run() == []
    [problem] = desk.source.report.problems()
    assert "2 records name other agents (legal, seo)" in problem
    desk.write("a.jsonl", make_record("3", agent="desk"), make_record("4"))
    assert desk.run() == ["3", "4"]
    desk.text = desk.text.replace('path = "records"', 'path = "records"\nagents = ["desk", "seo"]')
    assert desk.run() == ["2"]  # another source: its files are read from the beginning


def test_a_folder_that_vanishes_is_named(desk: Any, make_record: Make) -> None:
    desk.write("a.jsonl", make_record("1"))
    desk.run()
    shutil.rmtree(desk.folder)
    with pytest.raises(SourceFolderError, match=r"records.* No such file.*restore"):
        desk.run()
    assert desk.recorded() == ["1"]


def test_files_that_cannot_be_read_cost_only_themselves(
    desk: Any, make_record: Make, tmp_path: Path
) -> None:
    (desk.folder / "a.jsonl").mkdir()
    os.mkfifo(desk.folder / "b.jsonl")
    (desk.folder / "c.jsonl").symlink_to(tmp_path / "nowhere")
    (desk.folder / "d.jsonl.1.zst").write_bytes(b"\x28\xb5")
    (desk.folder / "d.jsonl.2.gz").write_bytes(b"no gzip")
    desk.write(".hidden.jsonl", make_record("no"))
    desk.write("other.txt", make_record("no"))
    desk.write("e.jsonl", make_record("1"))
    assert desk.run() == ["1"]
    problems = " ".join(desk.source.report.problems())
    assert "d.jsonl.1.zst cannot be read: " in problems
    assert "d.jsonl.2.gz cannot be read: Not a gzipped" in problems


def test_time_is_a_limit_also_while_nothing_is_new(desk: Any, make_record: Make) -> None:
    desk.write("a.jsonl", *(make_record(str(number)) for number in range(5)))
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    source = replace(desk.source, clock=clock)
    assert [each.group for each in source.new_transitions(2.5)] == ["0", "1", "2"]


def test_a_pool_is_read_again_when_it_changes(desk: Any) -> None:
    desk.text = '[source]\npath = "records"\nformat = "trajectory-pool"\n'
    path = desk.folder / "pool.json"
    pool = {"trajectories": {"a": {"success_score": 0.5, "proposed_strategy": "try for: sums"}}}
    path.write_text(json.dumps(pool)[:30])
    assert desk.run() == []
    assert desk.source.report.refused.total() == 1
    path.write_text(json.dumps(pool))
    assert desk.run() == ["sums"]
    pool["trajectories"]["b"] = {"success_score": 0.7, "proposed_strategy": "try for: products"}
    path.write_text(json.dumps(pool))
    assert desk.run() == ["products"]
    assert desk.run() == []


def test_any_json_object_can_be_a_record(desk: Any) -> None:
    desk.text = (
        '[source]\npath = "records"\nformat = "records"\ngroup = "task.name"\nid = "n"\n'
        'reward = "score"\nagent = "who"\n'
        '[spec.observation]\n"cost.tokens" = { type = "box" }\n'
        '[spec.targets]\nscore = { type = "box" }\n'
    )
    line = {"n": 1, "task": {"name": "t"}, "who": "desk", "cost": {"tokens": 3}, "score": 0.5}
    desk.write("a.jsonl", line, {**line, "n": 2, "none": None, "odd": [[1], {}]}, {"n": 3})
    assert desk.run() == ["t", "t"]
    assert "'task.name' is missing" in next(desk.source.report.problems())
    assert not desk.source.report.misfits


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(1, 4)),
            st.tuples(st.just("tear"), st.integers(1, 40)),
            st.tuples(st.just("rotate"), st.just(0)),
            st.tuples(st.just("copytruncate"), st.just(0)),
            st.tuples(st.just("compress"), st.just(0)),
            st.tuples(st.just("run"), st.integers(1, 5)),
            st.tuples(st.just("crash"), st.integers(1, 5)),
        ),
        max_size=12,
    )
)
def test_no_order_of_events_loses_or_doubles_a_record(
    steps: list[tuple[str, int]], make_record: Make, tmp_path_factory: Any
) -> None:
    from tests.infrastructure.trajectories.record_source.conftest import Desk

    desk = Desk(tmp_path_factory.mktemp("desk"))
    written, rotations, torn = 0, 0, ""
    path = desk.folder / "a.jsonl"
    for kind, count in [*steps, ("write", 1), ("run", 1000)]:
        if kind == "write":
            for _ in range(count):
                text = torn or json.dumps(make_record(str(written)))
                desk.write("a.jsonl", text)
                written, torn = written + 1, ""
        elif kind == "tear" and not torn:
            whole = json.dumps(make_record(str(written)))
            desk.write("a.jsonl", whole[:count], end="")
            torn = whole[count:]
        elif kind == "rotate" and path.exists() and not torn:
            rotations += 1
            path.rename(f"{path}.{rotations}")
        elif kind == "compress" and (found := sorted(desk.folder.glob("*.jsonl.[0-9]"))):
            found[0].with_name(f"{found[0].name}.gz").write_bytes(
                gzip.compress(found[0].read_bytes())
            )
            found[0].unlink()
        elif kind == "copytruncate" and path.exists() and not torn:
            rotations += 1
            shutil.copy(path, f"{path}.{rotations}")
            os.truncate(path, 0)
        elif kind in ("run", "crash"):
            desk.run(stop_after=count, keep=kind == "run")
    assert sorted(desk.recorded()) == sorted(str(number) for number in range(written))


@pytest.mark.parametrize("form", ["list", "inner list", "one after another", "one line"])
def test_pretty_printed_json_is_read_as_it_is(desk: Any, make_record: Make, form: str) -> None:
    records = [make_record(str(number)) for number in range(3)]
    text = {
        "list": json.dumps(records, indent=2),
        "inner list": json.dumps({"count": 3, "records": records}, indent=2),
        "one after another": "\n".join(json.dumps(each, indent=2) for each in records),
        "one line": json.dumps(records),
    }[form]
    path = desk.folder / "a.jsonl"
    path.write_text(text[:-30])  # it is being written
    assert desk.run() == []
    assert "not complete yet" in desk.source.report.unreadable["a.jsonl"]
    path.write_text(text)
    assert desk.run() == ["0", "1", "2"]
    path.write_text(json.dumps([*records, make_record("3")], indent=2))
    assert desk.run() == ["3"]


def test_a_pretty_printed_record_may_hold_a_list(desk: Any, make_record: Make) -> None:
    record = make_record("1", info={"of": "one"}) | {"next_observation": {"y": 1.0}}
    desk.write("a.jsonl", json.dumps(record, indent=2), "[1, 2]")
    assert desk.run() == []
    assert "something else than objects" in desk.source.report.unreadable["a.jsonl"]
