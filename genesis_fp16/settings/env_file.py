"""Reads the variables of a ``.env`` file with the line of each; expands nothing."""

from __future__ import annotations

import codecs
import difflib
import errno
import io
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dotenv.parser import Binding, Original, parse_stream

from genesis_fp16.domain.redaction import visible
from infrastructure.files import read_limited

ENV_FILE_VARIABLE = "GENESIS_ENV_FILE"
ROLLBACK_FLAG = "ENABLE_FP16_TRAINING"
TRUE_TEXTS = ("true", "1", "yes", "on", "t", "y")  # in any case
FALSE_TEXTS = ("false", "0", "no", "off", "f", "n")
ENVIRONMENT = "environment"  # source of a variable that is not in the file
MAX_BYTES = 1 << 18  # takes seconds to parse, during which the daemon's loop stands still
LONGEST_NAME = 80  # characters of a name in a message
_NAME = re.compile(r"\w+", re.ASCII)
_LINE_START = re.compile(r"\s*(?:export\s+)?['\"]?(\w{1,80})", re.ASCII)
_PREFIXES = ("GENESIS", "FP16")
_AGENT = re.compile(r"GENESIS_AGENTS__\w+__\w")
_OURS = re.compile(r"GENESIS_|FP16_|(ENABLE|DISABLE)_FP16", re.IGNORECASE)
_BEFORE_NAME = r"(?:(?:export|setx?|declare|readonly|ENV)\s+(?:-x\s+)?|Environment\s{0,9}=\s{0,9})?"
_ASSIGNMENT = re.compile(
    rf"[^\w#;/]*{_BEFORE_NAME}['\"]?(\w{{1,80}})['\"]?"
    r"\s{0,20}[=:\s][\s=:>'\"]{0,20}(\w{1,20})\b",
    re.ASCII,
)
_OTHERS = r"(?:(?:Default)?Environment\s{0,9}=[^#]{0,500}[\s'\"])?"  # beside it, as systemd allows
_FLAG = re.compile(  # however its words are joined, and all that follows it
    rf"[^\w#;/]*{_OTHERS}{_BEFORE_NAME}['\"]?"
    r"(?:GENESIS[\s_.-]{1,3})?ENABLE[\s_.-]{0,3}FP16[\s_.-]{0,3}TRAINING(?!\w)(.{0,80})",
    re.ASCII | re.IGNORECASE,
)
_WORD = re.compile(r"\w+|!", re.ASCII)  # "!true" is not true
_LINE_END = re.compile(r"\r\n?|\n")  # others may stand in a comment
_BLANK = re.compile(r"[ \t]*(#[^\r]*)?")
_PLAIN = re.compile(r"(\w+)=((?:[!-~](?:[ -~]*[!-~])?)?)", re.ASCII)
_NOT_PLAIN = re.compile(r"['\"\\]| #")


class Variable(NamedTuple):
    """Text of a setting and where it is set: file and line, or ``environment``."""

    value: str
    source: str


def is_ours(name: str, known: Collection[str] = ()) -> bool:
    """Whether *name* is a setting or looks like a misspelt one; others share the environment.

    Names of settings are *known*: one of them with a misspelt prefix is ours, too.
    """
    if _OURS.match(name) or with_our_prefix(name.upper(), known):
        return True
    return bool(difflib.get_close_matches(name.upper(), [ROLLBACK_FLAG], cutoff=0.85))


def with_our_prefix(name: str, known: Collection[str]) -> str:
    """The setting meant by *name*, one with a misspelt prefix (``GENSIS_SEED``); else empty."""
    head, _, rest = name.partition("_")
    for prefix in _PREFIXES:
        meant = f"{prefix}_{rest}"
        exists = meant in known or (bool(known) and _AGENT.match(meant) is not None)
        if exists and head != prefix and difflib.get_close_matches(head, [prefix], cutoff=0.7):
            return meant
    return ""


def shown_name(name: str) -> str:
    """*name* for a message: bounded, and cut where it stops being one: a value may follow."""
    start = _NAME.match(name)
    cut = "" if start is None else start[0][:LONGEST_NAME]
    return cut if cut == name else f"{cut}…"


def find_assignments(path: Path) -> Iterator[tuple[str, Variable]]:
    """Names and values that lines of a file seem to give, however they are written.

    For a file that `read_env_file` finds wrong: with ``NAME: value``, a quote that is not closed,
    or in UTF-16, as an editor of another system writes it. A line that names the rollback flag is
    always found, with the first word behind the name, or no value. None if the file cannot be read.
    """
    try:
        content = read_bounded(path)
    except OSError:
        return
    encoding = "utf-8-sig"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in content[:2]:
        encoding = "utf-16-be" if content[:1] == b"\0" else "utf-16-le"
    lines = _LINE_END.split(content.decode(encoding, errors="replace"))
    for number, line in enumerate(lines, start=1):
        source = f"{visible(str(path))} line {number}"
        if flag := _FLAG.match(line):
            word = _WORD.search(flag[1])
            yield ROLLBACK_FLAG, Variable(word[0] if word else "", source)
        elif assignment := _ASSIGNMENT.match(line):
            yield assignment[1], Variable(assignment[2], source)


def read_bounded(path: Path) -> bytes:
    """The file's content; neither waits for a pipe nor reads without end.

    Raises:
        OSError: The file is missing, unreadable, not a regular file, or larger than `MAX_BYTES`.
    """
    try:
        return read_limited(path, MAX_BYTES)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EFBIG):
            raise OSError(f"it {error.strerror}") from None
        raise


def read_env_file(
    path: Path, problems: list[str], known: Collection[str] = ()
) -> dict[str, Variable]:
    """Read the file's variables that are ours; problems with the file are added to *problems*.

    Names of settings are *known*, as for `is_ours`.

    A missing file has no variables. If a name occurs twice, the last one counts, as in a shell; of
    the rollback flag, the first that is not true.
    In a file that is not UTF-8 the lines that are text still count.
    """
    content, is_text, shown = b"", True, visible(str(path))
    try:
        content = read_bounded(path)
        _check_text(content)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        is_text = False
        problems.append(f"{shown} cannot be read: {error}; make it a readable UTF-8 text file")
    text = content.decode("utf-8-sig", errors="surrogateescape")
    variables: dict[str, Variable] = {}
    for binding in _plain_lines(text) or parse_stream(io.StringIO(text)):
        source = f"{shown} line {_line(binding)}"
        if binding.error:
            if is_text:
                problems.append(_describe_malformed(binding.original.string, source))
        elif binding.key == ENV_FILE_VARIABLE:
            problems.append(f"{ENV_FILE_VARIABLE} ({source}): only the environment can name it")
        elif (key := binding.key) is not None and _may_be_ours(binding, known):
            if _NAME.fullmatch(key):
                earlier = variables.get(key)
                if key == ROLLBACK_FLAG and earlier and earlier.value.lower() not in TRUE_TEXTS:
                    continue
                variables[key] = Variable(binding.value or "", source)
            else:  # NAME:value, too, which the parser takes for a name
                problems.append(_describe_malformed(key, source))
    return variables


def _check_text(content: bytes) -> None:
    content.decode()
    if b"\0" in content:  # which is UTF-8, too, but no name in it would be a setting
        raise OSError("it contains a NUL byte, as text in UTF-16 does")


def _plain_lines(text: str) -> Iterable[Binding]:
    """What the parser finds in a file of ``NAME=value`` without quotes; empty for other files.

    A tenth of the parser's time: a change of the flag waits for it, in files with 1,000 agents.
    """
    bindings = []
    for number, line in enumerate(text.split("\n"), start=1):
        if _BLANK.fullmatch(line):
            continue
        plain = _PLAIN.fullmatch(line)
        if plain is None or _NOT_PLAIN.search(line):
            return ()
        bindings.append(Binding(plain[1], plain[2], Original(line, number), error=False))
    return bindings


def _may_be_ours(binding: Binding, known: Collection[str]) -> bool:
    """Whether a variable of the operator's own file is a setting, or was meant to be one."""
    name = binding.key or ""
    if is_ours(name, known) or "FP16" in name.upper():
        return True
    return _FLAG.match(binding.original.string.lstrip()) is not None  # Environment=NAME=value


def _describe_malformed(text: str, source: str) -> str:
    """What is wrong with the line *text*; shows nothing of it but a name that is ours."""
    start = _LINE_START.match(text)
    name = start[1] if start and (is_ours(start[1]) or "FP16" in start[1].upper()) else ""
    where = f"{name} ({source})" if name else source
    return f"{where}: not NAME=value, or a quote is not closed; correct or delete the line"


def _line(binding: Binding) -> int:
    """Line of the name itself: a binding begins with the blank lines before it."""
    text = binding.original.string
    return binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")
