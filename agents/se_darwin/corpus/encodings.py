"""Inputs for encoders and decoders: base-n, quoted-printable, punycode, URL, JSON, tar."""

from __future__ import annotations

from random import Random

from agents.se_darwin.corpus.draws import Generator, integers, octets, several_of, text


def _percent(rng: Random) -> str:
    parts = [
        rng.choice(("%41", "%zz", "%C3%A9", "a", "+", "%", "é", " "))
        for _ in range(rng.randint(0, 5))
    ]
    return "".join(parts)


def _query(rng: Random) -> str:
    pairs = [rng.choice(("a=1", "b=", "=2", "c", "a=%20x", "d=1=2", "")) for _ in range(4)]
    return rng.choice(("&", "&", ";")).join(pairs[: rng.randint(0, 4)])


def _json_string(rng: Random) -> str:
    pieces = [
        rng.choice(("a", "\\n", "\\u00e9", "\\ud834\\udd20", "\\u12", "\\x", "é", "\n"))
        for _ in range(rng.randint(0, 4))
    ]
    return '"' + "".join(pieces) + rng.choice(('"', '"', '" tail', ""))


GENERATORS: dict[str, Generator] = {
    "urllib.parse:quote_from_bytes": lambda rng: (octets(rng), rng.choice(("/", "", "~&"))),
    "urllib.parse:unquote_to_bytes": lambda rng: (_percent(rng),),
    "urllib.parse:unquote": lambda rng: (_percent(rng),),
    "urllib.parse:parse_qsl": lambda rng: (_query(rng), rng.choice((True, False))),
    "urllib.parse:parse_qs": lambda rng: (_query(rng), rng.choice((True, False))),
    "urllib.parse:urlencode": lambda rng: (
        [(text(rng, "ab &", 0, 4), rng.choice(("x y", 3, [1, 2], "é"))) for _ in range(2)],
        rng.choice((True, False)),
    ),
    "base64:b32encode": lambda rng: (octets(rng),),
    "base64:b16decode": lambda rng: (text(rng, "09AFaf", 0, 6), rng.choice((True, False))),
    "base64:a85encode": lambda rng: (
        rng.choice((octets(rng), b"\0\0\0\0" + octets(rng, 0, 3), b"    x")),
    ),
    "base64:a85decode": lambda rng: (text(rng, "!z5u<~", 0, 9),),
    "base64:b85encode": lambda rng: (octets(rng),),
    "base64:b85decode": lambda rng: (text(rng, "09AZaz~", 0, 9),),
    "base64:_b32decode": lambda rng: (
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
        rng.choice((b"", b"ME======", b"MFRGG===", b"MFRGGZDF", b"M", b"mfrggzdf", b"ME=====")),
        rng.choice((True, False)),
    ),
    "email.quoprimime:header_length": lambda rng: (list(octets(rng)),),
    "email.quoprimime:body_length": lambda rng: (list(octets(rng)),),
    "email.quoprimime:body_encode": lambda rng: (
        text(rng, "ab= \té\n", 0, 16),
        rng.choice((4, 6, 8, 76, 3)),
    ),
    "email.quoprimime:decode": lambda rng: (
        "".join(rng.choice(("=41", "=\n", "a", "=zz", " ", "\n", "=")) for _ in range(5)),
    ),
    "email.base64mime:header_length": lambda rng: (octets(rng),),
    "email.base64mime:body_encode": lambda rng: (octets(rng), rng.choice((4, 8, 76))),
    "email.utils:unquote": several_of('"<>\\a', 0, 6),
    "encodings.punycode:segregate": several_of("abüéz", 0, 8),
    "encodings.punycode:selective_len": lambda rng: (
        text(rng, "aüé∞", 0, 8),
        rng.choice((98, 234, 8734)),
    ),
    "encodings.punycode:selective_find": lambda rng: (
        text(rng, "aüé", 0, 8),
        rng.choice("aüé"),
        rng.randint(-1, 2),
        rng.randint(-1, 3),
    ),
    "encodings.punycode:insertion_unsort": lambda rng: (
        text(rng, "abüé", 1, 8),
        rng.choice((["é", "ü"], ["ü"], ["é"])),
    ),
    "encodings.punycode:T": lambda rng: (rng.randint(0, 4), rng.choice((0, 20, 72, 100))),
    "encodings.punycode:generate_generalized_integer": lambda rng: (
        rng.randint(0, 4000),
        rng.choice((0, 20, 72)),
    ),
    "encodings.punycode:adapt": lambda rng: (
        rng.randint(0, 90000),
        rng.choice((True, False)),
        rng.randint(1, 9),
    ),
    "encodings.punycode:generate_integers": lambda rng: (
        rng.randint(0, 5),
        integers(rng, 0, 999, 0, 4),
    ),
    "encodings.punycode:decode_generalized_number": lambda rng: (
        text(rng, "ABZ019-", 0, 4),
        rng.choice((0, 0, 1)),
        72,
        rng.choice(("strict", "ignore")),
    ),
    "encodings.punycode:insertion_sort": lambda rng: (
        text(rng, "ab", 0, 5),
        text(rng, "ABZ01", 0, 4),
        rng.choice(("strict", "ignore")),
    ),
    "quopri:needsquoting": lambda rng: (
        bytes([rng.choice((9, 32, 61, 65, 95, 126, 127, 200))]),
        rng.choice((True, False)),
        rng.choice((True, False)),
    ),
    "quopri:quote": lambda rng: (octets(rng, 1, 1),),
    "quopri:unhex": lambda rng: (text(rng, "09afAFg", 0, 4).encode(),),
    "json.encoder:py_encode_basestring": several_of('a"\\\n\té\x01', 0, 8),
    "json.encoder:py_encode_basestring_ascii": several_of('a"\\\n\té\x01😀', 0, 8),
    "json.decoder:py_scanstring": lambda rng: (_json_string(rng), 1, rng.choice((True, False))),
    "plistlib:_escape": several_of("a&<>\r\n", 0, 9),
    "plistlib:_encode_base64": lambda rng: (octets(rng, 0, 30), rng.choice((8, 16, 76))),
    "tarfile:stn": lambda rng: (
        rng.choice((None, text(rng, "abé", 0, 9), "x", "name")),
        rng.randint(0, 8),
        "utf-8",
        "strict",
    ),
    "tarfile:nts": lambda rng: (
        text(rng, "ab\0", 0, 8).encode() + rng.choice((b"", b"\xff")),
        "utf-8",
        rng.choice(("strict", "replace")),
    ),
    "tarfile:nti": lambda rng: (
        rng.choice((b"0000644\0", b"\x80\0\0\x01\x02", b"\xff\xff\xfe", b" 17 \0", b"89", b"\0")),
    ),
    "tarfile:itn": lambda rng: (
        rng.choice((0, 420, 8**7 - 1, 8**7, -1, -300, 256**8)),
        rng.choice((8, 12)),
        rng.choice((0, 1, 2)),
    ),
    "tarfile:calc_chksums": lambda rng: (octets(rng, 4, 8) * 64 + bytes(256),),
    "lib2to3.pgen2.literals:evalString": lambda rng: (
        rng.choice(("'a'", '"b\\n"', "'''c'''", "'\\x41'", "'\\101'", "x")),
    ),
}
