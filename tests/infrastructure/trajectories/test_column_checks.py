import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    Text,
    Transition,
    TransitionSpec,
)
from infrastructure.trajectories.column_checks import box_targets, inputs_fit, transitions_fit
from infrastructure.trajectories.schema import (
    as_vector,
    input_problem,
    target_problem,
    target_value,
)

SPEC = TransitionSpec(
    observation={"x": Box(shape=(2,)), "text": Text()},
    action={"a": Discrete(values=("go", "stay")), "n": Box()},
    targets={
        "x": Box(shape=(2,), delta=True),
        "reward": Box(),
        "terminated": Discrete(values=("false", "true")),
        "outcome": Discrete(values=("good", "1")),
    },
)

NUMBER = st.one_of(
    st.floats(-10, 10),
    st.integers(-5, 5),
    st.booleans(),
    st.sampled_from([float("nan"), float("inf"), 1e300, 10**400, 2**53 + 1, np.float64(0.5)]),
)
USUAL_NUMBER = st.floats(-10, 10) | st.integers(-5, 5) | st.booleans()
PAIR = st.tuples(USUAL_NUMBER, USUAL_NUMBER)
ODD = st.one_of(
    NUMBER,
    st.text(max_size=2),
    st.none(),
    st.lists(NUMBER, max_size=3),
    st.builds(np.array, st.just([1.0, 2.0])),
)


def _fields(usual):
    """Fields as they usually are; some unusual, or missing."""
    fields = {name: values | ODD for name, values in usual.items()}
    return st.one_of(
        st.fixed_dictionaries(usual),
        st.fixed_dictionaries(usual),
        st.fixed_dictionaries({}, optional=fields),
    )


TRANSITION = st.builds(
    Transition,
    group=st.just("g"),
    observation=_fields(
        {"x": PAIR, "text": st.text(max_size=3) | st.lists(st.text(max_size=2), max_size=2)}
    ),
    action=_fields({"a": st.sampled_from(["go", "stay", "odd"]) | st.booleans(), "n": NUMBER}),
    reward=st.floats(-10, 10) | st.just(1e300),
    next_observation=_fields({"x": PAIR, "outcome": st.sampled_from(["good", "1"]) | st.just(1)}),
    terminated=st.booleans(),
)


@given(st.lists(TRANSITION, max_size=4))
def test_a_check_that_passes_agrees_with_those_of_single_values(transitions):
    observations = [each.observation for each in transitions]
    actions = [each.action for each in transitions]
    problems = [input_problem(SPEC, *each) for each in zip(observations, actions, strict=True)]
    if inputs_fit(SPEC, observations, actions):
        assert not any(problems)
    if transitions_fit(SPEC, transitions):
        assert not any(problems)
        assert not any(target_problem(SPEC, each) for each in transitions)
        for name, field in SPEC.targets.items():
            if isinstance(field, Box):
                values = box_targets(field, name, transitions)
                alone = [as_vector(target_value(SPEC, each, name)) for each in transitions]
                assert values.tolist() == [[float(v) for v in value] for value in alone]


def test_usual_columns_pass():
    transition = Transition(
        group="g",
        observation={"x": (1.0, 2), "text": "two words"},
        action={"a": "go", "n": float("nan")},
        reward=1.0,
        next_observation={"x": [1.5, 2.0], "outcome": "good"},
    )
    assert transitions_fit(SPEC, [transition] * 3)
    assert box_targets(SPEC.targets["x"], "x", [transition]).tolist() == [[0.5, 0.0]]
