"""The tutorial's support agent beside a real daemon: it solves more tickets once it has a model."""

import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from genesis_client import Agent

DESK = Path(__file__).parents[2] / "examples" / "support_desk"
MOST_TICKETS = 6000
pytestmark = [pytest.mark.e2e, pytest.mark.long]


@pytest.mark.timeout(240)
def test_the_support_agent_gets_better(
    make_daemon: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DESK))
    for name in ("agent", "desk", "picture"):  # of this folder, whatever else has the names
        monkeypatch.delitem(sys.modules, name, raising=False)
    import agent
    import desk
    import picture

    daemon = make_daemon()
    daemon.configure(GENESIS_AGENTS__SUPPORT__EXPLORE='"epsilon 0.3"')
    definitions = daemon.home / "agents.d"
    definitions.mkdir(parents=True)
    shutil.copy(DESK / "support.toml", definitions)
    daemon.start()
    tickets, log = desk.Desk(), tmp_path / "tickets.jsonl"
    newest: deque[dict[str, Any]] = deque(maxlen=100)
    own, began = list[float](), time.monotonic()
    with (
        Agent("support", home=daemon.home, spool=tmp_path / "spool", deadline=10.0) as asking,
        log.open("w") as file,
    ):
        for _ in range(MOST_TICKETS):
            done = agent.answer(asking, tickets)
            file.write(json.dumps({"seconds": time.monotonic() - began, **done}) + "\n")
            own.append(float(done["own_order"]))
            newest.append(done)
            by_model = [each for each in newest if each["model"]]
            if len(by_model) == newest.maxlen and share(by_model) > sum(own) / len(own) + 0.15:
                break
            time.sleep(0.02)
        else:
            pytest.fail(
                f"{share(list(newest)):.0%} of the newest tickets were solved:\n{daemon.log}"
            )
    picture.draw(log, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def share(tickets: list[dict[str, Any]]) -> float:
    """Share of solved tickets."""
    return sum(bool(ticket["solved"]) for ticket in tickets) / len(tickets)
