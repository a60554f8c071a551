"""Generated records of the fifteen business agents, in the format of Genesis' replay buffer.

No records of these agents are public. These are generated, and what is learned from them
says nothing about Genesis. Their use is that the best possible prediction is known. One record is
one decision: a tool and an argument. The tool suits the kind of task or not, the argument suits the
situation or not; both tables are drawn for each agent. By the agent's rule success takes both,
either, or exactly one of them. Noise, which differs between agents too, turns some outcomes round.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from benchmarks.agents.businesses import Business

Needs = Literal["both", "either", "exactly one"]
RULES: tuple[Needs, ...] = ("both", "either", "exactly one")
NOISES = (0.05, 0.1, 0.15, 0.2)
_SUITED: Mapping[Needs, float] = {"both": 0.7, "either": 0.3, "exactly one": 0.5}
_REWARD = {True: 0.85, False: 0.35}
_REWARD_SPREAD = 0.08


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """How the outcomes of an agent come about.

    Attributes:
        needs: Which of tool and argument must suit for a success, before the noise.
        noise: Share of outcomes that are turned round: 1 minus the best possible accuracy.
        tool_for: Tool that suits each kind of task.
        choice_for: Argument that suits each situation.
    """

    needs: Needs
    noise: float
    tool_for: Mapping[str, str]
    choice_for: Mapping[str, str]

    @property
    def suited(self) -> float:
        """Share of tools, and of arguments, that suit: about half of the decisions succeed."""
        return _SUITED[self.needs]

    def succeeds(self, *, tool_suits: bool, choice_suits: bool) -> bool:
        """The outcome without noise."""
        suits = tool_suits + choice_suits
        return {"both": suits == 2, "either": suits > 0, "exactly one": suits == 1}[self.needs]


def rule_of(business: Business, number: int) -> Rule:
    """The rule of the agent with *number*, the same in every data set."""
    random = Random(f"rule/{business.name}")
    return Rule(
        needs=RULES[number % len(RULES)],
        noise=NOISES[number % len(NOISES)],
        tool_for={task: random.choice(business.tools) for task in business.tasks},
        choice_for={each: random.choice(business.choices) for each in business.situations},
    )


def generate(business: Business, rule: Rule, count: int, seed: int) -> Iterator[dict[str, object]]:
    """Yield *count* trajectories as Genesis' replay buffer dumps them."""
    random = Random(f"{seed}/{business.name}")
    for number in range(count):
        task, situation = random.choice(business.tasks), random.choice(business.situations)
        tool = _draw(random, business.tools, rule.tool_for[task], rule.suited)
        choice = _draw(random, business.choices, rule.choice_for[situation], rule.suited)
        success = rule.succeeds(
            tool_suits=tool == rule.tool_for[task],
            choice_suits=choice == rule.choice_for[situation],
        ) != (random.random() < rule.noise)
        reward = min(max(random.gauss(_REWARD[success], _REWARD_SPREAD), 0.0), 1.0)
        customer = random.randrange(200)
        yield {
            "trajectory_id": f"{business.name}-{seed}-{number}",
            "agent_id": f"{business.name}_agent",
            "task_description": f"{task} for customer {customer}, ticket {seed}-{number}",
            "initial_state": {business.state: situation, "open_tickets": random.randrange(9)},
            "steps": [
                {
                    "timestamp": float(number),
                    "tool_name": tool,
                    "tool_args": {business.option: choice},
                    "tool_result": None,
                    "agent_reasoning": f"the {business.state} is {situation}: {tool}",
                }
            ],
            "final_outcome": "success" if success else "failure",
            "reward": reward,
            "metadata": {},
            "created_at": float(number),
            "duration_seconds": 1.0,
        }


def _draw(random: Random, options: tuple[str, ...], suitable: str, share: float) -> str:
    if random.random() < share:
        return suitable
    return random.choice([each for each in options if each != suitable])


def write_records(path: Path, business: Business, rule: Rule, count: int, seed: int) -> None:
    """Write *count* generated records to *path*, one per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for record in generate(business, rule, count, seed):
            file.write(json.dumps(record) + "\n")
