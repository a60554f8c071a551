"""Inputs for functions on text: wrapping, quoting, shortening, matching."""

from __future__ import annotations

from random import Random

from agents.se_darwin.corpus.draws import Arguments, Generator, several_of, text, words


def _indented(rng: Random) -> str:
    """A few lines with varying indentation."""
    lines = [
        " " * rng.choice((0, 2, 4, 4)) + rng.choice(("x", "if y:", "", "\tz", "  "))
        for _ in range(rng.randint(0, 5))
    ]
    return "\n".join(lines) + rng.choice(("", "\n", "\n\n"))


def _ellipsis(rng: Random) -> Arguments:
    pieces = [text(rng, "ab\n", 0, 3) for _ in range(rng.randint(1, 4))]
    filler = "...".join(pieces)
    return filler, rng.choice((text(rng, "ab", 0, 2).join(pieces), "".join(pieces[::-1]), filler))


def _padded(rng: Random) -> Arguments:
    amount = rng.randint(0, 4)
    return " " * rng.randint(0, 4) + text(rng, "1,", 1, 5) + " " * rng.randint(0, 4), amount


GENERATORS: dict[str, Generator] = {
    "textwrap:dedent": lambda rng: (_indented(rng),),
    "textwrap:indent": lambda rng: (_indented(rng), rng.choice(("> ", "", "  "))),
    "textwrap:shorten": lambda rng: (" ".join(words(rng)), rng.randint(4, 18)),
    "inspect:cleandoc": lambda rng: (_indented(rng),),
    "inspect:indentsize": several_of(" \tab", 0, 8),
    "string:capwords": lambda rng: (text(rng, "aB -"), rng.choice((None, "-", " "))),
    "html:escape": lambda rng: (text(rng, "a&<>\"'"), rng.choice((True, False))),
    "shlex:quote": several_of("ab $'\"-", 0, 6),
    "shlex:join": lambda rng: (words(rng),),
    "xml.sax.saxutils:escape": lambda rng: (
        text(rng, "a&<>b"),
        rng.choice(({}, {"a": "A"}, {"b": "<b>"})),
    ),
    "xml.sax.saxutils:unescape": lambda rng: (
        "".join(rng.choice(("&lt;", "&gt;", "&amp;", "x", "&q;")) for _ in range(4)),
        rng.choice(({}, {"&q;": "Q"})),
    ),
    "xml.sax.saxutils:quoteattr": several_of("a'\"\n&<", 0, 6),
    "xml.etree.ElementTree:_escape_cdata": several_of("a&<>"),
    "xml.etree.ElementTree:_escape_attrib": several_of('a&<>"\n\t\r'),
    "xmlrpc.client:escape": several_of("a&<>"),
    "fnmatch:translate": several_of("a*?[]!-^.", 0, 8),
    "fnmatch:filter": lambda rng: (words(rng), rng.choice(("*", "s*", "?", "[a-f]*"))),
    "glob:escape": several_of("a*?[]", 0, 8),
    "doctest:_indent": lambda rng: (_indented(rng), rng.randint(0, 5)),
    "doctest:_comment_line": several_of("ab ", 0, 5),
    "doctest:_strip_exception_details": several_of("ab.: \n", 0, 10),
    "doctest:_ellipsis_match": _ellipsis,
    "pydoc:cram": lambda rng: (text(rng, high=16), rng.randint(3, 12)),
    "pydoc:splitdoc": lambda rng: (_indented(rng),),
    "pydoc:replace": lambda rng: (
        text(rng),
        *rng.choice((("a", "b"), ("a", "", "b", "z"), ())),
    ),
    "optparse:_match_abbrev": lambda rng: (
        rng.choice(("al", "alpha", "b", "", "z")),
        dict.fromkeys(rng.sample(("alpha", "alps", "beta", "b", "gamma"), 3), 1),
    ),
    "locale:_strip_padding": _padded,
    "locale:_replace_encoding": lambda rng: (
        rng.choice(("de_DE", "en_US.latin1", "C.x")),
        rng.choice(("utf_8", "latin-1", "ISO8859-1", "cp1252", "koi8_r")),
    ),
    "locale:_append_modifier": lambda rng: (
        rng.choice(("C", "de_DE.ISO8859-1", "en.ISO8859-15", "fr")),
        rng.choice(("euro", "latin", "x")),
    ),
    "locale:normalize": lambda rng: (
        rng.choice(("de", "en_us", "fr.utf8", "de@euro", "C", "x.y@z", "ja_JP.sjis")),
    ),
    "gettext:_expand_lang": lambda rng: (
        rng.choice(("de", "en_US", "fr_FR.utf8", "de_DE@euro", "C", "x_Y.z@w")),
    ),
    "enum:_is_dunder": several_of("_a", 0, 7),
    "enum:_is_sunder": several_of("_a", 0, 5),
    "ast:_splitlines_no_ff": several_of("a\n\r\f", 0, 9),
    "ast:_pad_whitespace": several_of("a \t\f", 0, 9),
    "unittest.mock:_is_magic": several_of("_a", 0, 6),
    "timeit:reindent": lambda rng: (_indented(rng), rng.randint(0, 5)),
    "traceback:_byte_offset_to_character_offset": lambda rng: (
        text(rng, "aé∞", 0, 8),
        rng.randint(0, 8),
    ),
}
