import dataclasses
import json
import random
import signal
import subprocess
import sys
from contextlib import closing

import pytest
import torch

from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.agent_contract.transition import Box, Transition, TransitionSpec
from infrastructure.trajectories import ReplayBuffer, split_rows
from infrastructure.trajectories.history import with_history
from infrastructure.trajectories.schema import spec_to_json
from infrastructure.world_model.fitting.large_data import LargeDataSource, prepare_large_data
from infrastructure.world_model.fitting.large_data.survey import SampleSizes

SIZES = SampleSizes(train=300, held_out=200)


@pytest.fixture
def buffer(tmp_path, record):
    """600 transitions in three segments."""
    buffer = ReplayBuffer(tmp_path / "replay")
    for seed in range(3):
        with closing(buffer):
            for row in record(groups=20, rows=10, seed=seed):
                buffer.append(row)
    return buffer


@pytest.fixture
def prepare(tmp_path, spec):
    def prepare(transitions, newest=1 << 40, sizes=SIZES, spec=spec):
        source = LargeDataSource(transitions=transitions, newest=newest, sizes=sizes)
        return prepare_large_data(spec, source, tmp_path / "run" / "encoded-rows")

    return prepare


def _training_rows(transitions, split="group"):
    rows = split_rows(split, [row.group for row in transitions])["train"]
    return [transitions[row] for row in rows]


def _all(mapped):
    return mapped.read([(0, len(mapped))])


def test_all_training_rows_are_encoded_as_in_memory(buffer, prepare):
    data, reason = prepare(buffer.read())
    expected = _training_rows(list(buffer.read()))
    assert reason == ""
    assert len(expected) == data.training_rows > len(data.train.features)
    assert len(data.train.features) == 300
    features, targets = _all(data.mapped)
    wanted = data.encoder.encode_transitions(expected)
    assert torch.equal(features.dense, wanted.dense)
    tokens, wanted_tokens = features.texts["observation.code"], wanted.texts["observation.code"]
    assert torch.equal(tokens.buckets, wanted_tokens.buckets)
    assert torch.equal(tokens.lengths, wanted_tokens.lengths)
    encoded = data.codec.encode(data.codec.outcomes(expected))
    assert targets.keys() == encoded.keys()
    assert all(torch.equal(targets[name], encoded[name]) for name in encoded)


def test_the_held_out_parts_are_whole_groups_of_their_part(buffer, prepare):
    data, _ = prepare(buffer.read(), sizes=SampleSizes(train=300, held_out=60))
    every = list(buffer.read())
    rows = split_rows("group", [row.group for row in every])
    for part in ("calibration", "test"):
        recorded = [every[row] for row in rows[part]]
        kept = data.parts[part].transitions
        assert 12 <= len(kept) <= 60 < len(recorded)
        for group in {row.group for row in kept}:
            own = [row for row in recorded if row.group == group]
            assert [row for row in kept if row.group == group] == own[:6]


def test_a_sample_that_is_large_enough_has_everything(buffer, prepare):
    data, _ = prepare(buffer.read(), sizes=SampleSizes(train=1000, held_out=10_000))
    every = list(buffer.read())
    for part, rows in split_rows("group", [row.group for row in every]).items():
        kept = data.parts[part].transitions
        assert sorted(map(repr, kept)) == sorted(repr(every[row]) for row in rows)


def test_a_further_attempt_opens_the_same_data(buffer, prepare, tmp_path):
    first, _ = prepare(buffer.read())
    header = tmp_path / "run" / "encoded-rows" / "header.json"
    before = header.stat()
    second, reason = prepare(buffer.read())
    assert reason == ""
    assert header.stat() == before
    assert second.encoder.to_json() == first.encoder.to_json()
    for part in ("train", "calibration", "test"):
        assert second.parts[part].transitions == first.parts[part].transitions
        one, other = first.parts[part].features, second.parts[part].features
        assert torch.equal(one.dense, other.dense)


@pytest.mark.parametrize("newest", [1, 250, 600])
def test_only_the_newest_are_used(buffer, prepare, newest):
    if newest < 100:
        with pytest.raises(InsufficientDataError, match="transitions recorded"):
            prepare(buffer.read(), newest=newest)
        return
    data, _ = prepare(buffer.read(), newest=newest)
    assert data.training_rows == len(_training_rows(list(buffer.read())[-newest:]))


def test_transitions_without_a_snapshot_are_encoded_each_time(buffer, prepare):
    rows = list(buffer.read())
    prepare(rows)
    _, reason = prepare(rows)
    assert "other data" in reason


def test_more_data_replaces_what_is_there(buffer, prepare, record):
    first, _ = prepare(buffer.read())
    with closing(buffer):
        for row in record(groups=20, rows=10, seed=9):
            buffer.append(row)
    second, reason = prepare(buffer.read())
    assert "other data" in reason
    assert second.training_rows > first.training_rows


def _truncate(folder):
    path = folder / "0.bin"
    path.write_bytes(path.read_bytes()[:-1])


def _alter_header(folder):
    path = folder / "header.json"
    path.write_text(path.read_text().replace("constant", "konstant"))


def _alter_sample(folder):
    (path,) = (folder / "test").iterdir()
    path.write_bytes(path.read_bytes().replace(b'"reward":', b'"rewarb":', 1))


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _alter_header,
        _alter_sample,
        lambda folder: (folder / "0.bin").unlink(),
        lambda folder: (folder / "header.json").unlink(),
        lambda folder: (folder / "header.json").write_text("[]"),
        lambda folder: (folder / "header.json").write_text('{"sha256": 1}'),
    ],
)
def test_damage_is_told_and_repaired(buffer, prepare, tmp_path, damage):
    first, _ = prepare(buffer.read())
    wanted = _all(first.mapped)[0].dense
    damage(tmp_path / "run" / "encoded-rows")
    second, reason = prepare(buffer.read())
    assert reason
    assert torch.equal(_all(second.mapped)[0].dense, wanted)
    assert prepare(buffer.read())[1] == ""


def test_unusable_transitions_are_counted_once(buffer, prepare):
    with closing(buffer):
        for _ in range(7):
            buffer.append(Transition(group="odd", observation={"x": (0.0, 0.0)}, action={}))
    data, _ = prepare(buffer.read())
    assert list(data.unusable.values()) == [7]
    assert "7 transitions are excluded" in " ".join(data.describe_exclusions())


def test_a_split_by_time_is_that_in_memory(buffer, prepare, spec):
    spec = dataclasses.replace(spec, split="time")
    data, _ = prepare(buffer.read(), spec=spec)
    expected = _training_rows(list(buffer.read()), "time")
    wanted = data.encoder.encode_transitions(expected)
    assert torch.equal(_all(data.mapped)[0].dense, wanted.dense)


def test_doubtful_data_is_found_in_every_attempt(buffer, prepare, record):
    with closing(buffer):
        for row in record(groups=20, rows=10, seed=0):
            buffer.append(dataclasses.replace(row, group=f"copy of {row.group}"))
    everything = SampleSizes(train=10_000, held_out=10_000)
    first, _ = prepare(buffer.read(), sizes=everything)
    second, reason = prepare(buffer.read(), sizes=everything)
    assert reason == ""
    assert [finding.kind for finding in first.findings] == ["duplicates"]
    assert list(second.findings) == list(first.findings)


def test_a_history_is_the_same_as_in_memory(tmp_path, prepare):
    generator = random.Random(0)
    spec = TransitionSpec(
        observation={"x": Box()},
        action={"push": Box()},
        targets={"x": Box(delta=True)},
        history=3,
    )
    buffer = ReplayBuffer(tmp_path / "replay")
    with closing(buffer):
        state = {group: generator.gauss(0, 1) for group in range(40)}
        for _ in range(20):
            for group, before in list(state.items()):  # side by side
                push = generator.gauss(0, 1)
                state[group] = before + 0.1 * push
                buffer.append(
                    Transition(
                        group=f"g{group}",
                        observation={"x": before},
                        action={"push": push},
                        next_observation={"x": state[group]},
                    )
                )
    data, _ = prepare(buffer.read(), spec=spec)
    wanted = data.encoder.encode_transitions(_training_rows(with_history(spec, buffer.read())))
    assert torch.equal(_all(data.mapped)[0].dense, wanted.dense)


@pytest.mark.usefixtures("forked")
def test_an_attempt_that_is_killed_while_it_encodes_leaves_nothing_in_the_way(
    buffer, prepare, tmp_path, spec
):
    program = """
import json, os, signal, sys
from pathlib import Path
from infrastructure.trajectories import ReplayBuffer
from infrastructure.trajectories.schema import spec_from_json
from infrastructure.world_model.fitting.large_data import LargeDataSource, prepare_large_data
spec = spec_from_json(json.loads(sys.argv[2]))
view = ReplayBuffer(Path(sys.argv[1]) / "replay").read()
def report(done, total):
    if total is not None:  # the second pass
        os.kill(os.getpid(), signal.SIGKILL)
source = LargeDataSource(transitions=view, newest=1 << 40, report=report)
prepare_large_data(spec, source, Path(sys.argv[1]) / "run" / "encoded-rows")
"""
    arguments = [str(tmp_path), json.dumps(spec_to_json(spec))]
    done = subprocess.run([sys.executable, "-P", "-c", program, *arguments], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = [path for path in (tmp_path / "run").iterdir() if path.is_dir()]
    assert left.name.startswith(".encoded-rows.")
    data, reason = prepare(buffer.read())
    assert reason == ""
    assert data.training_rows == len(_training_rows(list(buffer.read())))
    assert [path.name for path in (tmp_path / "run").iterdir() if path.is_dir()] == ["encoded-rows"]
