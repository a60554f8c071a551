"""Draw what `agent.py` has logged: `python picture.py tickets.jsonl support-agent.png`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

WINDOW = 100  # tickets


def draw(log: Path, picture: Path) -> None:
    """Draw the share of solved tickets over time, and when the model changed."""
    tickets = [json.loads(line) for line in log.read_text().splitlines()]
    minutes = [ticket["seconds"] / 60 for ticket in tickets]
    solved = [float(ticket["solved"]) for ticket in tickets]
    ends = range(WINDOW, len(solved) + 1)
    figure, axes = pyplot.subplots(figsize=(8, 3.5), layout="constrained")
    shares = [sum(solved[end - WINDOW : end]) / WINDOW for end in ends]
    axes.plot(minutes[WINDOW - 1 :], shares, label=f"the agent, last {WINDOW} tickets")
    own = sum(ticket["own_order"] for ticket in tickets) / len(tickets)
    axes.axhline(own, color="gray", linestyle=":", label="always its own first reply")
    model = None
    for minute, ticket in zip(minutes, tickets, strict=True):
        if ticket["model"] not in (None, model):
            label = None if model else "a model is published"
            axes.axvline(minute, color="tab:green", alpha=0.4, linestyle="--", label=label)
            model = ticket["model"]
    axes.set(xlabel="minutes", ylabel="tickets solved", ylim=(0, 1), xlim=(0, None))
    axes.legend(loc="lower right")
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
