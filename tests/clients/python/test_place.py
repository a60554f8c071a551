"""Where the predictor is found, and where reports wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from genesis_client import Agent
from genesis_client.place import Place, find_place, spool_folder

VARIABLES = ("GENESIS_HOME", "GENESIS_PREDICT_SOCKET", "GENESIS_PREDICT_URL")


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*VARIABLES, "GENESIS_PREDICT_TOKEN", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_by_default_it_is_the_folder_of_the_daemon(tmp_path: Path) -> None:
    assert find_place() == Place(socket=str(tmp_path / ".genesis" / "predict.sock"))


@pytest.mark.parametrize("stronger", [1, 2])
def test_the_environment_names_it(monkeypatch: pytest.MonkeyPatch, stronger: int) -> None:
    for name, value in zip(VARIABLES, ("/a", "/b/s", "http://c:1"), strict=True):
        monkeypatch.setenv(name, value)
        if VARIABLES.index(name) == stronger:
            break
    assert str(find_place()) == ("/b/s", "http://c:1")[stronger - 1]


def test_arguments_are_stronger_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENESIS_PREDICT_URL", "http://c:1")
    monkeypatch.setenv("GENESIS_PREDICT_TOKEN", "secret")
    assert find_place(home="/a") == Place(socket="/a/predict.sock", token="secret")
    assert find_place(socket="/b/s", token="").token == ""
    assert find_place(url="https://d/behind/", socket="/b/s") == Place(
        host="d", port=443, tls=True, prefix="/behind", token="secret"
    )


@pytest.mark.parametrize(
    "url",
    [
        "d:1",
        "ftp://d",
        "http://",
        "http://user:password@d",
        "/a",
        "http://é",
        "http://d/é",
        "http://d/a b",
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="the URL must be http://HOST:PORT"):
        find_place(url=url)


def test_a_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="the path of a Unix socket holds 107 bytes"):
        find_place(home="/" + "a" * 100)


def test_a_token_that_would_break_the_header_is_refused() -> None:
    with pytest.raises(ValueError, match="printable ASCII") as error:
        find_place(token="secret\r\nx")
    assert "secret" not in str(error.value)


def test_agents_and_predictors_have_folders_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    one, two = find_place(home="/a"), find_place(home="/b")
    folders = {spool_folder(name, place) for name in ("qa", "spec") for place in (one, two)}
    assert len(folders) == 4
    assert {folder.parent for folder in folders} == {tmp_path / ".local/state/genesis-client"}
    assert spool_folder("qa", one, "/c").parent == Path("/c")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert spool_folder("qa", one).parent == Path("/s/genesis-client")


def test_the_token_does_not_name_the_folder() -> None:
    assert spool_folder("qa", find_place(token="a")) == spool_folder("qa", find_place(token="b"))


@pytest.mark.parametrize("name", ["", "QA", "1a", "a/b", "../a", "a" * 33])
def test_a_name_that_is_not_an_agents_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="an agent's name has up to 32"):
        Agent(name)


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan"), float("inf")])
def test_a_deadline_that_cannot_be_kept_is_refused(deadline: float) -> None:
    with pytest.raises(ValueError, match="deadline must be between"):
        Agent("qa", deadline=deadline)
