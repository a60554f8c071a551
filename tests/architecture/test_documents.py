"""What the documents say exists, exists: settings, commands, options, metrics, links, names."""

import importlib
import operator
import re
from pathlib import Path

import genesis_client.place
import pytest
import typer

from docs import generated_pages
from genesis_fp16.cli.app import app
from genesis_fp16.settings import AGENTS_PREFIX, ENV_FILE_VARIABLE, VARIABLES, AgentSettings

SETTING = re.compile(r"\b(?:GENESIS|FP16|ENABLE_FP16)_[A-Z0-9_]*[A-Z0-9]\b")
COMMAND = re.compile(r"genesis-fp16((?: +[^\s`#|]+)+)")
BENCHMARK = re.compile(r"python -m (benchmarks(?:\.\w+)*)((?: +[^\s`#|]+)*)")
MAKE = re.compile(r"(?:`|^)make ([a-z-]+)(?=`|$| +#| [A-Z]+=)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| (?P<cells>.+) \|$", re.MULTILINE)


def _rows(page: Path) -> list[list[str]]:
    """Cells of the table rows that begin with code or a promise; without the header."""
    rows = [match["cells"].split(" | ") for match in ROW.finditer(page.read_text())]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def _code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_settings_named_exist(pages: list[Path], root: Path) -> None:
    of_an_agent = re.compile(
        AGENTS_PREFIX
        + r"[A-Z0-9_]+?__("
        f"{'|'.join(AgentSettings.model_fields)}".upper()
        + r")(__\w+)?"
    )
    known = {*VARIABLES, ENV_FILE_VARIABLE, *genesis_client.place.VARIABLES}
    unknown = {
        f"{page.relative_to(root)}: {name}"
        for page in pages
        for name in SETTING.findall(page.read_text())
        if name not in known and not of_an_agent.fullmatch(name)
    }
    assert unknown == set()


def _check_command(
    command: typer.core.TyperCommand | typer.core.TyperGroup, words: list[str]
) -> str | None:
    """What is wrong with the command line *words* of *command*, if anything."""
    context = command.make_context("genesis-fp16", ["--help"], resilient_parsing=True)
    while hasattr(command, "get_command") and words and not words[0].startswith("-"):
        name, *words = words
        subcommand = command.get_command(context, name)
        if subcommand is None:
            return f"no command {name!r}"
        context = subcommand.make_context(name, ["--help"], parent=context, resilient_parsing=True)
        command = context.command  # that of a plugin is loaded now
    options = {option for parameter in command.params for option in parameter.opts}
    missing = [w for w in words if w.startswith("--") and w not in {*options, "--help"}]
    return f"{command.name} has no option {missing}" if missing else None


def test_commands_named_exist(pages: list[Path], root: Path) -> None:
    program = typer.main.get_command(app)
    wrong, seen = [], 0
    for page in pages:
        for match in COMMAND.finditer(page.read_text()):
            words = match[1].split()
            if not re.fullmatch(r"[a-z-]+", words[0]):
                continue  # prose: "genesis-fp16 (the daemon)"
            seen += 1
            if problem := _check_command(program, words):
                wrong.append(f"{page.relative_to(root)}: {match[0]}: {problem}")
    assert seen > 10
    assert wrong == []


def test_benchmarks_named_exist(pages: list[Path], root: Path) -> None:
    """The module, and the command that follows it in the source of what ``python -m`` runs."""
    wrong, seen = [], 0
    for page in [*pages, root / "Makefile"]:
        for module, words in BENCHMARK.findall(page.read_text()):
            seen += 1
            path = root / module.replace(".", "/")
            source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
            command = re.match(r" +([a-z]+)\b", words)
            if not source.is_file() or (command and f'"{command[1]}"' not in source.read_text()):
                wrong.append(f"{page.relative_to(root)}: {module}{words}")
    assert seen > 10
    assert wrong == []


def test_make_targets_named_exist(pages: list[Path], root: Path) -> None:
    makefile = (root / "Makefile").read_text()
    targets = {*re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)}
    named = {name for page in pages for name in MAKE.findall(page.read_text())}
    assert {"run", "bench-step"} <= named <= targets
    every = re.search(r"^bench: (.*?) *##", makefile, re.MULTILINE)
    assert every is not None
    benchmarks = {name for name in targets if name.startswith("bench-")}
    assert {*every[1].split()} == benchmarks, "make bench runs every benchmark"
    page = (root / "docs" / "explanation/benchmarks.md").read_text()
    assert {name for name in benchmarks if f"make {name}`" not in page} == set()


def _anchors(page: Path) -> set[str]:
    """Names that a link may use for the headings of *page*, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        for heading in HEADING.findall(text)
    }


def test_links_lead_somewhere(pages: list[Path], root: Path) -> None:
    """The file exists, and so does the heading that the link names."""
    generated_pages.write(root / "docs" / "reference" / "generated")  # a fresh clone lacks them
    broken, headings = [], 0
    for page in [*pages, *(root / "examples").glob("*/README.md")]:
        for target, heading in LINK.findall(page.read_text()):
            file = page.parent / target if target else page
            headings += bool(heading)
            if not file.exists() or (heading and heading not in _anchors(file)):
                broken.append(f"{page.relative_to(root)}: {target}#{heading}")
    assert headings > 10
    assert broken == []


def test_promised_metrics_exist() -> None:
    promised = {
        "genesis_fp16_training_steps_total",
        "genesis_fp16_overflow_steps_total",
        "genesis_fp16_loss_scale",
        "genesis_training_loss",
        "genesis_fp32_baseline_loss",
        "genesis_training_samples_total",
        "genesis_training_duration_seconds",
        "genesis_cuda_memory_allocated_bytes",
    }
    assert promised <= generated_pages.declared_metrics().keys()


def test_promises_are_kept(root: Path) -> None:
    rows = _rows(root / "docs" / "reference/promised-interfaces.md")
    places = [_code(row[1])[0] for row in rows if len(row) == 2 and _code(row[1])]
    assert len(places) > 20
    for place in places:
        if "/" in place or place.endswith(".sh"):
            assert (root / place).is_file(), place
        else:
            module, _, attribute = place.partition(":")
            operator.attrgetter(attribute)(importlib.import_module(module))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enabled", True),
        ("loss_scale", 65536.0),
        ("growth_factor", 2.0),
        ("backoff_factor", 0.5),
        ("growth_interval", 2000),
        ("max_grad_norm", 1.0),
    ],
)
def test_promised_defaults(name: str, value: object) -> None:
    from infrastructure.training import FP16TrainingConfig

    assert getattr(FP16TrainingConfig(), name) == value
