import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.agent_contract.transition import Box, Discrete, TransitionSpec
from infrastructure.trajectories.encoding import FeatureEncoder
from infrastructure.world_model.planning.layout import ColumnEncoding, Layout

FIELDS = {
    "x": Box(shape=(3,)),
    "kind": Discrete(values=("a", "b", "c")),
    "tail": Box(),
    "still": Box(),
    "mode": Discrete(values=("on", "off")),
}
SPEC = TransitionSpec(observation=FIELDS, action={}, targets={"y": Box()})


def _encoder(*, gaps):
    generator, rows = random.Random(0), []
    for number in range(1200):
        x = [generator.gauss(3, 2), generator.gauss(0, 1), 1.0]
        tail = generator.gauss(0, 1) ** 7
        row = {"x": x, "kind": "ab"[number % 2], "tail": tail, "still": 5.0}
        row["mode"] = ("on", "off")[number % 3 == 0]
        if gaps and number % 6 == 0:
            row |= {"x": [x[0], None, 1.0], "kind": None}
        rows.append(row)
    return FeatureEncoder.fit(SPEC, rows, [{}] * len(rows))


ENCODERS = {gaps: _encoder(gaps=gaps) for gaps in (False, True)}
NUMBER = st.none() | st.floats(-1e6, 1e6)


@pytest.mark.parametrize("gaps", [False, True])
@given(
    row=st.fixed_dictionaries(
        {
            "x": st.lists(NUMBER, min_size=3, max_size=3),
            "kind": st.sampled_from(["a", "b", "c", "new", None]),
            "tail": NUMBER,
            "still": NUMBER,
            "mode": st.sampled_from(["on", "off", "new", None]),
        }
    )
)
def test_columns_are_encoded_as_recorded_values_are(gaps, row):
    encoder, layout = ENCODERS[gaps], Layout("observation", FIELDS)
    assert encoder.bins("observation.tail") is not None
    expected = encoder.encode([row], [{}])
    columns, raw_NX = ColumnEncoding.of(encoder, layout), layout.read([row], gaps=True)
    assert columns.width == encoder.dense_width
    assert torch.allclose(columns.encode(raw_NX), expected.dense, atol=1e-6)
    odd = any(bool(flag_N) for flag_N in expected.flags.values())
    assert bool(columns.is_in_range(raw_NX)) == (not odd)


def test_a_gap_needs_leave():
    layout = Layout("action", {"x": Box()})
    with pytest.raises(ValueError, match="action 'x' is missing"):
        layout.read([{"x": None}])
