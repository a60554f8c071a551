"""Metadata of installed plugins, and the check that our library is not shadowed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from genesis_fp16.plugins import (
    ShadowedPackageError,
    UnknownAgentError,
    agent_entry_points,
    check_not_shadowed,
    entry_point_of,
)
from genesis_fp16.plugins.discovery import (
    AGENTS_GROUP,
    MAX_DEFINITION_BYTES,
    DefinitionsUnreadableError,
    configured_agents,
    definition_of,
    installed_agent,
    installed_agents,
    installed_entry_points,
    registration_error,
)
from infrastructure.trajectories.record_source.definition import MAX_BYTES


def test_agents_are_found_without_importing_them(
    install_plugin: Callable[..., None], tmp_path: Path
) -> None:
    install_plugin("broken", "raise RuntimeError")
    assert agent_entry_points(tmp_path)["broken"] == "broken_plugin:AnyAgent"
    assert entry_point_of("se-darwin", tmp_path) == "agents.se_darwin_agent:SEDarwinAgent"
    with pytest.raises(UnknownAgentError, match=r"'nobody'.*broken, policy, se-darwin"):
        entry_point_of("nobody", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("entry_points.txt", b"\xf7\x00", "UnicodeDecodeError"),
        ("entry_points.txt", b"[genesis.agents]\nno equals sign\n", "TypeError"),
        ("METADATA", b"\xff", "UnicodeDecodeError"),
    ],
)
def test_damaged_metadata_costs_only_its_own_distribution(
    install_plugin: Callable[..., None],
    tmp_path: Path,
    file: str,
    content: bytes,
    why: str,
) -> None:
    install_plugin("fine")
    install_plugin("damaged")
    info = tmp_path / "site" / "damaged_plugin-1.5.dist-info"
    (info / file).write_bytes(content)
    unreadable: list[str] = []
    points = installed_entry_points(AGENTS_GROUP, unreadable)
    assert [point.name for point in points] == ["fine", "se-darwin"]
    [problem] = unreadable
    assert str(info) in problem
    assert why in problem


def test_an_agent_can_be_off_by_default_and_need_an_extra(
    install_plugin: Callable[..., None], tmp_path: Path
) -> None:
    install_plugin("choosy", group="genesis.optional_agents")
    info = tmp_path / "site" / "choosy_plugin-1.5.dist-info"
    points = (info / "entry_points.txt").read_text().strip()
    requirements = {
        "pydantic>=2": "",
        "pydantic>=900": "pydantic, which its extra needs: pip install 'choosy-plugin[more-of]'",
        "no-such-thing": (
            "no-such-thing, which its extra needs: pip install 'choosy-plugin[more-of]'"
        ),
        "not a requirement": "",
    }
    for requirement, missing in requirements.items():
        (info / "entry_points.txt").write_text(f"{points} [more-of]\n")
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: choosy-plugin\nVersion: 1.5\n"
            f"Requires-Dist: {requirement} ; extra == 'more-of'\n"
            "Requires-Dist: not-this ; extra == 'other'\n"
        )
        (point,) = (agent for agent in installed_agents(tmp_path) if agent.name == "choosy")
        assert (point.optional, point.missing) == (True, missing)
        assert point.target == "choosy_plugin:AnyAgent"
    assert not next(
        agent for agent in installed_agents(tmp_path) if agent.name == "se-darwin"
    ).optional


def test_library_of_ours_is_not_shadowed() -> None:
    check_not_shadowed()


def test_a_library_of_that_name_in_the_path_does_not_shadow_ours(tmp_path: Path) -> None:
    stranger = tmp_path / "infrastructure"
    (stranger / "training").mkdir(parents=True)
    (stranger / "__init__.py").write_text(
        "__path__ = __import__('pkgutil').extend_path(__path__, __name__)"
    )
    (stranger / "training" / "__init__.py").write_text("")
    script = (
        "import os\nfrom genesis_fp16.plugins import check_not_shadowed\n"
        "check_not_shadowed()\nimport infrastructure.training.config as config\n"
        "print(config.__file__, repr(os.environ['PYTHONPATH']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = Path(__file__).resolve().parents[3] / "infrastructure" / "training" / "config.py"
    assert done.stdout.split() == [str(expected), "''"], "nor that of a child"


def test_a_missing_library_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "infrastructure.training", None)
    with pytest.raises(ShadowedPackageError, match=r"expected below .*an environment of its own"):
        check_not_shadowed()
    assert issubclass(ShadowedPackageError, ImportError)


def test_each_definition_is_an_agent(tmp_path: Path) -> None:
    folder = tmp_path / "agents.d"
    assert configured_agents(tmp_path) == []
    folder.mkdir()
    (folder / "seo.toml").write_text("[source]\n")
    for name in (".seo.toml", "seo.toml~", "notes.txt"):
        (folder / name).write_text("not read")
    [agent] = configured_agents(tmp_path)
    assert (agent.name, agent.target) == ("seo", "agents.replay_agent:ReplayAgent")
    assert (agent.distribution, agent.definition) == ("agents.d/seo.toml", folder / "seo.toml")
    before = agent.version
    (folder / "seo.toml").write_text("[source]\nx = 1\n")
    assert configured_agents(tmp_path)[0].version != before
    assert installed_agent("seo", tmp_path).definition == definition_of(tmp_path, "seo")
    assert definition_of(tmp_path, "legal") is None


def test_a_definition_cannot_take_the_name_of_an_installed_agent(tmp_path: Path) -> None:
    folder = tmp_path / "agents.d"
    folder.mkdir()
    (folder / "se-darwin.toml").touch()
    points = installed_agents(tmp_path)
    problems = {
        registration_error(point, points, "agent") for point in points if point.name == "se-darwin"
    }
    [problem] = problems
    assert "agents.d/se-darwin.toml and genesis-fp16 both" in problem


def test_a_definition_that_cannot_be_read_costs_itself_alone(tmp_path: Path) -> None:
    folder = tmp_path / "agents.d"
    folder.mkdir()
    (folder / "Big One.toml").touch()
    (folder / "dir.toml").mkdir()
    (folder / "large.toml").write_bytes(b"#" * (MAX_DEFINITION_BYTES + 1))
    (folder / "nowhere.toml").symlink_to(tmp_path / "nowhere")
    (folder / "seo.toml").touch()
    points = configured_agents(tmp_path)
    errors = {point.name: registration_error(point, points, "agent") for point in points}
    assert "valid agent name" in errors["Big One"]
    remedy = "make it a file that this user may read, or remove it"
    assert errors["dir"].endswith(f"dir.toml cannot be read: is not a regular file; {remedy}")
    assert "256 KiB" in errors["large"]
    assert errors["nowhere"].endswith(f"cannot be read: No such file or directory; {remedy}")
    assert errors["seo"] == ""


def test_a_folder_of_definitions_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "agents.d").touch()
    with pytest.raises(DefinitionsUnreadableError, match=r"agents\.d .*Not a dir"):
        installed_agents(tmp_path)


def test_the_agent_reads_as_much_of_a_definition_as_the_scan() -> None:
    assert MAX_DEFINITION_BYTES == MAX_BYTES
