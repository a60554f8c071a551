"""Reports of a group in the spools of real clients."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from genesis_client.place import Place, spool_folder
from genesis_client.spool import Batch, Spool

from infrastructure.decisions.spools import remove_from_spools

LIMIT = 1 << 20


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for spools of this user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return tmp_path / ".local/state/genesis-client"


def report(spool: Spool, tail: str, **fields: object) -> None:
    assert spool.append(tail, json.dumps(fields).encode())


def test_reports_of_the_group_are_removed_and_the_others_are_sent(
    state: Path, tmp_path: Path
) -> None:
    socket = tmp_path / "home" / "predict.sock"
    folder = spool_folder("qa", Place(socket=str(socket)))
    assert folder.parent == state
    with closing(Spool(folder, LIMIT)) as spool:
        report(spool, "choices", id="c1", group="left", actions=[{}])
        report(spool, "choices", id="c2", group="stays", actions=[{}])
        report(spool, "decisions/c1/outcome", reward=1.0)
        report(spool, "decisions/c2/outcome", reward=2.0)
        report(spool, "decisions/old/outcome", reward=3.0)
        report(spool, "transitions", id="t1", group="left")
        report(spool, "choices", id="left", actions=[{}])  # a group by itself
        in_use = remove_from_spools("qa", socket, "left", {"old"})
        assert in_use.removed == 0
        assert in_use.in_use == [str(folder / "0.spool")]

    removed = remove_from_spools("qa", socket, "left", {"old"})
    assert (removed.removed, removed.in_use) == (5, [])
    with closing(Spool(folder, LIMIT)) as spool:
        sent, damaged = list[Batch](), 0
        for file in spool.abandoned():
            while (batch := file.next_batch()) is not None:
                sent.append(batch)
            damaged += file.damaged
        assert [each.tail for each in sent] == ["choices", "decisions/c2/outcome"]
        assert json.loads(sent[0].reports[0])["id"] == "c2"
        assert damaged == 0
    assert remove_from_spools("qa", socket, "left", {"old"}).removed == 0


def test_reports_for_another_address_are_named_and_left(state: Path, tmp_path: Path) -> None:
    folder = spool_folder("qa", Place(host="elsewhere", port=1))
    with closing(Spool(folder, LIMIT)) as spool:
        report(spool, "transitions", id="t1", group="left")
    other = spool_folder("qa-two", Place(socket=str(tmp_path / "predict.sock")))
    with closing(Spool(other, LIMIT)) as spool:
        report(spool, "transitions", id="t1", group="left")
    before = (folder / "0.spool").read_bytes()
    found = remove_from_spools("qa", tmp_path / "predict.sock", "left", set())
    assert (found.removed, found.of_others) == (0, [str(folder / "0.spool")])
    assert (folder / "0.spool").read_bytes() == before
