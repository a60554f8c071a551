"""Answers of HTTP, whole and broken."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from genesis_client.exchange import MOST_BODY, MOST_HEAD, UnavailableError, read_answer
from hypothesis import given
from hypothesis import strategies as st

HEAD = b"HTTP/1.1 200 OK\r\nGenesis-Protocol: 1\r\n"
SPLITS = st.lists(st.integers(1, 50), min_size=1)


def in_pieces(content: bytes, sizes: list[int]) -> Callable[[], bytes]:
    """A connection that delivers *content* in pieces of these sizes, over and over, and ends."""
    pieces, offset = [], 0
    while offset < len(content):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(content[offset : offset + size])
        offset += size
    rest = iter(pieces)
    return lambda: next(rest, b"")


@given(st.integers(100, 599), st.binary(max_size=300), SPLITS)
def test_an_answer_may_come_in_pieces(status: int, body: bytes, sizes: list[int]) -> None:
    content = b"HTTP/1.1 %d \r\nGENESIS-protocol:1 \r\nContent-Length: %d\r\n\r\n%b"
    answer = read_answer(in_pieces(content % (status, len(body), body), sizes))
    assert (answer.status, answer.body) == (status, body)
    assert answer.headers["content-length"] == str(len(body))


@given(st.binary(max_size=500), st.booleans(), SPLITS)
def test_any_bytes_are_an_answer_or_a_failure(
    content: bytes, begins_well: bool, sizes: list[int]
) -> None:
    whole = HEAD + content if begins_well else content
    try:
        answer = read_answer(in_pieces(whole, sizes))
    except UnavailableError:
        return
    assert whole.endswith(answer.body)


@given(st.data())
def test_an_answer_that_is_cut_is_a_failure(data: st.DataObject) -> None:
    content = HEAD + b"Content-Length: 20\r\n\r\n" + b"x" * 20
    cut = content[: data.draw(st.integers(0, len(content) - 1))]
    with pytest.raises(UnavailableError, match="ended within an answer"):
        read_answer(in_pieces(cut, [1000]))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"HTTP/2 200 OK\r\n\r\n", "is not HTTP/1.1: 'HTTP/2 200 OK'"),
        (b"HTTP/1.1 200 OK\r\nnothing\r\n\r\n", "wrong header: 'nothing'"),
        (HEAD + b"\r\n", "no usable Content-Length"),
        (HEAD + b"Content-Length: -1\r\n\r\n", "no usable Content-Length"),
        (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", "no usable"),
        (HEAD + b"Content-Length: %d\r\n\r\n" % (MOST_BODY + 1), "exceeds 8388608 bytes"),
        (HEAD + b"Content-Length: 1\r\n\r\nab", "longer than its Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "the server is not a predictor"),
        (b"x" * (MOST_HEAD + 2000), "head of the answer exceeds"),
    ],
)
def test_the_reason_is_told(content: bytes, reason: str) -> None:
    with pytest.raises(UnavailableError, match=re.escape(reason)):
        read_answer(in_pieces(content, [1000]))
