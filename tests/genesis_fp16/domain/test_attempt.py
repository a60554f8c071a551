from pathlib import Path

from genesis_fp16.domain.attempt import Attempt, attempt_folder, events_path


def test_files_of_an_attempt_lie_below_the_home(tmp_path: Path, monkeypatch) -> None:
    attempt = Attempt(run_id="r", number=2, incarnation="i", started_at=1.0)
    monkeypatch.chdir(tmp_path)
    folder = attempt_folder(Path("home"), attempt)
    assert folder == tmp_path / "home" / "runs" / "r" / "attempts" / "2"
    assert events_path(Path("home"), attempt).parent == folder
