"""What workers leave; a pre-flight report is written and read in the pre-flight's own tests."""

from pathlib import Path

from genesis_fp16.domain.last_training import LastTraining
from genesis_fp16.plugins.agent_folder import (
    read_last_training,
    read_preflight,
    write_last_training,
)


def test_a_report_that_is_missing_or_of_another_version_is_none(tmp_path: Path) -> None:
    assert read_preflight(tmp_path) is None
    (tmp_path / "preflight.json").write_text('{"of": "another version"}')
    assert read_preflight(tmp_path) is None


def test_the_last_training_is_read_back_unless_another_version_wrote_it(tmp_path: Path) -> None:
    assert read_last_training(tmp_path) is None
    last = LastTraining(shape="1f", collect_seconds=0.5, train_seconds=2.0)
    write_last_training(tmp_path, last)
    assert read_last_training(tmp_path) == last
    (tmp_path / "last-training.json").write_text('{"of": "another version"}')
    assert read_last_training(tmp_path) is None
