"""A checkout of Genesis: which agents its code has, what each writes, and which records exist.

Its code is parsed, never imported.
"""

from __future__ import annotations

import ast
import fnmatch
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from genesis_fp16.cli.configured_agents import GENESIS_AGENTS, WALTZRL_AGENTS, usual_ids
from infrastructure.files import read_limited

if TYPE_CHECKING:
    from infrastructure.trajectories.record_source.formats import RecordFormat

MAX_SOURCE_BYTES = 1 << 22
MAX_RECORDS_BYTES = 1 << 28
ALL_AGENTS = (*GENESIS_AGENTS, "se-darwin", *WALTZRL_AGENTS)
CASES_FOLDER = Path("data/memory")
_CODE_FOLDERS = ("agents", "infrastructure/safety")
_CASES = (CASES_FOLDER / "casebank.jsonl", Path("memory.sqlite"))
_POOLS = "data/trajectory_pools/*/trajectory_pool.json"
_LABEL = "genesis-fp16 label-conversations tells what is missing"
_OTHERS = {  # what else a checkout holds, and why no agent can learn from it as it is
    "tests/waltzrl_real_llm_results.json": f"replies without labels: {_LABEL}",
    "data/openai_format/*.jsonl": f"chats without labels: {_LABEL}",
    "data/finetuning/*.jsonl": "chats without an outcome",
    "data/generated_examples/*.jsonl": "tasks without an outcome",
}
Writes = Literal["trajectories", "cases", ""]
_WRITERS: dict[str, Writes] = {"store_trajectory": "trajectories", "add_case": "cases"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeOfAgent:
    """What the code of one agent tells.

    Attributes:
        name: Name of the agent here.
        files: Its files, relative to the checkout; empty if it has none there.
        writes: What it stores: trajectories, cases, or nothing.
        ids: Ids that it writes, each with ``*`` where the code inserts a value; those that are
            usual if the code names none.
    """

    name: str
    files: tuple[str, ...]
    writes: Writes
    ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFile:
    """A file of records.

    Attributes:
        path: The file, relative to the checkout if it is below it.
        form: Form of its records; empty if no agent can use them.
        by_agent: Number of usable records by the agent that they name; empty text for none.
        refused: Number of lines, or records of pretty-printed JSON, that cannot be read.
        note: What else there is to say.
    """

    path: str
    form: RecordFormat | Literal[""]
    by_agent: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    note: str = ""

    @property
    def can_rank(self) -> bool:
        """Whether the records have an action, without which a model predicts but cannot rank."""
        from infrastructure.trajectories.record_source.formats import GENESIS_SPECS

        return self.form != "" and bool(GENESIS_SPECS[self.form].action)

    def usable_by(self, ids: Sequence[str]) -> int:
        """Number of records that name one of *ids*."""
        return sum(
            count
            for agent, count in self.by_agent.items()
            if any(fnmatch.fnmatchcase(agent, pattern) for pattern in ids)
        )


def is_checkout(folder: Path) -> bool:
    """Whether *folder* looks like the root of Genesis."""
    return any((folder / "agents").glob("*_agent.py")) and (folder / "infrastructure").is_dir()


def read_code(folder: Path) -> list[CodeOfAgent]:
    """What the code below *folder* tells of each agent of Genesis, in the order of `ALL_AGENTS`."""
    return [_code_of(folder, name) for name in ALL_AGENTS]


def read_records(folder: Path, arriving: Path) -> list[RecordFile]:
    """The files of records of the checkout, and those that have arrived in the folder *arriving*.

    A file that cannot be read is told in its note.
    """
    files = [_counted(path, folder, "replay-trajectories") for path in _files(arriving, "*.jsonl")]
    files += [
        _counted(folder / path, folder, "casebank") for path in _CASES if (folder / path).is_file()
    ]
    files += [_counted(path, folder, "trajectory-pool") for path in _files(folder, _POOLS)]
    for pattern, why in _OTHERS.items():
        if others := len(_files(folder, pattern)):
            files.append(RecordFile(path=f"{pattern} ({others})", form="", note=why))
    return files


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _code_of(folder: Path, name: str) -> CodeOfAgent:
    stem = f"{name.replace('-', '_')}_agent"
    paths = [path for place in _CODE_FOLDERS for path in _files(folder / place, f"{stem}*.py")]
    writes: Writes = ""
    ids = dict[str, None]()
    for path in paths:
        for node in _nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                writes = _WRITERS.get(node.func.attr, writes)
            ids.update(dict.fromkeys(_ids_in(node)))
    files = tuple(_relative(path, folder) for path in paths)
    known = (name, *ids) if ids else usual_ids(name)
    return CodeOfAgent(name=name, files=files, writes=writes, ids=known)


def _nodes(path: Path) -> Iterator[ast.AST]:
    """Nodes of the file's syntax tree; none if it cannot be read or is not Python."""
    try:
        tree = ast.parse(read_limited(path, MAX_SOURCE_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # the last: nesting
        return
    yield from ast.walk(tree)


def _ids_in(node: ast.AST) -> Iterator[str]:
    """Patterns of the texts that *node* gives to the name, attribute or argument ``agent_id``."""
    if isinstance(node, ast.keyword) and node.arg == "agent_id":
        value: ast.expr = node.value
    elif isinstance(node, ast.Assign) and any(_name_of(t) == "agent_id" for t in node.targets):
        value = node.value
    else:
        return
    if isinstance(value, ast.JoinedStr):
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else "*" for part in value.values
        ]
        if (pattern := "".join(parts)).strip("*"):
            yield pattern


def _name_of(target: ast.expr) -> str:
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else ""


def _counted(path: Path, folder: Path, form: RecordFormat) -> RecordFile:
    from infrastructure.trajectories.genesis_records import read_trajectory_pool

    shown, by_agent, refused = _relative(path, folder), Counter[str](), 0
    try:
        if path.stat().st_size > MAX_RECORDS_BYTES:
            return RecordFile(path=shown, form=form, note="too large to be counted here")
        if form == "trajectory-pool":
            problems: list[str] = []
            for transition in read_trajectory_pool(path, lambda *p: problems.append(str(p))):
                by_agent[str(transition.observation.get("agent", ""))] += 1
            return RecordFile(path=shown, form=form, by_agent=by_agent, refused=len(problems))
        by_agent, refused = _count(path, form)
    except ValueError as error:
        note = f"it is not JSON, or not complete yet ({error})"
        return RecordFile(path=shown, form=form, note=note)
    except OSError as error:
        return RecordFile(path=shown, form=form, note=f"cannot be read: {error.strerror}")
    return RecordFile(path=shown, form=form, by_agent=by_agent, refused=refused)


def _count(path: Path, form: RecordFormat) -> tuple[Counter[str], int]:
    """Number of usable records by agent, and of others; a `ValueError` for broken JSON."""
    from infrastructure.trajectories.record_source.definition import SourceTable
    from infrastructure.trajectories.record_source.formats import line_decoder
    from infrastructure.trajectories.record_source.lines import begins_document, document_records

    decode, by_agent, refused = line_decoder(form, SourceTable(path=path)), Counter[str](), 0
    with path.open("rb") as file:
        whole = begins_document(file.peek())
        for line in document_records(file.read()) if whole else file:
            if not line.strip():
                continue
            try:
                by_agent[decode(line.strip()).agent] += 1
            except ValueError:
                refused += 1
    return by_agent, refused
