"""A support agent that learns from its own replies: `python agent.py` beside a running daemon."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from desk import REPLIES, Desk, chance
from genesis_client import Agent


def answer(agent: Agent, desk: Desk) -> dict[str, object]:
    """Answer one ticket; what happened."""
    ticket = desk.next_ticket()
    replies = [{"reply": reply} for reply in REPLIES]  # its own order: it would ask for details
    with agent.choose(ticket.facts, replies, group=f"ticket-{ticket.number}") as decision:
        reply = decision.action["reply"]
        solved = desk.send(ticket, reply)
        decision.report({"solved": solved}, reward=float(solved))
    model, first = decision.ranking.version, chance(ticket, REPLIES[0])
    return {"solved": solved, "reply": reply, "model": model, "own_order": first}


def main() -> None:
    """Answer tickets until the time is over; print how many of each 50 were solved."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two tickets")
    parser.add_argument("--log", type=Path, default=Path("tickets.jsonl"))
    options = parser.parse_args()
    began, solved = time.monotonic(), list[bool]()
    with Agent("support") as agent, options.log.open("w") as log:
        desk = Desk()
        while (seconds := time.monotonic() - began) < 60 * options.minutes:
            done = answer(agent, desk)
            solved.append(bool(done["solved"]))
            print(json.dumps({"seconds": round(seconds, 2), **done}), file=log, flush=True)
            if len(solved) % 50 == 0:
                share = sum(solved[-50:]) / 50
                print(f"{seconds:5.0f} s  solved {share:4.0%}  model {done['model'] or 'none'}")
            time.sleep(options.pause)


if __name__ == "__main__":
    main()
