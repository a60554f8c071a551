"""Bugs written by hand: textbook functions with typical human mistakes.

One of the agent's edits repairs some of them, two repair others, and none the rest; the list was
not selected for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from agents.se_darwin.corpus.draws import Arguments, Generator, ascending, integers, text


@dataclass(frozen=True, kw_only=True, slots=True)
class HandwrittenBug:
    """Attributes:
    function: Name of the function.
    fault: Description of the mistake.
    right: Correct source.
    wrong: Source with the mistake.
    generate: Draws arguments.
    """

    function: str
    fault: str
    right: str
    wrong: str
    generate: Generator


def _bug(
    fault: str, generate: Generator, right: str, *replacements: tuple[str, str]
) -> HandwrittenBug:
    wrong = right
    for old, new in replacements:
        if wrong.count(old) != 1:
            raise ValueError(f"{old!r} must occur in the source exactly once, got:\n{wrong}")
        wrong = wrong.replace(old, new)
    function = right.partition("def ")[2].partition("(")[0]
    return HandwrittenBug(
        function=function, fault=fault, right=right, wrong=wrong, generate=generate
    )


def _sorted_and_key(rng: Random) -> Arguments:
    return ascending(rng), rng.randint(0, 12)


def _two_numbers(rng: Random) -> Arguments:
    return rng.randint(1, 60), rng.randint(1, 60)


def _two_words(rng: Random) -> Arguments:
    return text(rng, "abc", 0, 6), text(rng, "abc", 0, 6)


def _intervals(rng: Random) -> Arguments:
    starts = integers(rng, 0, 20, 0, 6)
    return ([[start, start + rng.randint(0, 5)] for start in starts],)


def _matrix(rng: Random) -> Arguments:
    width = rng.randint(1, 4)
    return ([integers(rng, 0, 9, width, width) for _ in range(rng.randint(1, 4))],)


HANDWRITTEN = (
    _bug(
        "the last element is never looked at",
        _sorted_and_key,
        """
def find_sorted(items, key):
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if items[middle] == key:
            return middle
        if items[middle] < key:
            low = middle + 1
        else:
            high = middle
    return -1
""",
        ("len(items)", "len(items) - 1"),
    ),
    _bug(
        "the arguments of the recursion are the wrong way round",
        _two_numbers,
        """
def greatest_divisor(a, b):
    while b:
        a, b = b, a % b
    return a
""",
        ("a % b", "b % a if a else 0"),
    ),
    _bug(
        "equal runs at the end are forgotten",
        lambda rng: (text(rng, "aab", 0, 10),),
        """
def run_lengths(word):
    runs = []
    count = 0
    previous = None
    for letter in word:
        if letter == previous:
            count += 1
        else:
            if previous is not None:
                runs.append((previous, count))
            previous = letter
            count = 1
    if previous is not None:
        runs.append((previous, count))
    return runs
""",
        (
            "    if previous is not None:\n        runs.append((previous, count))\n    return",
            "    return",
        ),
    ),
    _bug(
        "the smaller numeral before a larger one is added",
        lambda rng: (text(rng, "IVXLC", 1, 7),),
        """
def from_roman(numeral):
    values = {'I': 1, 'V': 5, 'X': 10, 'L': 50, 'C': 100}
    total = 0
    for index in range(len(numeral)):
        value = values[numeral[index]]
        if index + 1 < len(numeral) and value < values[numeral[index + 1]]:
            total -= value
        else:
            total += value
    return total
""",
        ("total -= value", "total += value"),
    ),
    _bug(
        "touching intervals are not merged",
        _intervals,
        """
def merge_intervals(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged
""",
        ("start <= merged[-1][1]", "start < merged[-1][1]"),
    ),
    _bug(
        "the end of the merged interval is overwritten",
        _intervals,
        """
def join_intervals(intervals):
    joined = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return joined
""",
        ("max(joined[-1][1], end)", "end"),
    ),
    _bug(
        "rows and columns are confused",
        _matrix,
        """
def transpose(rows):
    result = []
    for column in range(len(rows[0])):
        line = []
        for row in range(len(rows)):
            line.append(rows[row][column])
        result.append(line)
    return result
""",
        ("range(len(rows[0]))", "range(len(rows))"),
    ),
    _bug(
        "one is called prime",
        lambda rng: (rng.choice((1, rng.randint(-3, 60))),),
        """
def is_prime(number):
    if number < 2:
        return False
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return True
""",
        ("number < 2", "number < 1"),
    ),
    _bug(
        "squares are called prime",
        lambda rng: (rng.choice((9, 25, 49, rng.randint(2, 130))),),
        """
def has_no_divisor(number):
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return True
""",
        ("divisor * divisor <= number", "divisor * divisor < number"),
    ),
    _bug(
        "the cost of a replacement is counted twice",
        _two_words,
        """
def edit_distance(first, second):
    previous = list(range(len(second) + 1))
    for row, letter in enumerate(first, 1):
        current = [row]
        for column, other in enumerate(second, 1):
            change = previous[column - 1] + (letter != other)
            current.append(min(change, previous[column] + 1, current[column - 1] + 1))
        previous = current
    return previous[-1]
""",
        (
            "previous[column - 1] + (letter != other)",
            "previous[column - 1] + 2 * (letter != other)",
        ),
    ),
    _bug(
        "zero has no digits",
        lambda rng: (rng.choice((0, rng.randint(0, 300))), rng.randint(2, 10)),
        """
def to_base(number, base):
    digits = ''
    while number > 0:
        digits = str(number % base) + digits
        number //= base
    return digits or '0'
""",
        ("digits or '0'", "digits"),
    ),
    _bug(
        "digits come out in reverse",
        lambda rng: (rng.randint(1, 300), rng.randint(2, 10)),
        """
def in_base(number, base):
    digits = ''
    while number > 0:
        digits = str(number % base) + digits
        number //= base
    return digits
""",
        ("str(number % base) + digits", "digits + str(number % base)"),
    ),
    _bug(
        "a closing bracket before any opening one counts",
        lambda rng: (text(rng, "(())a", 0, 9),),
        """
def unclosed(word):
    depth = 0
    for letter in word:
        if letter == '(':
            depth += 1
        elif letter == ')' and depth > 0:
            depth -= 1
    return depth
""",
        ("letter == ')' and depth > 0", "letter == ')'"),
    ),
    _bug(
        "the window starts one late",
        lambda rng: (integers(rng, 0, 9, 1, 8), rng.randint(1, 4)),
        """
def moving_sums(numbers, width):
    sums = []
    for start in range(len(numbers) - width + 1):
        sums.append(sum(numbers[start:start + width]))
    return sums
""",
        ("len(numbers) - width + 1", "len(numbers) - width"),
    ),
    _bug(
        "the check digit is weighted from the wrong end",
        lambda rng: (text(rng, "0123456789", 2, 9),),
        """
def luhn(digits):
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit)
        if place % 2 == 1:
            value *= 2
            if value > 9:
                value -= 9
        total += value
    return total % 10
""",
        ("enumerate(reversed(digits))", "enumerate(digits)"),
    ),
    _bug(
        "the largest is looked for from zero",
        lambda rng: (integers(rng, -9, 5, 1, 6),),
        """
def largest_sum(numbers):
    best = numbers[0]
    running = 0
    for number in numbers:
        running = max(running + number, number)
        best = max(best, running)
    return best
""",
        ("best = numbers[0]", "best = 0"),
    ),
    _bug(
        "repeats that are not neighbours are dropped too late",
        lambda rng: (integers(rng, 0, 4, 0, 8),),
        """
def unique(items):
    seen = []
    for item in items:
        if item not in seen:
            seen.append(item)
    return seen
""",
        ("item not in seen", "item not in seen[-1:]"),
    ),
    _bug(
        "capital letters are shifted like small ones",
        lambda rng: (text(rng, "abzAZ .", 0, 8), rng.randint(0, 30)),
        """
def caesar(word, shift):
    result = ''
    for letter in word:
        if 'a' <= letter <= 'z':
            result += chr((ord(letter) - ord('a') + shift) % 26 + ord('a'))
        elif 'A' <= letter <= 'Z':
            result += chr((ord(letter) - ord('A') + shift) % 26 + ord('A'))
        else:
            result += letter
    return result
""",
        ("(ord(letter) - ord('A') + shift)", "(ord(letter) - ord('a') + shift)"),
    ),
)
