"""Tasks whose answers a program can check: arithmetic, sorting, bracket matching."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Literal, NamedTuple

TaskName = Literal["arithmetic", "sorting", "brackets"]

_HELD_OUT_SHARE = 8  # one problem of so many is never trained on
_PAIRS = ("()", "[]", "{}")


class Problem(NamedTuple):
    """A prompt with its answer.

    Attributes:
        prompt: What the policy reads.
        answer: The only right completion.
    """

    prompt: str
    answer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Problems of one kind, and when the policy has learned enough of it by demonstration.

    Attributes:
        name: Name in the settings.
        characters: Every character of prompts and answers.
        longest_answer: In characters.
        held_out: Number of held-out problems to evaluate and to publish with.
        warm_up_rounds: Rounds at the beginning of a training from random weights in which
            demonstrations help a policy that solves too few problems to learn from reward.
        learning_rate: What it is learned with, unless the settings say otherwise.
    """

    name: TaskName
    characters: str
    longest_answer: int
    held_out: int
    warm_up_rounds: int
    learning_rate: float
    draw: Callable[[Random], Problem]

    def training_problems(self, random: Random) -> Iterator[Problem]:
        """Draw problems that are not held out, without end."""
        while True:
            problem = self.draw(random)
            if not is_held_out(problem):
                yield problem

    def held_out_problems(self, count: int) -> list[Problem]:
        """The first *count* held-out problems; always the same ones, each once."""
        random, problems = Random(f"held-out {self.name}"), dict[Problem, None]()
        while len(problems) < count:
            problem = self.draw(random)
            if is_held_out(problem):
                problems[problem] = None
        return list(problems)


def is_held_out(problem: Problem) -> bool:
    """Whether *problem* is reserved for evaluation; decided by its text alone, in every run."""
    return zlib.crc32(problem.prompt.encode()) % _HELD_OUT_SHARE == 0


def reward(problem: Problem, completion: str | None) -> float:
    """1 for the right answer, else 0; a *completion* that never ended is None."""
    return float(completion == problem.answer)


def _addition(random: Random) -> Problem:
    """The sum of two numbers of two digits, least significant digit first."""
    first, second = random.randrange(100), random.randrange(100)
    return Problem(f"{first:02d}+{second:02d}=", f"{first + second:03d}"[::-1])


def _sorting(random: Random, count: int) -> Problem:
    """*count* digits in ascending order."""
    digits = random.choices("0123456789", k=count)
    return Problem("".join(digits) + ">", "".join(sorted(digits)))


def sorting(digits: int = 5, *, warm_up_rounds: int = 50) -> Task:
    """Put *digits* digits in order; the agent's task has five, at most 14 fit into its policy."""
    return Task(
        name="sorting",
        characters="0123456789>",
        longest_answer=digits,
        held_out=512,
        warm_up_rounds=warm_up_rounds,
        learning_rate=7e-4,
        draw=partial(_sorting, count=digits),
    )


def _brackets(random: Random) -> Problem:
    """The closing brackets of two to four brackets that are still open."""
    while True:
        text, still_open = "", list[str]()
        for _ in range(random.randint(3, 6)):
            if still_open and (len(still_open) == 4 or random.random() < 0.4):
                text += still_open.pop()
            else:
                pair = random.choice(_PAIRS)
                text += pair[0]
                still_open.append(pair[1])
        if len(still_open) >= 2:
            return Problem(text + "=", "".join(reversed(still_open)))


_TASKS = (
    Task(
        name="arithmetic",
        characters="0123456789+=",
        longest_answer=3,
        held_out=512,
        warm_up_rounds=300,
        learning_rate=1e-3,
        draw=_addition,
    ),
    sorting(),
    Task(
        name="brackets",
        characters="()[]{}=",
        longest_answer=4,
        held_out=256,  # there are 262
        warm_up_rounds=50,
        learning_rate=7e-4,
        draw=_brackets,
    ),
)
TASKS: Mapping[TaskName, Task] = MappingProxyType({task.name: task for task in _TASKS})
