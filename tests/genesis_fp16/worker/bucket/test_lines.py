"""What files have gained, and events that wait for the files that they announce."""

from pathlib import Path

from genesis_fp16.worker.bucket.lines import EventLines, GrowingFile
from infrastructure.events import EventTail, EventWriter
from infrastructure.events.event import CheckpointSaved, Finished, StepStats

STEP = StepStats(step=1, total_steps=9, applied=1, loss_scale=1.0, precision="fp32")
SAVED = CheckpointSaved(step=1, path="step-1.pt", size_bytes=1, seconds=0.1)


def test_a_checkpoint_is_announced_when_it_may_be_and_delays_nothing(tmp_path: Path) -> None:
    path, other_side = tmp_path / "events.ndjson", tmp_path / "received"
    lines = EventLines(path, "where")

    def send() -> list[str]:
        lines.look()
        if (gained := lines.gained()) is not None:
            assert gained.offset == (other_side.stat().st_size if other_side.exists() else 0)
            with other_side.open("ab") as file:
                file.write(gained.content)
        return [event.kind for event in EventTail(other_side).read()]

    assert send() == []
    with EventWriter(path) as emit:
        emit(STEP)
        emit(SAVED)
        emit(STEP)
        assert send() == ["step_stats", "step_stats"]
        assert lines.held == 1
        emit(SAVED)
        emit(Finished(outcome="done"))
        assert send() == ["step_stats"] * 2
        lines.release(1)  # the second one was written after somebody looked for its file
        assert send() == ["step_stats"] * 2 + ["checkpoint_saved"]
        lines.release(2)
        assert send()[3:] == ["checkpoint_saved", "finished"]


def test_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    lines = EventLines(path, "where")
    path.write_bytes(b'{"a":1}\n{"b"')
    assert lines.look()
    assert lines.gained().content == b'{"a":1}\n'
    assert not lines.look()
    with path.open("ab") as file:
        file.write(b":2}\n")
    lines.look()
    assert lines.gained().content == b'{"b":2}\n'


def test_a_growing_file_is_sent_from_where_the_other_side_has_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = GrowingFile(path, "log", 3)
    assert file.gained() is None, "it does not exist yet"
    path.write_bytes(b"onetwo")
    gained = file.gained()
    assert (gained.offset, gained.content) == (3, b"two")
    assert file.gained() is None
