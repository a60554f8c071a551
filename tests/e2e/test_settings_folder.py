"""The settings file as kubelet mounts a ConfigMap: links that are swapped, never a file written."""

import itertools
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

SWAPS = 4


class ConfigMapFolder:
    """Writes *folder* as kubelet's atomic writer does.

    ``.env`` is a link to ``..data/.env``, ``..data`` one to a folder named for its time. An update
    makes a new such folder, a new link beside the old one, renames it over, and removes the old
    folder: no file of the name ``.env`` ever changes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()

    def write(self, text: str) -> None:
        """Publish *text* as the content of ``.env``."""
        data = self._folder / "..data"
        old = self._folder / data.readlink() if data.is_symlink() else None
        new = self._folder / f"..2026_11_21_00_00_00.{next(self._numbers):09}"
        new.mkdir()
        (new / ".env").write_text(text)
        swapped = self._folder / "..data_tmp"
        swapped.symlink_to(new.name)
        swapped.rename(data)
        if old is None:
            (self._folder / ".env").unlink(missing_ok=True)
            (self._folder / ".env").symlink_to("..data/.env")
        else:
            shutil.rmtree(old)


def test_a_configmap_swapped_again_and_again_switches_a_running_job(daemon) -> None:
    """Watchers of files see the first swap and miss the second; the daemon must miss none."""
    mounted = ConfigMapFolder(daemon.folder)

    def configure(**settings: object) -> None:
        daemon.settings |= settings
        mounted.write("".join(f"{name}={value}\n" for name, value in daemon.settings.items()))

    configure(
        GENESIS_CPU_HALF="true",
        GENESIS_BASELINE_EVERY_RUNS=0,
        GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS=1_000_000,
        GENESIS_AGENTS__QUICK__SETTINGS__BATCHES_PER_EPOCH=250,
        GENESIS_AGENTS__QUICK__SETTINGS__PAUSE_SECONDS=0.02,
    )
    assert (daemon.folder / ".env").is_symlink()
    daemon.start()

    def effective(expected: tuple[str, str]) -> bool:
        shown = daemon.metrics().labels("genesis_precision_info", agent="quick")
        return expected in [(labels["effective"], labels["reason"]) for labels in shown]

    daemon.wait_for(lambda: effective(("fp16", "default")), "to train in FP16")
    for flag, expected in itertools.islice(
        itertools.cycle([("false", ("fp32", "flag")), ("true", ("fp16", "default"))]), SWAPS
    ):
        configure(ENABLE_FP16_TRAINING=flag)
        daemon.wait_for(lambda expected=expected: effective(expected), f"to see {flag}")
    assert len(daemon.events("started")) == 1, "in one job, without a restart"
    assert daemon.log.count("settings_reloaded") == SWAPS
