"""Plugins' commands in the real program: listed without their code, isolated from one another."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from genesis_fp16.cli.app import app
from genesis_fp16.plugins.commands import CommandUnavailableError

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forked")]

PROGRAM = Path(sys.executable).parent / "genesis-fp16"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference/agents.md"
WITH_CONTEXT = """
import typer
from infrastructure.agent_contract.command import CommandContext, CommandError
"""
LOOKUP = (
    WITH_CONTEXT
    + """
def command(context: CommandContext, agent: str = "se-darwin") -> None:
    '''Show where AGENT keeps its files.'''
    found = context.find_agent(agent)
    if found.not_writable:
        raise CommandError(f"read-only: {found.not_writable}", 73)
    context.print_json({"json": context.as_json, "folder": found.folder, **found.settings})
"""
)


@pytest.fixture(autouse=True)
def folder(folder: Path) -> Path:
    return folder


@pytest.fixture
def install_command(install_plugin: Callable[..., None]) -> Callable[..., None]:
    """Install a distribution with one command."""

    def install(name: str, source: str, **changes: str) -> None:
        install_plugin(
            name, source, **{"factory": "command", "group": "genesis.commands"} | changes
        )

    return install


def ask(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, arguments)


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_lists_commands_without_importing_them(
    install_command: Callable[..., None], folder: Path
) -> None:
    witness = folder / "imported"
    install_command("watched", f"open({str(witness)!r}, 'w').close()\ndef command(): ...")
    install_command("told", 'def command():\n    """Say hello.\n\n    Twice."""')
    install_command("torn", "def command(:")
    install_command("twin", "", distribution="first")
    install_command("twin", "", distribution="second")
    shown = ask("--help").stdout
    assert re.search(r"^ +watched +Command of watched-plugin 1\.5\.$", shown, re.MULTILINE)
    assert re.search(r"^ +twin .* cannot be used", shown, re.MULTILINE)
    assert re.search(r"^ +told +Say hello\.$", shown, re.MULTILINE)
    assert re.search(r"^ +torn +Command of torn-plugin 1\.5\.$", shown, re.MULTILINE)
    assert re.search(r"^ +evolve +Repair FUNCTION of FILE, ", shown, re.MULTILINE)
    assert shown.count("twin") == 1
    assert not witness.exists()
    assert ask("watched").exit_code == 0
    assert witness.exists()


def test_the_context_gives_agent_settings_and_output(
    install_command: Callable[..., None], folder: Path
) -> None:
    install_command("lookup", LOOKUP)
    (folder / ".env").write_text("GENESIS_AGENTS__SE_DARWIN__SETTINGS__EXPLORATION=0.5\n")
    refused = program("lookup")
    assert (refused.returncode, refused.stdout) == (73, "")
    assert refused.stderr.startswith("genesis-fp16: read-only: GENESIS_HOME=")
    assert len(refused.stderr.splitlines()) == 1
    (folder / ".genesis").mkdir()
    answer = json.loads(ask("lookup", "--json").stdout)
    assert answer == {
        "json": True,
        "folder": str(folder / ".genesis" / "agents" / "se-darwin"),
        "exploration": "0.5",
    }
    assert json.loads(ask("lookup").stdout)["json"] is False
    unknown = program("lookup", "--agent", "nobody")
    assert unknown.returncode == 2
    assert "nobody" in unknown.stderr
    assert "keeps its files" in ask("lookup", "--help").stdout


def test_a_typer_app_with_several_commands_gets_the_context_in_each(
    install_command: Callable[..., None],
) -> None:
    source = """
command = typer.Typer()

@command.callback()
def root() -> None: ...

@command.command()
def plain() -> None:
    print("plain")

@command.command()
def as_json(context: CommandContext) -> None:
    print(context.as_json)
"""
    install_command("several", WITH_CONTEXT + source)
    assert ask("several", "plain").stdout == "plain\n"
    assert ask("several", "as-json", "--json").stdout == "True\n"
    assert ask("several", "as-json").stdout == "False\n"
    assert "as-json" in ask("several", "--help").stdout


@pytest.mark.parametrize(
    ("name", "source", "cause"),
    [
        ("raises", "raise RuntimeError('no luck')", "RuntimeError: no luck"),
        ("exits", "import sys; sys.exit(0)", "sys.exit(0)"),
        ("lacking", "import no_such_dependency", "'no_such_dependency'"),
        ("constant", "command = 3", "int"),
        ("unreadable", "def command(x: 'Missing') -> None: ...", "Missing"),
        ("object", "import functools\ncommand = functools.partial(print)", "typer.Typer"),
        ("async", "async def command(): print('run')", "asynchronous"),
        ("yields", "def command(): yield print('run')", "generator"),
        ("arguments", "def command(*many: str): print('run')", "*many"),
        ("options", "def command(**many: str): print('run')", "**many"),
    ],
)
def test_a_broken_command_costs_itself_alone(
    install_command: Callable[..., None], name: str, source: str, cause: str
) -> None:
    install_command(name, source)
    done = program(name)
    assert (done.returncode, done.stdout) == (os.EX_CONFIG, "")
    [line] = done.stderr.splitlines()
    assert f"{name}-plugin 1.5" in line
    assert cause in line
    assert f"uninstall {name}-plugin" in line
    assert ask("config", "show").exit_code == 0


@pytest.mark.parametrize(
    ("name", "parameters", "cause"),
    [
        ("json-name", "context: CommandContext, json: bool = False", "'json'"),
        ("as-json-name", "context: CommandContext, as_json: bool = False", "'as_json'"),
        (
            "json-option",
            "context: CommandContext, machine: bool = typer.Option(False, '--text/--json')",
            "'machine'",
        ),
        ("two-contexts", "context: CommandContext, again: CommandContext", "context, again"),
        ("optional-context", "context: CommandContext | None = None", "'context'"),
        ("late-context", "context: 'Later'", "TYPE_CHECKING"),
    ],
)
def test_parameters_that_cannot_be_filled_are_refused_by_name(
    install_command: Callable[..., None], name: str, parameters: str, cause: str
) -> None:
    later = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from infrastructure.agent_contract.command import CommandContext as Later
"""
    install_command(name, f"{WITH_CONTEXT}{later}\ndef command({parameters}): print('run')")
    error = ask(name).exception
    assert isinstance(error, CommandUnavailableError)
    assert error.exit_code == os.EX_CONFIG
    assert cause in str(error)
    assert len(str(error).splitlines()) == 1


def test_a_parameter_named_json_is_refused_in_a_group_too(
    install_command: Callable[..., None],
) -> None:
    source = """
command = typer.Typer()

@command.command()
def free(json: bool = False) -> None:
    print(json)

@command.command()
def taken(context: CommandContext, json: bool = False) -> None: ...
"""
    install_command("taking", WITH_CONTEXT + source)
    assert "'json'" in str(ask("taking", "free").exception)
    install_command("leaving", WITH_CONTEXT + source.replace("context: CommandContext, ", ""))
    assert ask("leaving", "free", "--json").stdout == "True\n"


def test_a_command_may_take_the_librarys_context_too(
    install_command: Callable[..., None],
) -> None:
    source = """
command = typer.Typer()

@command.callback()
def root(context: CommandContext, parsed: typer.Context) -> None:
    parsed.obj = "own"

@command.command()
def show(before: typer.Context, context: CommandContext, number: int = 1) -> None:
    print(before.info_name, before.obj, context.as_json, number)
"""
    install_command("both", WITH_CONTEXT + source)
    assert ask("both", "show", "--number", "2").stdout == "show own False 2\n"
    assert ask("both", "--json", "show").stdout == "show own True 1\n"


def test_an_error_of_a_command_is_one_line_without_control_characters(
    install_command: Callable[..., None],
) -> None:
    source = """
def command(context: CommandContext) -> None:
    raise CommandError("two\\nlines\\x1b[31m", 42)
"""
    install_command("coloured", WITH_CONTEXT + source)
    done = program("coloured")
    assert (done.returncode, done.stderr) == (42, "genesis-fp16: two lines\n")


@pytest.mark.parametrize(("typo", "meant"), [("evolv", "evolve"), ("agent", "agents")])
def test_a_misspelt_command_is_refused_with_the_nearest_one(typo: str, meant: str) -> None:
    done = ask(typo)
    assert done.exit_code == 2
    assert f"did you mean {meant}?" in done.stderr
    assert "did you mean" not in ask("xxxxxxxxxxxx").stderr


@pytest.mark.parametrize("name", ["--help", "a;rm -rf", "Upper"])
def test_a_malformed_name_is_shown_by_doctor_alone(
    install_command: Callable[..., None], name: str
) -> None:
    install_command(name, "raise RuntimeError", distribution="strange")
    names = re.findall(
        r"^  (\S.*?)  ", ask("--help").stdout.partition("Commands:")[2], re.MULTILINE
    )
    assert "evolve" in names
    assert name not in names
    assert ask("--", name).exit_code in {0, 2}  # help, or an unknown command: not the plugin
    findings = [result["found"] for result in json.loads(program("doctor", "--json").stdout)]
    assert any(name in finding and "strange" in finding for finding in findings)


def test_of_two_commands_with_one_name_neither_is_loaded(
    install_command: Callable[..., None],
) -> None:
    install_command("twin", "raise RuntimeError", distribution="first")
    install_command("twin", "raise RuntimeError", distribution="second")
    done = program("twin")
    assert done.returncode == os.EX_CONFIG
    assert "first and second" in done.stderr


def test_a_built_in_command_wins(install_command: Callable[..., None]) -> None:
    install_command("config", "raise RuntimeError")
    assert "GENESIS_SLOTS" in ask("config", "show").stdout
    [result] = [
        result
        for result in json.loads(program("doctor", "--json").stdout)
        if result["check"] == "command" and result["verdict"] == "warn"
    ]
    assert "config-plugin" in result["found"]
    assert "built-in" in result["found"]


def test_a_slow_import_shows_when_called_and_can_be_interrupted(
    install_command: Callable[..., None], folder: Path
) -> None:
    begun = folder / "begun"
    source = f"import os, time\nos.close(os.open({str(begun)!r}, os.O_CREAT))\ntime.sleep(600)"
    install_command("slow", source)  # no file object: Python ignores an interrupt in its destructor
    assert "slow" in program("--help").stdout
    assert not begun.exists()
    process = subprocess.Popen([PROGRAM, "slow"], stderr=subprocess.PIPE, text=True)
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode not in {0, os.EX_CONFIG}
    assert "Traceback" not in errors


def test_interrupts_can_be_deferred(install_command: Callable[..., None]) -> None:
    source = """
import os, signal
def command(context: CommandContext) -> None:
    with context.defer_interrupts() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupted()
    raise CommandError("cleaned up", 75)
"""
    install_command("patient", WITH_CONTEXT + source)
    done = program("patient")
    assert (done.returncode, done.stderr) == (75, "genesis-fp16: cleaned up\n")


def test_the_documented_example_works(install_command: Callable[..., None]) -> None:
    section = PAGE.read_text().partition("## A command of your own")[2].partition("\n## ")[0]
    [declaration] = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    [source] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    group, name, module, attribute = re.fullmatch(
        r'\[project\.entry-points\."(.*)"\]\n(.*) = "(.*):(.*)"\n', declaration
    ).groups()
    install_command(name, source, module=module, group=group, factory=attribute)
    assert len([line for line in source.splitlines() if line]) <= 10
    shown = ask(name, "--agent", "se-darwin")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == "se-darwin has recorded 0 transitions\n"
    answer = json.loads(ask(name, "--agent", "se-darwin", "--json").stdout)
    assert answer == {"agent": "se-darwin", "transitions": 0}
