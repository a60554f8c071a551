"""Plain English wherever a person reads: some constructions make a reader stop, and none is needed.

Quoted text is left alone: code in backquotes, and what stands between double quotation marks in
a document.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Files = Callable[..., list[Path]]

CODE = (
    *("genesis_fp16", "infrastructure", "agents", "clients", "benchmarks", "scripts", "examples"),
    "deploy",
)
DOCUMENTS = (".md", ".example", ".yml", ".yaml", ".toml", ".sh", ".service", ".conf", ".env")
FORBIDDEN = {
    r"\b(?:there )?(?:is|are|was|were|be) no (?!(?:longer|more|less|fewer|later|other)\b)\w+": (
        "write 'is not a ...' or 'has no ...'; 'there is no ...' is plain"
    ),
    r"\banew\b": "write 'again' or 'from the start'",
    r"\bsuch as (?:is|are|it is|they are)\b": "name what is meant",
    r"\bof which\b": "begin a new sentence",
    r"\bwhatever\b": "write 'any ...', 'everything that ...' or 'regardless of ...'",
    r"\bwhoever\b": "write 'a person who ...'",
    r"\bin vain\b": "say what happened instead",
    r"\bfor want of\b": "write 'because ... is missing'",
    r"\b(?:lest|thereof|herein|wherein|whence|thence|hither|nay)\b": "write present-day English",
    r"\bheed(?:s|ed|less)?\b": "write 'obey' or 'apply'",
}
_GAP = r"(?:\s|[#>*])+"  # words may be parted by the end of a line, of a comment too
_PATTERN = re.compile(
    "|".join(f"(?:{pattern})".replace(" ", _GAP) for pattern in FORBIDDEN),
    re.IGNORECASE,
)
# One string of Python 3.11: inside an f-string, its own kind of quotation mark cannot occur.
_STRING = (
    r"(?:\b[rbfu]{1,2})?"
    r"(?:\"{3}(?:[^\"\\]|\\.|\"(?!\"\"))*\"{3}|'{3}(?:[^'\\]|\\.|'(?!''))*'{3}"
    r"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
)
# Comments of consecutive lines are one text, and so are strings with nothing between them.
_TEXTS = re.compile(
    rf"(?P<comments>#[^\n]*(?:\n[ \t]*#[^\n]*)*)|(?P<strings>{_STRING}(?:\s*{_STRING})*)",
    re.DOTALL | re.IGNORECASE,
)
_STRINGS = re.compile(_STRING, re.DOTALL | re.IGNORECASE)
_INSERTED = re.compile(r"\{(?:[^{}]|\{[^{}]*\})*\}")
_QUOTED = re.compile(r"```.*?```|``.*?``|`[^`\n]*`|\"[^\"\n]{1,200}\"|“[^”]*”", re.DOTALL)


def _found(text: str) -> Iterator[tuple[int, str]]:
    """Line and phrase of everything forbidden in *text*."""
    bare = _QUOTED.sub(lambda quoted: re.sub(r"[^\n]", "_", quoted[0]), text)
    for match in _PATTERN.finditer(bare):
        if not match[0].lower().startswith("there"):
            yield bare.count("\n", 0, match.start()) + 1, " ".join(match[0].split())


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """First line and text of each thing in *path* that a person reads."""
    source = path.read_text()
    if path.suffix != ".py":
        yield 1, source
        return
    for match in _TEXTS.finditer(source):
        strings = _STRINGS.findall(match["strings"] or "")
        text = match["comments"] or "".join(map(_content, strings))
        yield source.count("\n", 0, match.start()) + 1, text


def _content(string: str) -> str:
    """Text of a string of Python; ``_`` stands for each value that an f-string inserts."""
    bare = string.lstrip("rbfuRBFU")
    marks = 3 if bare.startswith(('"' * 3, "'" * 3)) else 1
    text = bare[marks:-marks].replace("\\n", "\n")
    return _INSERTED.sub("_", text) if "f" in string[: -len(bare)].lower() else text


def test_no_text_makes_its_reader_stop(files: Files, root: Path) -> None:
    paths = files(".py", below=CODE) + files(*DOCUMENTS)
    paths += [root / "Makefile", root / "Dockerfile", root / ".ci" / "run"]
    assert len(paths) > 300
    stops = sorted(
        {
            f"{path.relative_to(root)}:{first + line - 1}: {phrase}"
            for path in paths
            for first, text in _texts(path)
            for line, phrase in _found(text)
        }
    )
    assert stops == []


@pytest.mark.parametrize(
    "text",
    [
        "which is no text",
        "write it anew",
        "a file, of\nwhich the hot are kept",
        "# it is\n# no agent",
        "Whatever it is, the loop goes on.",
    ],
)
def test_the_test_itself_can_fail(text: str) -> None:
    assert list(_found(text))


@pytest.mark.parametrize(
    "text",
    ["there is no file", "it is no longer read", "the house style forbids `anew`", 'not "in vain"'],
)
def test_quotations_and_plain_uses_pass(text: str) -> None:
    assert not list(_found(text))
