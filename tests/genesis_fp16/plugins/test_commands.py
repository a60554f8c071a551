"""Commands as their distributions declare them, and the import of their code."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from genesis_fp16.plugins.commands import (
    CommandUnavailableError,
    PluginCommand,
    load_command,
    plugin_commands,
)

GROUP = "genesis.commands"
InstallCommand = Callable[..., None]


@pytest.fixture
def install_command(install_plugin: Callable[..., None]) -> InstallCommand:
    """Install a distribution with one command; by default one that prints."""

    def install(name: str, source: str = "def command(): print('hello')", **changes: str) -> None:
        install_plugin(name, source, **{"factory": "command", "group": GROUP, **changes})

    return install


def find(name: str, built_in: tuple[str, ...] = ()) -> PluginCommand:
    [matching] = [command for command in plugin_commands(built_in) if command.point.name == name]
    return matching


def test_a_command_is_found_by_its_metadata_and_loaded_when_asked(
    install_command: InstallCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    install_command("hello-there")
    plugin_command = find("hello-there")
    assert (plugin_command.point.distribution, plugin_command.point.version) == (
        "hello-there-plugin",
        "1.5",
    )
    assert plugin_command.problem == ""
    command = load_command(plugin_command)
    assert callable(command)
    command()
    assert capsys.readouterr().out == "hello\n"


def test_the_metadata_tells_what_cannot_work(install_command: InstallCommand) -> None:
    install_command("twin", distribution="first")
    install_command("twin", distribution="second")
    install_command("Upper")
    install_command("goalless", factory="")
    problems = {command.point.name: command.problem for command in plugin_commands(("serve",))}
    assert problems["evolve"] == ""
    assert "first and second" in problems["twin"]
    assert "must match" in problems["Upper"]
    assert "module:attribute" in problems["goalless"]
    for command in plugin_commands(()):
        if command.problem:
            with pytest.raises(CommandUnavailableError, match=command.point.name):
                load_command(command)


def test_a_built_in_command_takes_the_place_of_a_plugins(install_command: InstallCommand) -> None:
    install_command("serve")
    assert "built-in" in find("serve", ("serve",)).problem
    assert find("serve").problem == ""


def test_a_module_that_is_missing_shows_in_the_metadata(
    install_command: InstallCommand, tmp_path: Path
) -> None:
    install_command("moved")
    (tmp_path / "site" / "moved_plugin.py").unlink()
    assert "'moved_plugin'" in find("moved").problem


@pytest.mark.parametrize(
    ("name", "source", "cause"),
    [
        ("command-raises", "raise RuntimeError('no\\nluck')", "RuntimeError: no luck"),
        ("command-exits", "import sys; sys.exit(0)", "called sys.exit(0)"),
        ("command-lacks", "import no_such_dependency", "'no_such_dependency'"),
        ("command-garbled", "def", "SyntaxError"),
        ("command-elsewhere", "x = 1", "command does not exist"),
    ],
)
def test_code_that_cannot_be_imported_is_refused_in_one_line(
    install_command: InstallCommand, name: str, source: str, cause: str
) -> None:
    install_command(name, source)
    with pytest.raises(CommandUnavailableError) as caught:
        load_command(find(name))
    message = str(caught.value)
    assert f"{name}-plugin 1.5" in message
    assert cause in message
    assert f"uninstall {name}-plugin" in message
    assert "\n" not in message
    assert caught.value.exit_code == os.EX_CONFIG


def test_an_import_can_be_interrupted(install_command: InstallCommand) -> None:
    install_command("command-interrupted", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_command(find("command-interrupted"))


def test_a_module_from_elsewhere_is_refused(
    install_command: InstallCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_command("command-hidden")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "command_hidden_plugin.py").write_text("def command(): ...")
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    with pytest.raises(CommandUnavailableError, match="is shadowed"):
        load_command(find("command-hidden"))
