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
    installed_agents,
    installed_entry_points,
)


def test_agents_are_found_without_importing_them(install_plugin: Callable[..., None]) -> None:
    install_plugin("broken", "raise RuntimeError")
    assert agent_entry_points()["broken"] == "broken_plugin:AnyAgent"
    assert entry_point_of("se-darwin") == "agents.se_darwin_agent:SEDarwinAgent"
    with pytest.raises(UnknownAgentError, match=r"'nobody'.*broken, policy, se-darwin"):
        entry_point_of("nobody")


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
    found = installed_entry_points(AGENTS_GROUP, unreadable)
    assert [point.name for point in found] == ["fine", "se-darwin"]
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
        (point,) = (each for each in installed_agents() if each.name == "choosy")
        assert (point.optional, point.missing) == (True, missing)
        assert point.target == "choosy_plugin:AnyAgent"
    assert not next(each for each in installed_agents() if each.name == "se-darwin").optional


def test_library_of_ours_is_not_shadowed() -> None:
    check_not_shadowed()


def test_shadowed_library_is_refused_with_the_remedy(tmp_path: Path) -> None:
    stranger = tmp_path / "infrastructure"
    (stranger / "training").mkdir(parents=True)
    (stranger / "__init__.py").write_text(
        "__path__ = __import__('pkgutil').extend_path(__path__, __name__)"
    )
    (stranger / "training" / "__init__.py").write_text("")
    script = (
        "from genesis_fp16.plugins import ShadowedPackageError, check_not_shadowed\n"
        "try:\n    check_not_shadowed()\nexcept ShadowedPackageError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"found {stranger}" in done.stdout
    assert "unset PYTHONPATH" in done.stdout
    assert issubclass(ShadowedPackageError, ImportError)
