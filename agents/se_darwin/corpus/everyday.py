"""Small functions of everyday programs, and their inputs.

The standard library has few functions like those that people write every day: loops over rows and
texts with a counter, an index or a running value. These were written for this corpus.
"""

# ruff: noqa: C4, PLR, RET, SIM - loops stay written out, as in the programs that people repair

from __future__ import annotations

from random import Random

from agents.se_darwin.corpus.draws import Arguments, Generator, ascending, integers, text


def share_bill(total: int, people: int) -> list[int]:
    """Split an amount of cents as evenly as possible, the first pay more."""
    base, rest = divmod(total, people)
    shares = []
    for number in range(people):
        extra = 1 if number < rest else 0
        shares.append(base + extra)
    return shares


def longest_run(days: list[int], limit: int) -> int:
    """Length of the longest run of values that reach a limit."""
    best = 0
    current = 0
    for value in days:
        if value >= limit:
            current += 1
            best = max(best, current)
        else:
            current = 0
    return best


def shipping_cost(weight: int, express: bool, distance: int) -> int:
    """Price of a parcel."""
    if weight <= 0:
        raise ValueError("weight")
    cost = 5
    if weight > 10:
        cost += (weight - 10) * 2
    if distance >= 100 and not express:
        cost += distance // 100
    elif express:
        cost = cost * 2 + 3
    return cost


def table_row(cells: list[str], widths: list[int]) -> str:
    """One line of a table, cells cut or padded to their widths."""
    parts = []
    for index in range(len(widths)):
        cell = cells[index] if index < len(cells) else ""
        width = widths[index]
        if len(cell) > width:
            cell = cell[: width - 1] + "~"
        parts.append(cell.ljust(width))
    return "|".join(parts)


def clock_angle(hour: int, minute: int) -> float:
    """Smaller angle between the hands of a clock."""
    hour_hand = (hour % 12) * 30 + minute * 0.5
    minute_hand = minute * 6
    angle = abs(hour_hand - minute_hand)
    return min(angle, 360 - angle)


def group_sizes(rows: list[tuple[str, int]]) -> dict[str, int]:
    """Sum of the positive amounts by name."""
    sums: dict[str, int] = {}
    for name, amount in rows:
        if amount <= 0:
            continue
        if name in sums:
            sums[name] += amount
        else:
            sums[name] = amount
    return sums


def peaks(heights: list[int]) -> list[int]:
    """Positions of the values above both neighbours."""
    found = []
    for i in range(1, len(heights) - 1):
        if heights[i] > heights[i - 1] and heights[i] > heights[i + 1]:
            found.append(i)
    return found


def moving_max(values: list[int], size: int) -> list[int]:
    """Largest value of each window."""
    result = []
    start = 0
    while start + size <= len(values):
        largest = values[start]
        for j in range(start + 1, start + size):
            largest = max(largest, values[j])
        result.append(largest)
        start += 1
    return result


def parse_duration(word: str) -> int:
    """Seconds of a duration like 1h30m5s."""
    units = {"h": 3600, "m": 60, "s": 1}
    seconds = 0
    number = ""
    for char in word:
        if char.isdigit():
            number += char
        elif char in units and number:
            seconds += int(number) * units[char]
            number = ""
        else:
            raise ValueError(word)
    if number:
        seconds += int(number)
    return seconds


def compress_ranges(numbers: list[int]) -> str:
    """Text of sorted numbers with runs as ranges."""
    pieces = []
    i = 0
    while i < len(numbers):
        j = i
        while j + 1 < len(numbers) and numbers[j + 1] == numbers[j] + 1:
            j += 1
        if j > i:
            pieces.append(str(numbers[i]) + "-" + str(numbers[j]))
        else:
            pieces.append(str(numbers[i]))
        i = j + 1
    return ",".join(pieces)


def rotate(items: list[int], steps: int) -> list[int]:
    """Rotate to the right."""
    if not items:
        return []
    steps = steps % len(items)
    return items[-steps:] + items[:-steps] if steps else list(items)


def ranks(scores: list[int]) -> list[int]:
    """Rank of each score; equal scores share the better rank."""
    result = []
    for score in scores:
        better = 0
        for other in scores:
            if other > score:
                better += 1
        result.append(better + 1)
    return result


def water_plants(amounts: list[int], can: int) -> int:
    """Steps to water all plants with a can that is refilled at the start."""
    steps, left = 0, can
    for place, need in enumerate(amounts):
        if left < need:
            steps += 2 * place
            left = can
        steps += 1
        left -= need
    return steps


def title_case(sentence: str) -> str:
    """Capital letters, but not for small words inside."""
    small = ("a", "of", "the", "and")
    words = sentence.split()
    result = []
    for position, word in enumerate(words):
        lower = word.lower()
        if position > 0 and lower in small:
            result.append(lower)
        else:
            result.append(lower[0].upper() + lower[1:])
    return " ".join(result)


def overlap(first: tuple[int, int], second: tuple[int, int]) -> int:
    """Length of the overlap of two intervals."""
    start = max(first[0], second[0])
    end = min(first[1], second[1])
    if start >= end:
        return 0
    return end - start


def free_slots(busy: list[tuple[int, int]], opening: int, closing: int) -> list[tuple[int, int]]:
    """Gaps between meetings."""
    slots = []
    previous = opening
    for start, end in sorted(busy):
        if start > previous:
            slots.append((previous, start))
        previous = max(previous, end)
    if previous < closing:
        slots.append((previous, closing))
    return slots


def border_sum(grid: list[list[int]]) -> int:
    """Sum of the outermost cells."""
    total = 0
    last = len(grid) - 1
    for y, row in enumerate(grid):
        for x, cell in enumerate(row):
            if y in (0, last) or x == 0 or x == len(row) - 1:
                total += cell
    return total


def neighbours(grid: list[list[int]], y: int, x: int) -> int:
    """Number of set cells around one."""
    count = 0
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            if dy == 0 and dx == 0:
                continue
            row, column = y + dy, x + dx
            if 0 <= row < len(grid) and 0 <= column < len(grid[0]):
                count += grid[row][column]
    return count


def spiral(grid: list[list[int]]) -> list[int]:
    """Outer ring of a grid, clockwise."""
    if not grid:
        return []
    ring = list(grid[0])
    for row in grid[1:-1]:
        ring.append(row[-1])
    if len(grid) > 1:
        ring.extend(reversed(grid[-1]))
    for row in reversed(grid[1:-1]):
        if len(row) > 1:
            ring.append(row[0])
    return ring


def mask_card(number: str) -> str:
    """All but the last four digits hidden, in groups of four."""
    digits = number.replace(" ", "")
    hidden = "*" * (len(digits) - 4) + digits[-4:]
    groups = []
    for start in range(0, len(hidden), 4):
        groups.append(hidden[start : start + 4])
    return " ".join(groups)


def best_profit(prices: list[int]) -> int:
    """Best gain of one purchase and one later sale, less a fee."""
    fee = 1
    lowest = prices[0]
    profit = 0
    for price in prices[1:]:
        profit = max(profit, price - lowest - fee)
        lowest = min(lowest, price)
    return profit


def stock_after(stock: dict[str, int], orders: list[tuple[str, int]]) -> dict[str, int]:
    """Stock after the orders that can be filled."""
    left = dict(stock)
    for item, amount in orders:
        available = left.get(item, 0)
        if amount <= available:
            left[item] = available - amount
            if left[item] == 0:
                del left[item]
    return left


def vote_winner(votes: list[str]) -> str:
    """Name with most votes; the first in the alphabet wins a tie."""
    counts: dict[str, int] = {}
    for vote in votes:
        counts[vote] = counts.get(vote, 0) + 1
    winner = ""
    for name in sorted(counts):
        if winner == "" or counts[name] > counts[winner]:
            winner = name
    return winner


def collapse_blanks(line: str) -> str:
    """Inner blanks as one, outer ones lost."""
    result = ""
    for char in line.strip():
        if char != " " or result[-1] != " ":
            result += char
    return result


def weighted_mean(values: list[int], weights: list[int]) -> float | None:
    """Weighted mean of the values with a positive weight."""
    total = 0
    weight_sum = 0
    for value, weight in zip(values, weights, strict=False):
        if weight > 0:
            total += value * weight
            weight_sum += weight
    if weight_sum == 0:
        return None
    return total / weight_sum


def leading_zeros(number: int, width: int) -> str:
    """Binary digits of a number, filled to a width."""
    digits = ""
    left = abs(number)
    while left:
        digits = str(left % 2) + digits
        left //= 2
    while len(digits) < width:
        digits = "0" + digits
    return "-" + digits if number < 0 else digits


def depth(tree: object) -> int:
    """Depth of nested lists."""
    if not isinstance(tree, list):
        return 0
    deepest = 0
    for child in tree:
        deepest = max(deepest, depth(child))
    return deepest + 1


def count_paths(rows: int, columns: int, blocked: list[int]) -> int:
    """Ways through a grid, down and right, around blocked columns of the middle row."""
    ways = [1] * columns
    for row in range(1, rows):
        for column in range(columns):
            if row == rows // 2 and column in blocked:
                ways[column] = 0
            elif column > 0:
                ways[column] += ways[column - 1]
    return ways[-1]


def coins(amount: int, values: list[int]) -> list[int]:
    """Greedy change, the largest coin first."""
    used = []
    for coin in sorted(values, reverse=True):
        while amount >= coin:
            used.append(coin)
            amount -= coin
    return used


def merge_sorted(left: list[int], right: list[int]) -> list[int]:
    """Merge without repeats."""
    merged: list[int] = []
    i = j = 0
    while i < len(left) or j < len(right):
        if j >= len(right) or (i < len(left) and left[i] <= right[j]):
            value = left[i]
            i += 1
        else:
            value = right[j]
            j += 1
        if not merged or merged[-1] != value:
            merged.append(value)
    return merged


def pair_with_sum(values: list[int], goal: int) -> tuple[int, int] | None:
    """Positions of the first two values that add up."""
    seen: dict[int, int] = {}
    for index, value in enumerate(values):
        missing = goal - value
        if missing in seen:
            return seen[missing], index
        seen[value] = index
    return None


def chunk(items: list[int], size: int) -> list[list[int]]:
    """Pieces of a size; a last short one joins the one before."""
    pieces = []
    for start in range(0, len(items), size):
        pieces.append(items[start : start + size])
    if len(pieces) > 1 and len(pieces[-1]) < size:
        last = pieces.pop()
        pieces[-1] = pieces[-1] + last
    return pieces


def next_weekday(day: int, month_length: int, weekday: int, wanted: int) -> tuple[int, int]:
    """Day of the next wanted weekday, and whether the month has changed."""
    ahead = (wanted - weekday) % 7
    if ahead == 0:
        ahead = 7
    later = day + ahead
    if later > month_length:
        return later - month_length, 1
    return later, 0


def grade(points: int, most: int) -> str:
    """Grade of a result."""
    percent = points * 100 // most
    if percent >= 90:
        return "A"
    if percent >= 75:
        return "B"
    if percent >= 50:
        return "C"
    return "F"


def interest(balance: int, rate: int, years: int) -> list[int]:
    """Balance at the end of each year, with a bonus every third."""
    history = []
    for year in range(1, years + 1):
        balance += balance * rate // 100
        if year % 3 == 0:
            balance += 10
        history.append(balance)
    return history


def common_start(names: list[str]) -> str:
    """What all names begin with, up to the last dash."""
    if not names:
        return ""
    start = names[0]
    for name in names[1:]:
        while not name.startswith(start):
            start = start[:-1]
    cut = start.rfind("-")
    return start[: cut + 1] if cut >= 0 else ""


def change_lines(old: list[str], new: list[str]) -> list[str]:
    """Lines that went and came."""
    changes = []
    for line in old:
        if line not in new:
            changes.append("-" + line)
    for line in new:
        if line not in old:
            changes.append("+" + line)
    return changes


def steps_to_one(number: int) -> int:
    """Halve even numbers, else subtract one."""
    steps = 0
    while number > 1:
        if number % 2 == 0:
            number //= 2
        else:
            number -= 1
        steps += 1
    return steps


def read_pairs(line: str) -> dict[str, str]:
    """Fields like a=1;b=2; a field without a value is set."""
    fields = {}
    for part in line.split(";"):
        if not part:
            continue
        name, equals, value = part.partition("=")
        fields[name.strip()] = value.strip() if equals else "yes"
    return fields


def swap_pairs(items: list[int]) -> list[int]:
    """Exchange neighbours in place."""
    for i in range(0, len(items) - 1, 2):
        items[i], items[i + 1] = items[i + 1], items[i]
    return items


def climb(levels: list[int], strength: int) -> int:
    """Position at which the strength is used up."""
    position = 0
    while position + 1 < len(levels):
        gain = levels[position + 1] - levels[position]
        if gain > 0:
            strength -= gain
        if strength < 0:
            break
        position += 1
    return position


def _grid(rng: Random) -> list[list[int]]:
    width = rng.randint(1, 4)
    return [integers(rng, 0, 5, width, width) for _ in range(rng.randint(1, 4))]


def _point(rng: Random) -> Arguments:
    grid = _grid(rng)
    return grid, rng.randrange(len(grid)), rng.randrange(len(grid[0]))


def _interval(rng: Random) -> tuple[int, int]:
    start = rng.randint(0, 12)
    return start, start + rng.randint(0, 6)


def _nested(rng: Random, left: int = 3) -> object:
    if left == 0 or rng.random() < 0.3:
        return rng.randint(0, 9)
    return [_nested(rng, left - 1) for _ in range(rng.randint(0, 3))]


def _lines(rng: Random) -> list[str]:
    return [rng.choice("abcd") for _ in range(rng.randint(0, 5))]


_DRAWS: dict[str, Generator] = {
    "share_bill": lambda rng: (rng.randint(0, 60), rng.randint(1, 7)),
    "longest_run": lambda rng: (integers(rng, 0, 9), rng.randint(2, 7)),
    "shipping_cost": lambda rng: (rng.randint(-1, 20), rng.random() < 0.4, rng.randint(0, 400)),
    "table_row": lambda rng: (
        [text(rng, "abc", 0, 6) for _ in range(rng.randint(0, 3))],
        integers(rng, 1, 6, 1, 3),
    ),
    "clock_angle": lambda rng: (rng.randint(0, 23), rng.randint(0, 59)),
    "group_sizes": lambda rng: (
        [(rng.choice("abc"), rng.randint(-2, 9)) for _ in range(rng.randint(0, 6))],
    ),
    "peaks": lambda rng: (integers(rng, 0, 6),),
    "moving_max": lambda rng: (integers(rng), rng.randint(1, 4)),
    "parse_duration": lambda rng: (text(rng, "12hms", 0, 6),),
    "compress_ranges": lambda rng: (sorted(set(integers(rng, 0, 12))),),
    "rotate": lambda rng: (integers(rng, 0, 9, 0, 6), rng.randint(-3, 9)),
    "ranks": lambda rng: (integers(rng, 0, 6, 0, 6),),
    "water_plants": lambda rng: (integers(rng, 0, 5, 0, 7), rng.randint(5, 9)),
    "title_case": lambda rng: (
        " ".join(rng.choice(("the", "Of", "cat", "A", "sTAR")) for _ in range(rng.randint(0, 5))),
    ),
    "overlap": lambda rng: (_interval(rng), _interval(rng)),
    "free_slots": lambda rng: ([_interval(rng) for _ in range(rng.randint(0, 3))], 2, 15),
    "border_sum": lambda rng: (_grid(rng),),
    "neighbours": _point,
    "spiral": lambda rng: (_grid(rng),),
    "mask_card": lambda rng: (text(rng, "0123 ", 4, 16),),
    "best_profit": lambda rng: (integers(rng, 1, 12, 1, 8),),
    "stock_after": lambda rng: (
        {"a": rng.randint(0, 5), "b": rng.randint(0, 5)},
        [(rng.choice("abc"), rng.randint(0, 4)) for _ in range(rng.randint(0, 5))],
    ),
    "vote_winner": lambda rng: (_lines(rng),),
    "collapse_blanks": lambda rng: (text(rng, "a b ", 0, 9),),
    "weighted_mean": lambda rng: (integers(rng, 0, 9, 0, 4), integers(rng, -1, 3, 0, 4)),
    "leading_zeros": lambda rng: (rng.randint(-9, 40), rng.randint(0, 7)),
    "depth": lambda rng: (_nested(rng),),
    "count_paths": lambda rng: (rng.randint(1, 5), rng.randint(1, 4), integers(rng, 0, 3, 0, 2)),
    "coins": lambda rng: (rng.randint(0, 40), [1, *rng.sample((2, 5, 10, 20), 2)]),
    "merge_sorted": lambda rng: (ascending(rng, 0, 5), ascending(rng, 0, 5)),
    "pair_with_sum": lambda rng: (integers(rng, 0, 9, 0, 6), rng.randint(0, 15)),
    "chunk": lambda rng: (integers(rng), rng.randint(1, 4)),
    "next_weekday": lambda rng: (
        rng.randint(1, 28),
        rng.choice((28, 30, 31)),
        rng.randint(0, 6),
        rng.randint(0, 6),
    ),
    "grade": lambda rng: (rng.randint(0, 20), 20),
    "interest": lambda rng: (rng.randint(0, 500), rng.randint(1, 9), rng.randint(0, 6)),
    "common_start": lambda rng: (
        ["ab-" + text(rng, "ab-", 0, 3) for _ in range(rng.randint(0, 3))],
    ),
    "change_lines": lambda rng: (_lines(rng), _lines(rng)),
    "steps_to_one": lambda rng: (rng.randint(0, 60),),
    "read_pairs": lambda rng: (text(rng, "ab=; ", 0, 10),),
    "swap_pairs": lambda rng: (integers(rng, 0, 9, 0, 7),),
    "climb": lambda rng: (integers(rng, 0, 6, 1, 8), rng.randint(0, 8)),
}

GENERATORS: dict[str, Generator] = {f"everyday:{name}": draw for name, draw in _DRAWS.items()}
