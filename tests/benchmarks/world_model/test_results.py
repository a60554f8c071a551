"""What was measured is found again; the newest record of a measurement counts."""

from benchmarks.world_model.results import Results


def record(side="ours", seed=0, **figures):
    return {"side": side, "set": "wine", "seed": seed, "quick": True, **figures}


def test_records_are_found_again(tmp_path):
    results = Results(tmp_path / "kept")
    results.keep(record(gain=1.0))
    results.keep(record(gain=2.0))
    results.keep(record(side="peers"))
    again = Results(tmp_path / "kept")
    assert set(again) == {("ours", "wine", 0, True), ("peers", "wine", 0, True)}
    assert again["ours", "wine", 0, True]["gain"] == 2.0
    assert ("ours", "wine", 0, False) not in again


def test_a_torn_line_is_measured_again(tmp_path):
    results = Results(tmp_path)
    results.keep(record())
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"side": "ours", "set": ')
    assert len(list(Results(tmp_path))) == 1
