"""A simulated support desk: tickets arrive, and a reply solves one with some probability."""

from __future__ import annotations

import random
from dataclasses import dataclass

_WORDS = {
    "login": ["password", "locked", "code", "device"],
    "billing": ["invoice", "twice", "refund", "card"],
    "crash": ["error", "trace", "update", "restart"],
    "slow": ["loading", "minutes", "search", "export"],
}
_CHANCES = {  # of the replies: ask for details, send the guide, reset the account, money back, call
    "login": [0.15, 0.35, 0.75, 0.05, 0.40],
    "billing": [0.20, 0.10, 0.05, 0.70, 0.45],
    "crash": [0.45, 0.30, 0.20, 0.10, 0.35],
    "slow": [0.30, 0.65, 0.10, 0.10, 0.30],
}
REPLIES = ["ask for details", "send the guide", "reset the account", "give money back", "call"]


@dataclass(frozen=True)
class Ticket:
    """What the desk knows of a ticket before it is answered."""

    number: int
    facts: dict[str, str | float]


class Desk:
    """Tickets, and whether a reply solves them; both are drawn by *seed*."""

    def __init__(self, seed: int = 0) -> None:
        self._random, self._number = random.Random(seed), 0

    def next_ticket(self) -> Ticket:
        """The next ticket."""
        draw, self._number = self._random, self._number + 1
        topic = draw.choice(list(_WORDS))
        facts: dict[str, str | float] = {
            "topic": topic,
            "plan": draw.choice(["free", "paid"]),
            "waited": round(draw.expovariate(0.2), 1),
            "message": " ".join(draw.choices(_WORDS[topic], k=3)),
        }
        return Ticket(self._number, facts)

    def send(self, ticket: Ticket, reply: str) -> bool:
        """Whether *reply* has solved *ticket*."""
        return self._random.random() < chance(ticket, reply)


def chance(ticket: Ticket, reply: str) -> float:
    """Probability that *reply* solves *ticket*; no agent sees it."""
    facts, solves = ticket.facts, _CHANCES[str(ticket.facts["topic"])][REPLIES.index(reply)]
    message = str(facts["message"])
    if reply == "call" and facts["plan"] == "paid":
        solves += 0.35  # those who pay like to be called
    if reply == "reset the account" and "device" in message:
        solves -= 0.40  # a new device needs no reset
    if reply == "send the guide" and float(facts["waited"]) > 8.0:
        solves -= 0.30  # who has waited wants no guide
    return min(0.95, max(0.02, solves))
