"""What a run that an earlier release has begun does with its checkpoints."""

import pytest

from infrastructure.agent_contract.transition import Box, Transition, TransitionSpec

pytestmark = pytest.mark.process  # trains for seconds


def _saved(context):
    return sorted(path.name for path in context.run_folder.iterdir() if path.name != "encoding")


def test_a_run_of_a_release_that_encoded_texts_otherwise_starts_over(
    repair_agent, make_context, run_once, first_publication
):
    context = make_context("run-2")
    repair_agent().published_folder(context).rename(context.agent_folder / "aside")
    assert run_once(repair_agent(), context, stop_after=3) is None
    assert _saved(context) == ["best-epoch.pt", "checkpoints"]
    (context.run_folder / "encoding").unlink()  # earlier releases wrote none
    context.logger.lines.clear()
    again = run_once(repair_agent(), context)
    [(_, said)] = [line for line in context.logger.lines if line[0].startswith("checkpoints_of")]
    assert "another release" in said["reason"]
    assert said["consequence"] == "the run starts training over"
    names = [".best-epoch.pt.set-aside-1", "checkpoints.set-aside-1"]
    assert [name for name in _saved(context) if "aside" in name] == names
    assert all(str(context.run_folder / name) in said["set_aside"] for name in names)
    assert dict(again.metrics) == dict(first_publication.metrics)


NUMBERS = TransitionSpec(observation={"x": Box(), "z": Box()}, action={}, targets={"y": Box()})


@pytest.mark.parametrize("gaps", [False, True])
def test_a_run_of_numbers_goes_on_unless_values_are_missing(
    repair_agent, make_context, monkeypatch, gaps
):
    context = make_context("run-3")
    monkeypatch.setattr(repair_agent, "spec", lambda _: NUMBERS)
    transitions = [
        Transition(
            group=f"g{row // 5}",
            observation={"x": None if gaps and row % 9 == 0 else float(row % 13), "z": row % 7},
            action={},
            next_observation={"y": float(row % 13) + row % 2},
        )
        for row in range(600)
    ]
    (context.run_folder / "checkpoints").mkdir()
    for _ in range(2):  # the second attempt finds the mark of the first
        repair_agent().build_job(context, transitions)
        assert _saved(context) == ["checkpoints.set-aside-1" if gaps else "checkpoints"]
