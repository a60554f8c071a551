"""Many installed agents for measurements: ``python -m tests.e2e.many_agents FOLDER COUNT``.

Put FOLDER on ``PYTHONPATH``: each of the COUNT distributions in it has the metadata that an
installer would write, and one agent of the module that they share, which imports no torch.
"""

import argparse
import base64
import hashlib
import textwrap
from pathlib import Path

MODULE = "idle_agents"
_SOURCE = '''
    """Agents that train nothing: one class for each attribute ``AgentNNNN``."""

    from dataclasses import replace

    from infrastructure.agent_contract import Schedule
    from infrastructure.agent_contract.agent import InsufficientDataError


    class Idle:
        contract_version = 1

        def schedule(self):
            return replace(Schedule.parse({schedule!r}), catch_up={catch_up!r})

        def settings_model(self):
            return None

        def collect(self, context):
            yield from ()

        def build_job(self, context, transitions):
            raise InsufficientDataError("transitions", 0, 1)

        def publish(self, context, model, report):
            raise NotImplementedError


    def __getattr__(name):
        if not name.startswith("Agent"):
            raise AttributeError(name)
        return type(name, (Idle,), {{"name": f"agent-{{name[5:]}}"}})
'''


def agent_name(number: int) -> str:
    """Name of the agent of that number."""
    return f"agent-{number:04}"


def install_agent(folder: Path, number: int, *, version: str = "1.0") -> Path:
    """Write the metadata of one agent into *folder*; return the folder of the metadata."""
    distribution = f"idle-agent-{number:04}"
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
        "entry_points.txt": (
            f"[genesis.agents]\n{agent_name(number)} = {MODULE}:Agent{number:04}\n"
        ),
    }
    for name, text in files.items():
        (info / name).write_text(text)
    listed = [folder / f"{MODULE}.py", *(info / name for name in files)]
    (info / "RECORD").write_text(
        "".join(f"{path.relative_to(folder)},{_hash(path)}\n" for path in listed)
        + f"{info.name}/RECORD,,\n"
    )
    return info


def install_agents(
    folder: Path, count: int, *, schedule: str = "every 1d", catch_up: str = "none"
) -> None:
    """Write *count* distributions and the module that they share into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    source = textwrap.dedent(_SOURCE).lstrip().format(schedule=schedule, catch_up=catch_up)
    (folder / f"{MODULE}.py").write_text(source)
    for number in range(count):
        install_agent(folder, number)


def _hash(path: Path) -> str:
    content = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"sha256={digest},{len(content)}"


def main() -> None:
    """Install what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--schedule", default="every 1d", help="of every agent: every 1h, or cron")
    parser.add_argument("--catch-up", default="none", choices=["none", "latest", "all"])
    options = parser.parse_args()
    install_agents(
        options.folder, options.count, schedule=options.schedule, catch_up=options.catch_up
    )


if __name__ == "__main__":
    main()
