"""Inputs for functions on numbers: colours, decimals, rounding, bits."""

from __future__ import annotations

from random import Random

from agents.se_darwin.corpus.draws import Arguments, Generator, fraction, integers, text


def _three_fractions(rng: Random) -> Arguments:
    return fraction(rng), fraction(rng), fraction(rng)


def _spec(rng: Random) -> dict[str, object]:
    return {
        "minimumwidth": rng.randint(0, 9),
        "fill": rng.choice("* 0"),
        "align": rng.choice("<>=^"),
        "zeropad": False,
        "thousands_sep": ",",
        "decimal_point": ".",
        "grouping": [3, 0],
        "sign": "-",
        "alt": False,
        "type": "f",
    }


GENERATORS: dict[str, Generator] = {
    "colorsys:rgb_to_hsv": _three_fractions,
    "colorsys:hsv_to_rgb": _three_fractions,
    "colorsys:rgb_to_hls": _three_fractions,
    "colorsys:hls_to_rgb": _three_fractions,
    "colorsys:rgb_to_yiq": _three_fractions,
    "colorsys:yiq_to_rgb": _three_fractions,
    "colorsys:_v": lambda rng: (fraction(rng), fraction(rng), fraction(rng) * 2 - 0.5),
    "_pydecimal:_decimal_lshift_exact": lambda rng: (
        rng.choice((0, 1200, -50, 7, 34000)),
        rng.randint(-4, 4),
    ),
    "_pydecimal:_sqrt_nearest": lambda rng: (rng.randint(0, 9999), rng.randint(1, 99)),
    "_pydecimal:_rshift_nearest": lambda rng: (rng.randint(0, 99), rng.randint(0, 5)),
    "_pydecimal:_div_nearest": lambda rng: (rng.randint(-99, 99), rng.randint(1, 12)),
    "_pydecimal:_ilog": lambda rng: (rng.randint(1, 4000), rng.choice((100, 1000))),
    "_pydecimal:_iexp": lambda rng: (rng.randint(0, 2000), rng.choice((100, 1000))),
    "_pydecimal:_dlog10": lambda rng: (
        rng.randint(1, 999),
        rng.randint(-3, 3),
        rng.randint(-1, 4),
    ),
    "_pydecimal:_dlog": lambda rng: (rng.randint(1, 999), rng.randint(-3, 3), rng.randint(-1, 4)),
    "_pydecimal:_log10_lb": lambda rng: (rng.randint(-1, 1200),),
    "_pydecimal:_format_align": lambda rng: (
        rng.choice(("", "-", "+")),
        text(rng, "0123456789.", 1, 5),
        _spec(rng),
    ),
    "_pydecimal:_insert_thousands_sep": lambda rng: (
        text(rng, "0123456789", 1, 9),
        _spec(rng),
        rng.choice((0, 1, 6)),
    ),
    "fractions:_round_to_exponent": lambda rng: (
        rng.randint(-999, 999),
        rng.randint(1, 99),
        rng.randint(-3, 3),
    ),
    "fractions:_round_to_figures": lambda rng: (
        rng.randint(-999, 999),
        rng.randint(1, 99),
        rng.randint(1, 4),
    ),
    "statistics:_integer_sqrt_of_frac_rto": lambda rng: (rng.randint(0, 999), rng.randint(1, 40)),
    "enum:_iter_bits_lsb": lambda rng: (rng.randint(0, 99),),
    "enum:_high_bit": lambda rng: (rng.randint(0, 300),),
    "enum:bin": lambda rng: (rng.randint(-40, 40), rng.choice((None, 4, 8, 10))),
    "ipaddress:_count_righthand_zero_bits": lambda rng: (
        rng.choice((0, 1, 4, 6, 96, 128)),
        rng.randint(0, 8),
    ),
    "calendar:isleap": lambda rng: (rng.choice((1900, 2000, 2023, 2024, 2100)),),
    "imaplib:Int2AP": lambda rng: (rng.choice((0, 1, 15, 16, 300, -17, 70000)),),
    "pickle:encode_long": lambda rng: (rng.choice((0, 255, 256, -128, -129, 32767, 2**40, -7)),),
    "platform:_norm_version": lambda rng: (
        text(rng, "0123.", 1, 8),
        rng.choice(("", "7", "b2")),
    ),
    "platform:_comparable_version": lambda rng: (
        rng.choice(("1.2.3", "3.0rc1", "2.7-alpha", "10.1b2", "1.dev3", "2.pl1", "4")),
    ),
    "plistlib:_count_to_size": lambda rng: (rng.choice((0, 255, 256, 65535, 65536, 2**33)),),
    "pstats:add_func_stats": lambda rng: (
        (*integers(rng, 0, 9, 4, 4), {"a": (1, 2, 3, 4)}),
        (*integers(rng, 0, 9, 4, 4), {"a": (1, 1, 1, 1), "b": (0, 1, 2, 3)}),
    ),
    "ctypes._aix:_last_version": lambda rng: (
        [f"libx.so.{n}.{n % 3}" for n in integers(rng, 0, 9, 1, 4)],
        rng.choice(("so.", ".")),
    ),
}
