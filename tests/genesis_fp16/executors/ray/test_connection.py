"""Answers of servers that are not Ray, and of none at all; `test_engine` has a cluster."""

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from genesis_fp16.executors.ray.connection import Connection, RefusedError
from genesis_fp16.executors.remote import EngineError
from tests.genesis_fp16.executors.ray.web_server import served

NOWHERE = "http://127.0.0.1:9"  # nothing listens on the port of the discard protocol
UNKNOWN = (404, "Job a does not exist")


def test_an_answer_that_drips_has_one_deadline() -> None:
    """Each byte comes in time, and the whole answer would take a day."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n")
                while not ended.wait(0.05):
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        try:
            with (
                Connection(address, None, seconds=0.5) as ray,
                pytest.raises(EngineError, match=r"within 0.5 s") as caught,
            ):
                ray.ask("GET", "/api/jobs/a")
        finally:
            ended.set()
            thread.join(timeout=60)
    assert caught.value.temporary


def test_a_server_that_says_nothing_has_the_same_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        with (
            Connection(address, None, seconds=0.3) as ray,
            pytest.raises(EngineError, match=r"within 0.3 s"),
        ):
            ray.ask("GET", "/api/jobs/a")


def test_where_nothing_listens_the_error_says_so() -> None:
    with (
        Connection(NOWHERE, None) as ray,
        pytest.raises(EngineError, match="GENESIS_RAY_ADDRESS") as caught,
    ):
        ray.ask("GET", "/api/jobs/a")
    assert caught.value.temporary
    assert not isinstance(caught.value, RefusedError)


def test_a_job_that_does_not_exist_is_told_from_a_page_that_does_not() -> None:
    with served({"/api/jobs/a": UNKNOWN}) as address, Connection(address, None) as ray:
        assert ray.ask("GET", "/api/jobs/a").status == 404
        with pytest.raises(RefusedError, match="404: Not Found"):
            ray.ask("GET", "/api/elsewhere")


def test_a_redirection_is_not_followed() -> None:
    """It could lead the token anywhere."""
    pages = {"/api/jobs/a": (302, ""), "/elsewhere": (200, "{}")}
    with (
        served(pages) as address,
        Connection(address, None) as ray,
        pytest.raises(RefusedError, match="302"),
    ):
        ray.ask("GET", "/api/jobs/a")


def test_a_path_before_the_api_is_kept() -> None:
    with served({"/ray/api/jobs/a": (200, "{}")}) as address:
        for base in (f"{address}/ray", f"{address}/ray/"):
            with Connection(base, None) as ray:
                assert ray.ask("GET", "/api/jobs/a").text == "{}"


@pytest.mark.parametrize(
    ("page", "temporary"),
    [
        ((400, "ValueError: bad\n."), False),
        ((500, "RuntimeError: Request failed with status code 400: x\nValueError: bad\n."), False),
        ((500, "Traceback\nValueError: bad\n.\n"), True),
        ((429, "ValueError: bad"), True),
    ],
)
def test_what_the_error_page_ends_with_is_told(page: tuple[int, str], temporary: bool) -> None:
    with (
        served({"/api/jobs/": page}) as address,
        Connection(address, None) as ray,
        pytest.raises(RefusedError, match=r"\(ValueError: bad\)") as caught,
    ):
        ray.ask("POST", "/api/jobs/", {"entrypoint": "true"})
    assert (caught.value.temporary, caught.value.status) == (temporary, page[0])


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"\xff\xfe", "tokén".encode()])
def test_a_file_without_a_token_is_named_but_not_quoted(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(EngineError, match=str(file)) as caught:
        Connection(NOWHERE, file)
    assert caught.value.temporary
    assert "words" not in str(caught.value)
    file.unlink()
    with pytest.raises(EngineError, match="No such file"):
        Connection(NOWHERE, file)
