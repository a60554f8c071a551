"""What the daemon's tests share."""

import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from genesis_fp16.settings import Settings
from genesis_fp16.store import Store

InstallPlugin = Callable[..., None]

ANY_AGENT = """
from infrastructure.agent_contract import Schedule


class AnyAgent:
    name = {name!r}
    contract_version = 1

    def schedule(self):
        return Schedule(every_seconds=3600)

    def settings_model(self):
        return None

    def collect(self, context):
        yield from ()

    def build_job(self, context, transitions):
        raise NotImplementedError

    def publish(self, context, model, report):
        raise NotImplementedError
"""


@pytest.fixture
def any_agent() -> Callable[[str], str]:
    """Source of an agent that does nothing, by its name."""
    return lambda name: ANY_AGENT.format(name=name)


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallPlugin:
    """Put a distribution with one agent on this process's path and on its children's."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)

    def install(
        name: str,
        source: str | None = None,
        *,
        factory: str = "AnyAgent",
        distribution: str | None = None,
        module: str | None = None,
    ) -> None:
        distribution = distribution or f"{name}-plugin"
        module = module or distribution.replace("-", "_")
        source = ANY_AGENT.format(name=name) if source is None else textwrap.dedent(source)
        (site / f"{module}.py").write_text(source)
        info = site / f"{distribution.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n"
        )
        (info / "entry_points.txt").write_text(f"[genesis.agents]\n{name} = {module}:{factory}\n")

    return install


@pytest.fixture
def home_settings(tmp_path: Path) -> Settings:
    """Settings of a home of its own, with short waits."""
    return Settings(home=tmp_path / "home", retry_backoff_seconds=0.01, metrics_port=0)


@pytest.fixture
def store(home_settings: Settings) -> Iterator[Store]:
    """A new, real database in that home."""
    with closing(Store.open(home_settings)) as store:
        yield store


@pytest.fixture
def standin_command() -> tuple[str, ...]:
    """Command line of a worker that needs no torch and behaves as its settings say."""
    return (sys.executable, str(Path(__file__).with_name("standin_worker.py")))


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Wait until something holds; give up after long enough for a loaded machine."""

    def wait(holds: Callable[[], object], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.01)

    return wait
