import math
from dataclasses import replace

import pytest
import torch

from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.trajectories import part_of
from infrastructure.world_model.fitting.training_data import prepare_training_data


def test_no_group_is_in_two_parts(spec, record):
    data = prepare_training_data(spec, record())
    groups = [set(part.groups) for part in (data.train, data.calibration, data.test)]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 60


def test_encoder_and_codec_see_the_training_groups_only(spec, record):
    transitions = record()
    altered = [
        t
        if part_of(t.group) == "train"
        else replace(t, observation=t.observation | {"x": (1e6, -1e6)}, reward=1e6)
        for t in transitions
    ]
    one, other = prepare_training_data(spec, transitions), prepare_training_data(spec, altered)
    assert one.encoder.to_json() == other.encoder.to_json()
    assert one.codec == other.codec
    assert torch.equal(one.train.features.dense, other.train.features.dense)


def test_nothing_but_observation_and_action_reaches_the_input(spec, record):
    transitions = record()
    altered = [
        replace(
            t,
            reward=-t.reward,
            terminated=True,
            propensity=0.5,
            info={"outcome": "fixed"},
            next_observation={"x": (0.0, 0.0), "outcome": "fixed"},
        )
        for t in transitions
    ]
    one, other = prepare_training_data(spec, transitions), prepare_training_data(spec, altered)
    for name, tensor in one.train.features.inputs().items():
        assert torch.equal(tensor, other.train.features.inputs()[name])


def test_transitions_that_do_not_fit_the_spec_are_excluded_and_counted(spec, record):
    transitions = record()
    broken = [
        replace(transitions[0], observation={"x": "far"}),
        replace(transitions[1], reward=1e300),
        replace(transitions[2], reward=1e300),
    ]
    data = prepare_training_data(spec, [*broken, *transitions[3:]])
    assert sum(data.unusable.values()) == 3
    assert sum(len(part.transitions) for part in data.parts.values()) == len(transitions) - 3
    assert data.describe_exclusions()[0].startswith("2 transitions")
    assert "target 'reward'" in data.describe_exclusions()[0]


def test_transitions_with_missing_inputs_are_kept_and_those_without_any_excluded(spec, record):
    transitions = record()
    gaps = [
        replace(transitions[0], observation={"x": transitions[0].observation["x"]}),
        replace(transitions[1], action={"kind": math.nan}),
        replace(transitions[2], observation=transitions[2].observation | {"code": None}),
    ]
    without_change = replace(transitions[3], observation={"x": None, "code": "go"})
    empty = replace(transitions[4], observation={"code": None}, action={})
    data = prepare_training_data(spec, [*gaps, without_change, empty, *transitions[5:]])
    assert sum(len(part.transitions) for part in data.parts.values()) == len(transitions) - 2
    problems = sorted(data.describe_exclusions())
    assert "every input is missing ('x', 'code', 'kind')" in problems[0]
    assert "target 'x' is missing from next_observation or from observation" in problems[1]


def test_texts_that_are_cut_are_counted(spec, record):
    transitions = record()
    long = "go bug " * 150_000
    for row in (0, 1, 500):
        transitions[row] = replace(
            transitions[row], observation=transitions[row].observation | {"code": long}
        )
    [cut] = prepare_training_data(spec, transitions).describe_exclusions()
    assert cut == (
        "in 3 transitions, observation.code is longer than 1,048,576 characters: the rest is cut"
    )


def test_exclusions_are_counted_by_field_with_an_example(spec, record):
    transitions = record()
    broken = [
        replace(t, observation=t.observation | {"x": f"text {number}"})
        for number, t in enumerate(transitions)
    ]
    broken[7] = replace(transitions[7], next_observation={"x": (0.0, 0.0), "outcome": "odd"})
    with pytest.raises(InsufficientDataError) as caught:
        prepare_training_data(spec, broken)
    for said in ("0 usable", "100 needed", "1199 ", "'x' must", "; 1 ", "'outcome' must", "'odd'"):
        assert said in str(caught.value)


@pytest.mark.parametrize("given", [{"group": "g"}, "text", None])
def test_what_is_not_a_transition_is_refused_with_the_call(spec, record, given):
    with pytest.raises(TypeError, match=r"transition 1 .*pass Transi"):
        prepare_training_data(spec, [record()[0], given])


def test_the_reason_why_no_target_varies_is_told(spec, record):
    only = replace(spec, targets={"outcome": spec.targets["outcome"]})
    recorded = [
        replace(row, next_observation={"outcome": "fixed" if number % 3 else "broken"})
        for number, row in enumerate(record())
    ]
    with pytest.raises(InsufficientDataError, match=r"400 transitions are excluded.*'broken'"):
        prepare_training_data(only, recorded)


def test_too_little_data_is_refused_by_name(spec, record):
    with pytest.raises(InsufficientDataError, match="0 usable"):
        prepare_training_data(spec, [])
    with pytest.raises(InsufficientDataError, match="0 usable training transitions"):
        prepare_training_data(spec, [replace(t, group="one") for t in record()[:50]])
    unvarying = [
        replace(t, reward=0.0, next_observation={"x": t.observation["x"], "outcome": "worse"})
        for t in record()
    ]
    with pytest.raises(InsufficientDataError, match="no target varies"):
        prepare_training_data(spec, unvarying)


def test_many_transitions_in_one_group_name_the_group(spec, record):
    with pytest.raises(InsufficientDataError) as caught:
        prepare_training_data(spec, [replace(t, group="one") for t in record(groups=30)])
    assert str(caught.value) == (
        "600 transitions, all in one group 'one': give each episode, task or customer its own "
        "group; the model is tested on groups that it has not seen"
    )


def test_many_transitions_in_few_groups_say_how_many_groups_are_enough(spec, record):
    with pytest.raises(InsufficientDataError, match=r"600 .* 4 groups, such as 'g.*\(30 are"):
        prepare_training_data(spec, record(groups=4, rows=150))


def test_a_split_by_time_tests_on_the_groups_that_appear_last(spec, record):
    data = prepare_training_data(replace(spec, split="time"), record(groups=20, rows=10))
    groups = {
        part: sorted(set(rows.groups), key=lambda name: int(name[1:]))
        for part, rows in data.parts.items()
    }
    assert groups["train"] == [f"g{number}" for number in range(12)]
    assert groups["calibration"] == [f"g{number}" for number in range(12, 16)]
    assert groups["test"] == [f"g{number}" for number in range(16, 20)]


def test_findings_about_the_data_come_with_it(spec, record):
    transitions = record(groups=30)
    assert prepare_training_data(spec, transitions).findings == []
    copies = [replace(t, group=f"copy of {t.group}") for t in transitions]
    (finding,) = prepare_training_data(spec, transitions + copies).findings
    assert finding.kind == "duplicates"


@pytest.mark.parametrize(
    ("successes", "told"),
    [
        ({790}, "1 success .* in 800 transitions; at this rate about 120,000 would decide"),
        ({640, 790}, "2 successes .* in 800 transitions; at this rate about 60,000 would decide"),
        (set(), "no successes .* in 800 transitions; probably more than 40,000 would decide"),
        ({*range(800)} - {790}, "1 failure .* in 800 transitions; at this rate about 120,000"),
    ],
)
def test_too_rare_an_outcome_says_what_would_decide(successes, told):
    spec = TransitionSpec(
        observation={"x": Box()},
        action={},
        targets={"done": Discrete(values=("no", "yes"))},
        success=("done", "yes"),
    )
    rows = [
        Transition(
            group=f"g{number // 8}",
            observation={"x": float(number % 7)},
            action={},
            next_observation={"done": "yes" if number in successes else "no"},
        )
        for number in range(800)
    ]
    with pytest.raises(InsufficientDataError, match=told):
        prepare_training_data(spec, rows)
