"""Inputs for parsers and formatters of headers, URLs, cookies, options and replies."""

from __future__ import annotations

from random import Random

from agents.se_darwin.corpus.draws import Generator, integers, several_of, text


def _url(rng: Random) -> str:
    scheme = rng.choice(("http://", "", "ftp://", "mailto:", "//"))
    host = rng.choice(("h", "u@h:80", "u:p@h", "h:", "h:x", ""))
    path = rng.choice(("", "/", "/a/../b", "a/b;c", "./x", "../.."))
    return scheme + host + path + rng.choice(("", "?q=1", "#f", "?a#b"))


def _host(rng: Random) -> str:
    labels = [rng.choice(("www", "a", "local", "Acme", "1", "")) for _ in range(rng.randint(1, 4))]
    return rng.choice(("", "", ".")) + ".".join(labels)


def _parameters(rng: Random) -> str:
    parts = [
        rng.choice(("text/html", "a=1", 'b="x;y"', " C = z ", "d", 'e="q\\"r"')) for _ in range(4)
    ]
    return rng.choice((";", "; ")).join(parts[: rng.randint(0, 4)])


def _options(rng: Random) -> list[str]:
    return [
        rng.choice(
            ("-a", "-b", "-bx", "-ab", "--alpha", "--beta=2", "--al", "--", "x", "--be", "-c")
        )
        for _ in range(rng.randint(0, 5))
    ]


GENERATORS: dict[str, Generator] = {
    "urllib.parse:urljoin": lambda rng: (_url(rng), _url(rng)),
    "urllib.parse:urldefrag": lambda rng: (_url(rng),),
    "urllib.parse:unwrap": lambda rng: (
        rng.choice(("<{}>", "<URL:{}>", " {} ")).format(_url(rng)),
    ),
    "urllib.parse:_splitnetloc": lambda rng: (_url(rng), rng.choice((0, 0, 2, 7))),
    "urllib.parse:_splitport": lambda rng: (_host(rng) + rng.choice(("", ":80", ":", ":x")),),
    "urllib.parse:_splitnport": lambda rng: (
        _host(rng) + rng.choice(("", ":80", ":", ":x")),
        rng.choice((-1, 21)),
    ),
    "urllib.parse:_splituser": several_of("ab@:", 0, 8),
    "urllib.parse:_splitpasswd": several_of("ab@:", 0, 8),
    "urllib.parse:_splitquery": several_of("ab?#", 0, 8),
    "urllib.parse:_splittag": several_of("ab?#", 0, 8),
    "urllib.parse:_splitattr": several_of("ab;=", 0, 8),
    "urllib.parse:_splitvalue": several_of("ab=", 0, 8),
    "http.cookies:_quote": several_of('ab "\\;,é', 0, 8),
    "http.cookies:_unquote": lambda rng: (
        '"' + text(rng, 'a\\"0123', 0, 9) + rng.choice(('"', "")),
    ),
    "http.cookiejar:is_HDN": lambda rng: (rng.choice((_host(rng), "1.2.3.4", "")),),
    "http.cookiejar:domain_match": lambda rng: (_host(rng), _host(rng)),
    "http.cookiejar:user_domain_match": lambda rng: (_host(rng), _host(rng)),
    "http.cookiejar:reach": lambda rng: (_host(rng),),
    "http.cookiejar:escape_path": several_of("/a%4é ", 0, 8),
    "http.cookiejar:join_header_words": lambda rng: (
        [
            [(text(rng, "ab", 1, 3), rng.choice((None, "x", 'y "z"'))) for _ in range(2)]
            for _ in range(rng.randint(0, 3))
        ],
    ),
    "http.cookiejar:split_header_words": lambda rng: ([_parameters(rng), "a, b=2"],),
    "http.cookiejar:strip_quotes": several_of('a"', 0, 6),
    "http.cookiejar:parse_ns_headers": lambda rng: (
        [
            rng.choice(("a=1; path=/; EXPIRES=x", 'b="q"; version=2', "c; domain=.d", ";", "")),
            _parameters(rng),
        ],
    ),
    "email.message:_parseparam": lambda rng: (_parameters(rng),),
    "email.utils:decode_rfc2231": lambda rng: (text(rng, "ab'%", 0, 8),),
    "wsgiref.headers:_formatparam": lambda rng: (
        text(rng, "ab", 1, 3),
        rng.choice((None, "", "x", 'y"z', "a b", "c\\")),
        rng.choice((0, 1)),
    ),
    "wsgiref.util:guess_scheme": lambda rng: (
        rng.choice(({}, {"HTTPS": "on"}, {"HTTPS": "1"}, {"HTTPS": "off"}, {"HTTPS": "yes"})),
    ),
    "cgi:parse_header": lambda rng: (_parameters(rng),),
    "getopt:getopt": lambda rng: (_options(rng), "ab:", ["alpha", "beta=", "alp"]),
    "getopt:gnu_getopt": lambda rng: (
        _options(rng),
        rng.choice(("ab:", "+ab:")),
        ["alpha", "beta="],
    ),
    "getopt:do_longs": lambda rng: (
        [],
        rng.choice(("alpha", "beta=2", "al", "be", "x", "alpha=1")),
        ["alpha", "beta="],
        _options(rng),
    ),
    "getopt:do_shorts": lambda rng: ([], text(rng, "abc", 0, 3), "ab:", _options(rng)),
    "getopt:long_has_args": lambda rng: (
        rng.choice(("alpha", "beta", "al", "b", "x")),
        ["alpha", "beta=", "alps"],
    ),
    "getopt:short_has_arg": lambda rng: (rng.choice("abcd"), rng.choice(("ab:c", "a:b", ":d"))),
    "smtplib:_quote_periods": lambda rng: (text(rng, "a.\n", 0, 8).encode(),),
    "smtplib:_fix_eols": several_of("a\r\n", 0, 8),
    "smtplib:quoteaddr": lambda rng: (rng.choice(("a@b", "N <a@b>", "<a@b>", " x ", "")),),
    "ftplib:parse150": lambda rng: (
        rng.choice(("150 x (12 bytes)", "150 y", "226 z", "150 (3 B)")),
    ),
    "ftplib:parse227": lambda rng: (
        rng.choice(("227 ok (1,2,3,4,5,6)", "227 no", "500 x", "227 (9,8,7,6,0,21)")),
    ),
    "ftplib:parse229": lambda rng: (
        rng.choice(("229 ok (|||64|)", "229 (|||x|)", "228 (", "229 (||6|)", "229 no", "229 (")),
        ("host", 21),
    ),
    "ftplib:parse257": lambda rng: (
        rng.choice(("257 ", "258 ")) + '"' + text(rng, 'a"/', 0, 6) + rng.choice(('"', '" x', "")),
    ),
    "locale:_grouping_intervals": lambda rng: (
        integers(rng, 1, 4, 0, 4) + rng.choice(([], [127])),
    ),
    "mailcap:parsefield": lambda rng: (text(rng, "ab;\\", 0, 8), rng.randint(0, 2), 8),
    "mailcap:subst": lambda rng: (text(rng, "a%st{}", 0, 9), "text/x", "file", ["a=1"]),
    "sysconfig:_subst_vars": lambda rng: (
        rng.choice(("{a}/b", "{a}{b}", "{zz}", "x")),
        {"a": "1", "b": "2"},
    ),
    "gettext:_as_int": lambda rng: (rng.choice((1, 2.0, 2.5, "x", 0, -3)),),
}
