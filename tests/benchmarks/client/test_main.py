"""The benchmark of the client measures what it says."""

import pytest

from benchmarks.client.__main__ import main


@pytest.mark.process
def test_each_figure_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--calls", "20", "--imports", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "what",
        "wheel",
        "import",
        "import, CPU time",
        "stopped: first rank",
        "stopped: rank",
        "stopped: cycle, spooled",
        "stopped: record, spooled",
    ]
    assert all(("KB" if line.startswith("wheel") else "ms") in line for line in lines[1:])
