from pathlib import Path

from benchmarks.policy.corrections_table import PRECISIONS, measure_corrections
from benchmarks.policy.scores import Kept
from benchmarks.policy.subjects import Subject
from infrastructure.policy.corrections import CORRECTIONS


def test_corrections_have_more_to_do_in_bf16(subject: Subject, tmp_path: Path) -> None:
    results = measure_corrections(
        subject, Kept(tmp_path, {}), new_tokens=6, group=4, seed=0, resamples=5
    )

    assert [(each.precision, each.correction) for each in results] == [
        (precision, name) for precision in PRECISIONS for name in CORRECTIONS
    ]
    stats = {(each.precision, each.correction): each.stats for each in results}
    dropped = "dropped_fraction"
    bf16, fp16 = (stats[each, "geometric-mask"][dropped] for each in PRECISIONS)
    assert bf16.figure > fp16.figure
    assert stats["bf16", "none"][dropped].figure == 0
    for each in results:
        for interval in each.stats.values():
            assert 0 <= interval.low <= interval.high
