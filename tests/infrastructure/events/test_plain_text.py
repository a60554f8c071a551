"""Text of plugins is made safe for terminals and the store."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from infrastructure.events import EventTail, EventWriter
from infrastructure.events.event import Finished, Notice, Published
from infrastructure.events.plain_text import LONGEST, plain


def test_escape_sequences_go_and_words_stay() -> None:
    assert plain("\x1b[31mred\x1b[0m \x1b]0;title\x07of\x9b two\x00\nlines\t\u202e→é") == (
        "red of two\nlines\t→é"
    )


@given(st.text(st.characters(exclude_categories=())), st.integers(1, 30))
def test_bounded_clean_and_stable(text: str, longest: int) -> None:
    cleaned = plain(text, longest)
    assert len(cleaned) <= longest
    assert plain(cleaned, longest) == cleaned
    assert "\x1b" not in cleaned


def test_events_are_cleaned_by_writer_and_reader(tmp_path: Path) -> None:
    long = "x" * 100_000
    path = tmp_path / "events.ndjson"
    with EventWriter(path) as emit:
        emit(Finished(outcome="failed", error="\x1b[2J" + long))
        emit(Notice(event="a\x1b[1mb", fields={"group\x07": "\ud800" + long}))
    assert path.stat().st_size < 3 * LONGEST
    with path.open("a") as file:  # agent code has the descriptor too
        unclean = Published.model_construct(published=True, reason="\x1b[2Jgood", time=0.0)
        file.write(unclean.model_dump_json() + "\n")
    finished, notice, published = EventTail(path).read()
    assert finished.error == "x" * (LONGEST - 1) + "…"
    assert (notice.event, list(notice.fields)) == ("ab", ["group"])
    assert published.reason == "good"
