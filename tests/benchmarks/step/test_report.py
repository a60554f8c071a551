import csv

from benchmarks.measuring.spread import Spread
from benchmarks.measuring.table import write_csv
from benchmarks.step import report
from benchmarks.step.results import Case, Figure, Measured, NotRun

MACHINE = {"device": "a device", "torch": "2.x"}
RESULTS = [
    Measured(
        case=Case(size="tiny", loop="accelerate", precision="fp16"),
        effective="fp32",
        seconds=(0.001, 0.002, 0.003),
        host_reads=0.5,
        peak_bytes=3 * 1024 * 1024,
        note="a note",
    ),
    NotRun(case=Case(size="tiny", loop="ours", precision="tf32"), reason="TF32 exists elsewhere"),
    NotRun(case=Case(size="tiny", loop="folded", precision="tf32"), reason="TF32 exists elsewhere"),
]


def test_csv_rows_name_device_torch_and_both_precisions(tmp_path):
    path = tmp_path / "new" / "step.csv"
    write_csv(path, report.step_rows(RESULTS, MACHINE), report.STEP_COLUMNS)
    with path.open(newline="") as file:
        first, second, _ = csv.DictReader(file)
    assert first == {
        "device": "a device",
        "torch": "2.x",
        "size": "tiny",
        "loop": "accelerate",
        "mode": "eager",
        "requested": "fp16",
        "effective": "fp32",
        "milliseconds": "2.0000",
        "low_quartile": "1.5000",
        "high_quartile": "2.5000",
        "rounds": "3",
        "host_reads_per_step": "0.5",
        "peak_mebibytes": "3.0",
        "remark": "a note",
    }
    assert (second["requested"], second["effective"]) == ("tf32", "not run")
    assert second["remark"] == "TF32 exists elsewhere"


def test_the_table_names_cases_not_run_with_the_reason():
    text = report.format_steps(RESULTS, MACHINE)
    assert "fp32" in text.splitlines()[1]
    assert "(2 cases: size tiny; loop ours, folded; requested tf32; mode eager): TF32" in text


def test_figures_end_in_limit_and_verdict():
    text = report.format_figures(
        [
            Figure(what="passed", spread=Spread.of([0.7]), at_most=0.8),
            Figure(what="missed", spread=Spread.of([0.9]), at_most=0.8),
            Figure(what="unlimited", spread=Spread.of([0.9])),
            Figure(what="refused", at_most=0.8, reason="refused: both computed fp32"),
            Figure(what="not shown", reason="not run: no limit, no figure"),
        ]
    )
    header, *lines = text.splitlines()
    assert header.endswith("limit")
    assert [line.split()[0] for line in lines] == ["passed", "missed", "unlimited", "refused"]
    ends = [line[header.index("limit") :].split()[:2] for line in lines]
    assert ends == [["0.8", "pass"], ["0.8", "miss"], ["-", "no"], ["0.8", "refused:"]]
