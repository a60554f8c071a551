"""Inputs for functions on dates, times and time zones."""

from __future__ import annotations

from random import Random

from agents.se_darwin.corpus.draws import Arguments, Generator

_MONTHS = ("Jan", "feb", "Mar", "DEC", "Foo", "7", "13")


def _year(rng: Random) -> int:
    return rng.choice((1, 4, 100, 400, 1900, 1999, 2000, 2004, 2023, 2024))


def _year_month(rng: Random) -> Arguments:
    return _year(rng), rng.randint(1, 12)


def _date(rng: Random) -> Arguments:
    return _year(rng), rng.randint(1, 12), rng.randint(1, 28)


def _clock(rng: Random) -> str:
    texts = [f"{rng.randint(0, 23):02d}", f"{rng.randint(0, 59):02d}", f"{rng.randint(0, 59):02d}"]
    joined = rng.choice((":", ":", "")).join(texts[: rng.randint(1, 3)])
    return joined + rng.choice(("", "", ".5", ".123456", ":", "x"))


def _zone(rng: Random) -> str | None:
    return rng.choice((None, "UTC", "-0100", "+0230", "0100", "GMT", "EST", "1:30"))


def _email_date(rng: Random) -> str:
    day = rng.choice(("", "Mon, ", "tue ", "Xyz,"))
    month = rng.choice(("Jan", "december", "foo", "Mar"))
    clock = rng.choice(("10:20", "10:20:30", "10.20.30", "1020", ""))
    zone = rng.choice(("", "GMT", "-0500", "+0130", "EST", "-0000"))
    return f"{day}{rng.randint(1, 31)} {month} {rng.choice((5, 70, 1999, 2024))} {clock} {zone}"


_PRIVATE: dict[str, Generator] = {
    "_is_leap": lambda rng: (_year(rng),),
    "_days_before_year": lambda rng: (_year(rng),),
    "_days_in_month": _year_month,
    "_days_before_month": _year_month,
    "_ymd2ord": _date,
    "_ord2ymd": lambda rng: (rng.choice((1, 365, 366, 1461, 146097, 730120, 738000, 146098)),),
    "_isoweek1monday": lambda rng: (rng.randint(1990, 2030),),
    "_isoweek_to_gregorian": lambda rng: (
        rng.choice((1999, 2004, 2015, 2020, 10000)),
        rng.choice((0, 1, 25, 52, 53, 54)),
        rng.randint(0, 8),
    ),
    "_divide_and_round": lambda rng: (rng.randint(-30, 30), rng.choice((-7, -4, 2, 4, 5, 10))),
    "_format_time": lambda rng: (
        rng.randint(0, 23),
        rng.randint(0, 59),
        rng.randint(0, 59),
        rng.choice((0, 1500, 999999)),
        rng.choice(("auto", "hours", "minutes", "seconds", "milliseconds", "x")),
    ),
    "_find_isoformat_datetime_separator": lambda rng: (
        rng.choice(("2024-01-02", "20240102", "2024-W05", "2024W051", "2024-W05-1", "2024W05"))
        + rng.choice(("", "T10", "T10:20", " 1", "5T10")),
    ),
    "_parse_hh_mm_ss_ff": lambda rng: (_clock(rng),),
    "_parse_isoformat_date": lambda rng: (
        rng.choice(("2024-01-02", "20240102", "2024-W05", "2024W051", "2024-W05-1", "2024W05")),
    ),
}

GENERATORS: dict[str, Generator] = {
    # Python keeps the pure functions in datetime.py up to 3.11, in _pydatetime.py from 3.12.
    **{f"datetime:{name}": generate for name, generate in _PRIVATE.items()},
    **{f"_pydatetime:{name}": generate for name, generate in _PRIVATE.items()},
    "calendar:leapdays": lambda rng: (_year(rng), _year(rng)),
    "calendar:weekday": _date,
    "calendar:monthrange": lambda rng: (_year(rng), rng.randint(0, 13)),
    "calendar:_monthlen": _year_month,
    "calendar:_prevmonth": _year_month,
    "calendar:_nextmonth": _year_month,
    "calendar:timegm": lambda rng: (
        (*_date(rng), rng.randint(0, 23), rng.randint(0, 59), rng.randint(0, 59)),
    ),
    "_strptime:_calc_julian_from_V": lambda rng: (
        rng.randint(1990, 2030),
        rng.randint(1, 53),
        rng.randint(1, 7),
    ),
    "_strptime:_calc_julian_from_U_or_W": lambda rng: (
        rng.randint(1990, 2030),
        rng.randint(0, 53),
        rng.randint(0, 6),
        rng.choice((True, False)),
    ),
    "http.cookiejar:_str2time": lambda rng: (
        str(rng.randint(0, 32)),
        rng.choice(_MONTHS),
        rng.choice(("99", "2024", "70", "10")),
        *(rng.choice((None, "7", "23")) for _ in range(3)),
        _zone(rng),
    ),
    "http.cookiejar:offset_from_tz_string": lambda rng: (_zone(rng) or "",),
    "http.cookiejar:iso2time": lambda rng: (
        rng.choice((" 1994-02-03 14:15:29", "1994-02-03", "19940203T141529Z", "x", "1994-13-01")),
    ),
    "http.cookiejar:http2time": lambda rng: (
        rng.choice(
            (
                "Wed, 09 Feb 1994 22:23:32 GMT",
                "09 Feb 1994 22:23:32",
                "Tuesday, 08-Feb-94 14:15:29 GMT",
                "08-Feb-94",
                "09 Feb 1994 22:23:32 -0100",
                "nothing",
            )
        ),
    ),
    "wsgiref.handlers:format_date_time": lambda rng: (rng.randint(0, 2_000_000_000),),
    "email._parseaddr:_parsedate_tz": lambda rng: (_email_date(rng),),
    "zoneinfo._zoneinfo:_parse_tz_delta": lambda rng: (
        rng.choice(("3", "+3", "-11:30", "24:59:59", "25", "-0:00:05", "167")),
    ),
    "zoneinfo._zoneinfo:_parse_transition_time": lambda rng: (
        rng.choice(("2", "+3:30", "-11:30", "24:59:59", "167", "168", "-0:00:05", "x")),
    ),
}
