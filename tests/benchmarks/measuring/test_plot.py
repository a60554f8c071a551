import sys

import pytest

from benchmarks.measuring.not_run import NotRunError
from benchmarks.measuring.plot import plot_bars


def test_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="not installed: the extra 'bench' has it")
    path = tmp_path / "step.png"
    plot_bars(path, "title", "ms", {"tiny": {"a": 1.0, "b": 2.0}, "small": {"a": 3.0}})
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(NotRunError, match="bench"):
        plot_bars(tmp_path / "step.png", "title", "ms", {"tiny": {"a": 1.0}})
