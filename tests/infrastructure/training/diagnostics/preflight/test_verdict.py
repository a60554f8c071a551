import pytest

from infrastructure.events.preflight_report import PrecisionMeasurement
from infrastructure.training.diagnostics.preflight.verdict import choose_precision


def found(precision: str, ratio: float | None = None, **changes: object) -> PrecisionMeasurement:
    values = {"precision": precision, "ratio": ratio, "ratio_error": 0.005}
    return PrecisionMeasurement.model_validate(values | changes)


FP32 = found("fp32", 1.0)


@pytest.mark.parametrize(
    ("halves", "on_cpu", "verdict"),
    [
        ([found("fp16", 0.5), found("bf16", 0.9)], False, "fp16"),
        ([found("fp16", 0.5), found("bf16", 0.9)], True, "bf16"),
        ([found("fp16", 0.5)], True, "fp32"),
        ([found("fp16", 0.5, usable=False), found("bf16", 0.6)], False, "bf16"),
        ([found("fp16", 1.2), found("bf16", 1.1)], False, "fp32"),
        ([found("bf16", 0.99)], False, "fp32"),
        ([found("bf16", 0.95, ratio_error=0.1)], False, "fp32"),
        ([found("bf16", None)], False, "fp32"),
        ([], False, "fp32"),
    ],
)
def test_verdict(halves: list[PrecisionMeasurement], on_cpu: bool, verdict: str) -> None:
    chosen, reasons = choose_precision([FP32, *halves], on_cpu=on_cpu)
    assert chosen == verdict
    assert reasons[0].startswith(f"{verdict.upper()}: ")
    assert len(reasons) == 1 + len(halves)


@pytest.mark.parametrize("fp16_ratio", [0.49, 0.51])
def test_of_two_equally_fast_the_more_exact_is_chosen(fp16_ratio: float) -> None:
    halves = [
        found("fp16", fp16_ratio, gradient_error=0.0005),
        found("bf16", 0.5, gradient_error=0.004),
    ]
    assert choose_precision([FP32, *halves], on_cpu=False)[0] == "fp16"
    halves[0] = found("fp16", 0.6, gradient_error=0.0005)
    assert choose_precision([FP32, *halves], on_cpu=False)[0] == "bf16"


def test_reasons_say_what_was_measured() -> None:
    halves = [
        found("fp16", usable=False, remarks=("layer 3 reaches 1e6",)),
        found("bf16", 0.62, ratio_error=0.01, gradient_error=0.004),
    ]
    reasons = choose_precision([FP32, *halves], on_cpu=False)[1]
    assert reasons[1] == "fp16: layer 3 reaches 1e6"
    assert reasons[2].startswith("bf16: a step takes 0.62 (±0.01) of FP32's time; ")
    assert reasons[2].endswith(" 0.004")
