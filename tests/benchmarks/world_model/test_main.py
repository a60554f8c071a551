"""One small set from its records to the tables, in this process."""

import pytest

pytest.importorskip("sklearn", reason="not installed: make bench-world-model")

from benchmarks.world_model import __main__ as command
from benchmarks.world_model.measure import OURS, PEERS, measure
from benchmarks.world_model.results import Results

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # warnings of the peers
    pytest.mark.process,  # trains for seconds
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    results = Results(folder)
    for side in (OURS, PEERS):
        for name in ("wine", "diabetes"):
            if name == "wine" or side == OURS:
                results.keep(measure(side, name, 0, quick=True))
    return folder


def test_both_sides_are_held_to_the_same_rows(kept):
    results = Results(kept)
    ours, peers = (results[side, "wine", 0, True] for side in (OURS, PEERS))
    assert ours["groups"] == peers["groups"]
    assert ours["group_rows"] == peers["group_rows"]
    assert set(peers["losses"]) == {"linear", "HGB", "RF", "kNN", "MLP", "base rate"}


def test_a_record_tells_what_the_model_says_of_itself(kept):
    record = Results(kept)[OURS, "wine", 0, True]
    assert 0.8 < record["accuracy"] <= 1.0
    assert 0.0 <= record["mean_confidence"] <= 1.0
    for kind in ("gap", "far"):
        assert 0.0 <= record[f"{kind}_accuracy"] <= 1.0
        assert 0.0 <= record[f"{kind}_confidence"] <= 1.0
    assert record["far_accuracy"] < record["accuracy"]
    assert isinstance(record["published"], bool)
    assert record["seconds"]["ours"] > 0
    assert not record["gain_is_fresh"]


def test_a_number_is_stated_with_its_deviation(kept):
    record = Results(kept)[OURS, "diabetes", 0, True]
    assert 0.3 < record["error_over_deviation"] < 3.0
    assert 0.6 < record["coverage"] <= 1.0


def test_tables_are_made_of_what_is_kept(kept, capsys):
    arguments = ["--quick", "--sets", "wine", "--seeds", "0", "--results", str(kept)]
    assert command.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "log loss: best, or not worse than the best" in printed
    assert " of 1" in printed
    assert "Summary of the sets that are held back" in printed


def test_an_unknown_set_is_refused(tmp_path, capsys):
    assert command.main(["--sets", "wines", "--results", str(tmp_path)]) == 2
    assert "'wines' is not a data set" in capsys.readouterr().err
