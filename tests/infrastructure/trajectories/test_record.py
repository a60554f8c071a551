import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.agent_contract.transition import Transition
from infrastructure.trajectories.record import RecordError, decode_record, encode_record

_NUMBER = st.integers(-(2**63), 2**63) | st.floats()
_VALUE = (
    st.text()
    | st.booleans()
    | _NUMBER
    | st.lists(_NUMBER, max_size=4).map(tuple)
    | st.lists(st.text(), max_size=4).map(tuple)
)
_FIELDS = st.dictionaries(st.text(), _VALUE, max_size=3)
_TRANSITIONS = st.builds(
    Transition,
    group=st.text(min_size=1),
    observation=_FIELDS,
    action=_FIELDS,
    reward=st.floats(allow_nan=False, allow_infinity=False),
    next_observation=_FIELDS,
    terminated=st.booleans(),
    propensity=st.none() | st.floats(1e-300, 1.0),
    info=_FIELDS,
)


def _transition(**fields):
    return Transition(**{"group": "g", "observation": {}, "action": {}} | fields)


@given(_TRANSITIONS)
def test_a_record_is_read_as_it_was_written(transition):
    line = encode_record(transition)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    # NaN differs from itself, its text does not
    assert repr(decode_record(line[:-1])) == repr(transition)


@given(_TRANSITIONS, st.data())
def test_any_cut_and_any_flipped_bit_is_noticed(transition, data):
    line = encode_record(transition)[:-1]
    cut = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises(RecordError):
        decode_record(line[:cut])
    position, bit = data.draw(st.integers(0, len(line) - 1)), data.draw(st.integers(0, 7))
    flipped = bytearray(line)
    flipped[position] ^= 1 << bit
    with pytest.raises(RecordError):
        decode_record(bytes(flipped))


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(line):
    with pytest.raises(RecordError):
        decode_record(line)


@pytest.mark.parametrize(
    "payload",
    [
        b"null}",
        b"[]}",
        b'{"group":"g"}}',
        b'{"group":1,"observation":{},"action":{},"reward":0.0,"next_observation":{},'
        b'"terminated":false,"propensity":null,"info":{}}}',
        b'{"group":"","observation":{},"action":{},"reward":0.0,"next_observation":{},'
        b'"terminated":false,"propensity":null,"info":{}}}',
        b'{"group":"g","observation":{"x":[[1]]},"action":{},"reward":0.0,"next_observation":{},'
        b'"terminated":false,"propensity":null,"info":{}}}',
    ],
)
def test_a_valid_checksum_does_not_make_a_transition(payload):
    import zlib

    line = b'{"v":1,"crc":"%08x","transition":%b' % (zlib.crc32(payload[:-1]), payload)
    with pytest.raises(RecordError):
        decode_record(line)


def test_arrays_are_taken_as_lists():
    transition = _transition(
        observation={"state": np.array([1.5, 2.5], dtype=np.float32), "n": np.int64(3)},
        reward=np.float32(0.5),
        terminated=np.bool_(True),
    )
    read = decode_record(encode_record(transition)[:-1])
    assert read.observation == {"state": (1.5, 2.5), "n": 3}
    assert read.reward == 0.5
    assert read.terminated is True


@pytest.mark.parametrize("value", [{"a": 1}, [[1.0]], [1, "a"], np.zeros((2, 2)), object()])
def test_values_that_cannot_be_read_back_are_refused(value):
    with pytest.raises(ValueError, match=r"observation\.x must be"):
        encode_record(_transition(observation={"x": value}))


def test_a_missing_value_is_left_out_and_in_a_list_becomes_nan():
    transition = _transition(observation={"x": None, "y": [1.0, None], "z": math.nan})
    read = decode_record(encode_record(transition)[:-1]).observation
    assert repr(read) == repr({"y": (1.0, math.nan), "z": math.nan})


def test_a_huge_number_survives():
    read = decode_record(encode_record(_transition(observation={"x": -math.inf}))[:-1])
    assert read.observation["x"] == -math.inf
