"""Compare due times in local time with a reference that walks every minute of a zone by hand.

The reference knows neither our code nor APScheduler: for each stretch of constant offset it lists
the minutes of the local clock, so that those that occur twice or never are plain to see.

``python -m tests.genesis_fp16.domain.local_times --times 1000000`` prints what differs.
"""

import argparse
import random
import sys
import zoneinfo
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

from genesis_fp16.domain.schedule import next_due
from infrastructure.agent_contract import Schedule

FIRST, LAST = datetime(1970, 1, 3, tzinfo=UTC), datetime(2040, 12, 1, tzinfo=UTC)
DAYS, MINUTE, DAY = 12, 60, 86400
AT_ONCE = 100
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")  # 1970-01-01 was a Thursday
ZONES = sorted(zoneinfo.available_timezones() - {"localtime"})


def offset_at(zone: ZoneInfo, moment: int) -> int:
    offset = datetime.fromtimestamp(moment, zone).utcoffset()
    return int(offset.total_seconds())


def changes(zone: ZoneInfo, begin: int, end: int) -> list[int]:
    """Moments in (begin, end] at which the offset changes, found by looking at every hour."""
    found = []
    for hour in range(begin, end, 3600):
        low, high = hour, min(hour + 3600, end)
        if offset_at(zone, low) != (after := offset_at(zone, high)):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if offset_at(zone, middle) == after else (middle, high)
            found.append(high)
    return found


def clock_minutes(zone: ZoneInfo, begin: int, end: int) -> tuple[dict, dict]:
    """Local minute -> its moments in order, and skipped local minute -> the moment shifted."""
    shown, skipped = defaultdict(list), {}
    edges = [begin, *changes(zone, begin, end), end]
    for since, until in pairwise(edges):
        offset = offset_at(zone, since)
        for minute in range(-(-(since + offset) // MINUTE), -(-(until + offset) // MINUTE)):
            shown[minute].append(minute * MINUTE - offset)
        if until < end:
            next_offset = offset_at(zone, until)
            for minute in range(
                -(-(until + offset) // MINUTE), -(-(until + next_offset) // MINUTE)
            ):
                skipped[minute] = minute * MINUTE - offset
    return shown, skipped


def fires(cron: str, zone: ZoneInfo, begin: int, end: int, repeated: str, missing: str) -> list:
    minutes, hours, days, _, weekdays = (matcher(field) for field in cron.split())

    def matches(local: int) -> bool:
        day, minute = divmod(local, DAY // MINUTE)
        date = datetime.fromtimestamp(day * DAY, UTC)
        return (
            minutes(minute % 60)
            and hours(minute // 60)
            and days(date.day)
            and weekdays((day + 3) % 7)
        )

    shown, skipped = clock_minutes(zone, begin, end)
    due = set()
    for local, moments in shown.items():
        if matches(local):
            chosen = {"first": moments[:1], "second": moments[-1:], "both": moments}[repeated]
            due.update(chosen)
    if missing == "shift":
        due.update(moment for local, moment in skipped.items() if matches(local))
    return sorted(due)


def matcher(field: str):
    if field == "*":
        return lambda _value: True
    if field in WEEKDAYS:
        return lambda value: value == WEEKDAYS.index(field)
    if field.startswith("*/"):
        return lambda value: value % int(field[2:]) == 0
    numbers = {int(number) for number in field.split(",")}
    return lambda value: value in numbers


def random_cron(rng: random.Random) -> str:
    minute = rng.choice(["*", "*/7", "*/30", "0", "59", f"{rng.randrange(60)}", "0,15,45"])
    hour = rng.choice(["*", "*/2", "0", "1", "2", "3", "23", f"{rng.randrange(24)}", "1,2,3"])
    day = rng.choice(["*"] * 6 + [f"{rng.randint(1, 28)}"])
    weekday = rng.choice(["*"] * 5 + ["sun"]) if day == "*" else "*"
    return f"{minute} {hour} {day} * {weekday}"


def random_begin(rng: random.Random, zone: ZoneInfo) -> int:
    """A moment, mostly some days before a change of the zone's offset."""
    moment = rng.randrange(int(FIRST.timestamp()), int(LAST.timestamp()))
    if rng.random() < 0.2:
        return moment
    weeks = range(moment, min(moment + 400 * DAY, int(LAST.timestamp())), 7 * DAY)
    for week, following in pairwise(weeks):
        if offset_at(zone, week) != offset_at(zone, following):
            return changes(zone, week, following)[0] - 5 * DAY
    return moment


def differences(times: int, seed: int) -> Iterator[str]:
    """Compare *times* random times, `AT_ONCE` of them around one change; what differs."""
    rng = random.Random(seed)
    left, zones = times, []
    while left > 0:
        zones = zones or rng.sample(ZONES, len(ZONES))
        name = zones.pop()
        zone, cron = ZoneInfo(name), random_cron(rng)
        repeated, missing = rng.choice(["first", "second", "both"]), rng.choice(["skip", "shift"])
        begin = random_begin(rng, zone)
        expected = fires(cron, zone, begin - 2 * DAY, begin + DAYS * DAY, repeated, missing)
        schedule = Schedule(cron=cron, timezone=name, repeated_hour=repeated, missing_hour=missing)
        for _ in range(min(AT_ONCE, left)):
            left -= 1
            after = (
                begin + rng.randrange(10 * DAY)
                if rng.random() < 0.5
                else rng.gauss(begin + 5 * DAY, 2 * 3600)
            )
            position = bisect_right(expected, after)
            got = next_due(schedule, after)
            if position < len(expected):
                wrong = got != expected[position]
            else:  # the next one lies behind what the reference has walked
                wrong = got is None or got < begin + (DAYS - 2) * DAY
            if wrong:
                yield f"{schedule} {repeated} {missing} after {after}: {got}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = 0
    for difference in differences(options.times, options.seed):
        found += 1
        sys.stdout.write(f"{difference}\n")
    sys.stdout.write(f"{found} of {options.times} random times in {len(ZONES)} zones differ\n")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
