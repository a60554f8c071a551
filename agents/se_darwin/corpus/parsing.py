"""Inputs for functions that read formats: TOML, cookies, proxies, archives, file modes."""

from __future__ import annotations

from random import Random

from agents.se_darwin.corpus.draws import Arguments, Generator, integers, octets, several_of, text

_TOML = (
    'a."b c" = 1',
    "'it' . x= 2",
    '"q\\tz" # end',
    "[1, 2 , # no\n 3]",
    "bare-key.x = [ ]",
    '"\\u00e9\\"" = 0',
    "# only\n\n  k = 1",
    '"unended',
    "\\x",
)


def _toml(rng: Random) -> Arguments:
    return rng.choice(_TOML), rng.choice((0, 0, 0, 1, 3))


def _toml_text(rng: Random) -> Arguments:
    quoted = '"' + text(rng, "ab\\n ", 0, 5) + '"'
    return rng.choice((quoted, quoted, *_TOML[2::3])) + rng.choice(("", " = 1", '"', "\n")), 0


def _extra(rng: Random) -> Arguments:
    fields = [
        kind.to_bytes(2, "little") + len(data).to_bytes(2, "little") + data
        for kind, data in ((rng.randint(1, 3), octets(rng, 0, 3)) for _ in range(rng.randint(0, 3)))
    ]
    return b"".join(fields) + octets(rng, 0, 2), tuple(integers(rng, 1, 3, 1, 2))


GENERATORS: dict[str, Generator] = {
    "tomllib._parser:skip_chars": lambda rng: (
        text(rng, " \tab#", 0, 8),
        rng.randint(0, 4),
        rng.choice((" \t", "a", "# ")),
    ),
    "tomllib._parser:skip_comment": lambda rng: (text(rng, "#a \n", 0, 9), rng.randint(0, 4)),
    "tomllib._parser:skip_comments_and_array_ws": lambda rng: (
        text(rng, "#a \n", 0, 9),
        rng.randint(0, 3),
    ),
    "tomllib._parser:parse_key": _toml,
    "tomllib._parser:parse_key_part": _toml,
    "tomllib._parser:parse_one_line_basic_str": _toml_text,
    "tomllib._parser:parse_literal_str": lambda rng: (text(rng, "'ab \"", 1, 8), rng.randint(0, 2)),
    "tomllib._parser:parse_hex_char": lambda rng: (
        text(rng, "0012aFg", 2, 9),
        rng.randint(0, 3),
        rng.choice((2, 4)),
    ),
    "tomllib._parser:is_unicode_scalar_value": lambda rng: (
        rng.choice((-1, 0, 65, 55295, 55296, 57343, 57344, 1114111, 1114112)),
    ),
    "http.server:_url_collapse_path": lambda rng: (
        "/".join(
            rng.choice(("a", "..", ".", "", "cgi", "b?x=1")) for _ in range(rng.randint(0, 5))
        ),
    ),
    "http.cookiejar:time2isoz": lambda rng: (rng.randint(0, 2_000_000_000),),
    "http.cookiejar:time2netscape": lambda rng: (rng.randint(0, 2_000_000_000),),
    "urllib.request:parse_http_list": several_of('ab, "\\=', 0, 14),
    "urllib.request:parse_keqv_list": lambda rng: (
        [text(rng, 'ab"=', 1, 3) + "=" + text(rng, 'a"b', 0, 4) for _ in range(rng.randint(0, 3))],
    ),
    "urllib.request:_parse_proxy": lambda rng: (
        rng.choice(("", "http://", "ftp:", "//"))
        + rng.choice(("", "joe@", "joe:pw@"))
        + rng.choice(("proxy.example.com", "p:3128", "p/x@y", "")),
    ),
    "zipfile:_strip_extra": _extra,
    "stat:filemode": lambda rng: (
        rng.choice((0o100000, 0o040000, 0o120000, 0o010000, 0)) | rng.randint(0, 0o7777),
    ),
    "trace:_fullmodname": lambda rng: (
        "/".join(rng.choice(("a", "pkg", "b.c", "")) for _ in range(rng.randint(1, 4)))
        + rng.choice(("", ".py", ".txt")),
    ),
    "tokenize:_get_normal_name": lambda rng: (
        rng.choice(("utf-8", "UTF_8-sig", "latin-1", "iso_8859-1-unix", "ISO-8859-15", "cp1252")),
    ),
    "encodings:normalize_encoding": several_of("aB1-_. é", 0, 9),
    "pprint:_wrap_bytes_repr": lambda rng: (
        octets(rng, 0, 14),
        rng.randint(4, 20),
        rng.randint(0, 3),
    ),
    "shutil:_basename": lambda rng: (
        "/".join(rng.choice(("a", "bc", "")) for _ in range(rng.randint(0, 4))),
    ),
    "curses.ascii:unctrl": lambda rng: (
        rng.choice(
            (rng.randint(0, 31), rng.randint(32, 126), 127, rng.randint(128, 255), "\t", "a")
        ),
    ),
    "calendar:formatstring": lambda rng: (
        [text(rng, "abc", 0, 4) for _ in range(rng.randint(0, 4))],
        rng.randint(0, 8),
        rng.randint(0, 3),
    ),
    "statistics:covariance": lambda rng: (
        integers(rng, 0, 9, 3, 3),
        integers(rng, 0, 9, rng.choice((2, 3, 3, 3)), 3),
    ),
    "email.utils:formataddr": lambda rng: (
        (text(rng, 'ab ".,é', 0, 6), rng.choice(("a@b.c", "x@é.c", "y"))),
    ),
    "email.utils:collapse_rfc2231_value": lambda rng: (
        rng.choice((text(rng, 'ab"<>', 0, 5), ("utf-8", "en", "a%20b"), (None, "", "x"))),
    ),
    "dis:_unpack_opargs": lambda rng: (bytes(rng.choice((1, 9, 100, 144, 131)) for _ in range(8)),),
    "urllib.parse:urlunsplit": lambda rng: (
        (
            rng.choice(("", "http", "mailto", "file")),
            rng.choice(("", "h:80")),
            rng.choice(("", "a/b", "/a", "//a")),
            rng.choice(("", "q=1")),
            rng.choice(("", "f")),
        ),
    ),
}
