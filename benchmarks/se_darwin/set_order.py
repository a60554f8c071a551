"""``python -m benchmarks.se_darwin.set_order``: repairs of functions whose result depends on order.

Each of twenty functions reads a set in its order. `evolve_solution` repairs it; the repair then
runs with its tests in plain Python under ten other seeds of hashes.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from agents.se_darwin_agent import SEDarwinAgent

SEEDS = range(10, 20)
_PROGRAMS = """
tags(words): return list(set(words))
    tags(["b", "a", "b"]) == ["a", "b"]; tags(["x"]) == ["x"]
joined(words): return ",".join(set(words))
    joined(["b", "a", "b", "c"]) == "a,b,c"; joined([]) == ""
first(words): return next(iter(set(words)))
    first(["pear", "fig", "apple"]) == "apple"; first(["b", "a"]) == "a"
common(a, b): return [x for x in set(a) & set(b)]
    common(["x", "y", "z"], ["z", "y"]) == ["y", "z"]; common(["q"], ["r"]) == []
missing(have, want): return list(set(have) - set(want))
    missing(["a"], ["b", "a", "c"]) == ["b", "c"]; missing(["a"], ["a"]) == []
letters(text): return "".join(set(text))
    letters("banana") == "abn"; letters("zz") == "z"
number(words): return {w: i for i, w in enumerate(set(words))}
    number(["b", "a", "c"]) == {"a": 0, "b": 1, "c": 2}; number([]) == {}
longest(words): return max(set(words), key=len)
    longest(["bb", "aa", "c"]) == "aa"; longest(["dd", "cc", "bb"]) == "bb"
pick(words, n): return list(set(words))[:n]
    pick(["d", "b", "a"], 2) == ["a", "b"]; pick(["q"], 1) == ["q"]
unique(words): return list(dict.fromkeys(set(words)))
    unique(["b", "a", "b"]) == ["b", "a"]; unique(["x", "w", "x", "v"]) == ["x", "w", "v"]
either(a, b): return list(set(a) ^ set(b))
    either(["p", "q"], ["q", "r"]) == ["p", "r"]; either(["a"], ["a"]) == []
keys(a, b): return list(a.keys() | b.keys())
    keys({"x": 1}, {"a": 2}) == ["a", "x"]; keys({}, {}) == []
shared(a, b): return " ".join(a.keys() & b.keys())
    shared({"x": 1, "y": 2, "k": 0}, {"k": 1, "y": 3}) == "k y"; shared({}, {"a": 1}) == ""
initials(words): return "".join({w[0] for w in words})
    initials(["dog", "cat", "ant", "cow"]) == "acd"; initials([]) == ""
pairs(words): return [(a, b) for a in set(words) for b in set(words) if a < b]
    pairs(["y", "x", "z"]) == [("x", "y"), ("x", "z"), ("y", "z")]; pairs(["x"]) == []
last(words): return list(frozenset(words))[-1]
    last(["m", "n", "k"]) == "n"; last(["a"]) == "a"
ranks(words): return dict(zip(set(words), range(9)))
    ranks(["c", "b", "a"]) == {"a": 0, "b": 1, "c": 2}; ranks(["z"]) == {"z": 0}
upper(words): return [w.upper() for w in {w.strip() for w in words}]
    upper([" b", "a ", "b", "c"]) == ["A", "B", "C"]; upper([]) == []
short(words, n): return [w for w in set(words) if len(w) < n]
    short(["aa", "b", "cc", "ddd"], 2) == ["aa", "b", "cc"]; short(["e"], 0) == []
summary(words): return f"{len(set(words))}: {' '.join(set(words))}"
    summary(["b", "a", "b", "c"]) == "3: a b c"; summary(["x"]) == "1: x"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderBug:
    """Attributes:
    name: Name of the function.
    code: The program.
    tests: Its test module.
    """

    name: str
    code: str
    tests: str


def order_bugs() -> Iterator[OrderBug]:
    """Yield the twenty functions."""
    lines = _PROGRAMS.strip().splitlines()
    for head, checks in zip(lines[::2], lines[1::2], strict=True):
        signature, body = head.split(": ", 1)
        name = signature.partition("(")[0]
        asserts = "\n".join(f"    assert {check}" for check in checks.strip().split("; "))
        yield OrderBug(
            name=name,
            code=f"def {signature}:\n    {body}\n",
            tests=f"from program import {name}\n\n\ndef test_{name}():\n{asserts}\n",
        )


def repair(bug: OrderBug, *, max_evaluations: int, seconds: float) -> tuple[str, int]:
    """Return the repaired program, empty if there is none, and the number of unstable ones."""
    context: dict[str, object] = {
        "code": bug.code,
        "function": bug.name,
        "test_code": bug.tests,
        "record": False,
    }
    limits: dict[str, object] = {"max_evaluations": max_evaluations, "max_seconds": seconds}
    result = asyncio.run(SEDarwinAgent().evolve_solution("", context | limits))
    best = result["best_trajectory"]
    unstable = int(result["pool_statistics"]["order_dependent"])
    return (best["code_after"] if result["success"] and best["edits"] else ""), unstable


def broken_seeds(bug: OrderBug, code: str) -> list[int]:
    """Return the seeds of hashes under which *code* fails its tests in plain Python."""
    tests = bug.tests.replace("from program import", "#")
    program = f"{code}\n{tests}\ntest_{bug.name}()\n"
    return [
        seed
        for seed in SEEDS
        if subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=False,
        ).returncode
    ]


def main() -> None:
    """Repair all; print what became of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-evaluations", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only", nargs="*", help="names of functions; all without it")
    options = parser.parse_args()
    repaired = broken = dropped = 0
    bugs = [bug for bug in order_bugs() if not options.only or bug.name in options.only]
    for bug in bugs:
        code, unstable = repair(
            bug, max_evaluations=options.max_evaluations, seconds=options.seconds
        )
        seeds = broken_seeds(bug, code) if code else []
        repaired, broken, dropped = repaired + bool(code), broken + bool(seeds), dropped + unstable
        outcome = f"broken by seeds {seeds}" if seeds else "repaired" if code else "not repaired"
        line = code.strip().splitlines()[-1].strip() if code else ""
        print(f"{bug.name}: {outcome}; {unstable} dropped; {line}", flush=True)
    print(
        f"{len(bugs)} functions: {repaired} repaired, {broken} broken by another seed, "
        f"{dropped} candidates dropped"
    )


if __name__ == "__main__":
    main()
