"""``python -m tests.fuzz --seconds 60``: odd inputs for every parser of what others write.

A parser passes if it answers or refuses by its own error, takes at most a second of processor time
an input, and does not grow. An input that fails is printed and ends the program with 1.
"""

import argparse
import random
import resource
import sys
import time

from tests.fuzz.mutations import mutate
from tests.fuzz.targets import TARGETS, Target

MOST_SECONDS, MOST_GROWTH = 1.0, 200 << 10  # of one input; KiB of a whole run


def fuzz(target: Target, seconds: float, seed: int) -> tuple[int, str, bytes]:
    """Try inputs for *seconds*: how many, what is wrong with the last (empty: nothing), and it."""
    rng, until, tried, content = random.Random(seed), time.monotonic() + seconds, 0, b""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while time.monotonic() < until:
        content, tried = mutate(rng, target.seeds), tried + 1
        begun = time.thread_time()
        try:
            target.call(content)
        except target.refuses:
            pass
        except Exception as error:
            return tried, f"{type(error).__name__}: {error!s:.300}", content
        if (took := time.thread_time() - begun) > MOST_SECONDS:
            return tried, f"took {took:.1f} s", content
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return tried, f"grew by {growth >> 10} MiB" if growth > MOST_GROWTH else "", content


def main() -> None:
    """Fuzz each target for its share of the time."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all parsers together")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--only", choices=TARGETS, help="fuzz one parser")
    options = parser.parse_args()
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    chosen = [options.only] if options.only else list(TARGETS)
    failed = 0
    for name in chosen:
        tried, problem, content = fuzz(TARGETS[name], options.seconds / len(chosen), seed)
        sys.stdout.write(f"{name}: {tried} inputs, {problem or 'all answered or refused'}\n")
        if problem:
            failed += 1
            sys.stdout.write(f"  {len(content)} bytes: {content[:2000]!r}\n")
    sys.stdout.write(f"seed {seed}: {failed} of {len(chosen)} parsers failed\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
