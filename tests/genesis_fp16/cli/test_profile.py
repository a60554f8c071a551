"""What a profile looks like; a real one is measured and printed in ``daemon/test_profile.py``."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from genesis_fp16.cli import profile as command
from genesis_fp16.cli.app import app
from infrastructure.events.profile_report import OperatorCost, PhaseCost, ProfileReport, StepCost
from tests.genesis_fp16.domain.test_profile_verdict import FP16, report

LONG = OperatorCost(name="autograd::engine::evaluate_function: " + 50 * "x", calls=3, seconds=1e-5,
                    share=0.25)  # fmt: skip


def shown(measured: ProfileReport, capsys: pytest.CaptureFixture[str]) -> list[str]:
    command.print_report(measured, "our-agent")
    return capsys.readouterr().out.splitlines()


def test_what_was_measured_and_what_was_computed_from_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def phase(name: str, measured: int, whole: float | None, **fields: object) -> PhaseCost:
        return PhaseCost(
            phase=name, measured=measured, whole=whole, wall_seconds=2.0, cpu_seconds=1.0, **fields
        )

    lines = shown(
        report(
            phase("collect", 1, 8.0, at_most=True),
            phase("forward", 1000, 5000.0),
            phase("statistics", 1000, None),
            phase("publish", 1, 1.0, peak_bytes=300 * 2**20, peak_cuda_bytes=2**21),
            steps=(StepCost(precision="fp32", seconds=1e-3, busy_share=0.4, operators=(LONG,)),),
            device="cuda",
            precision=FP16,
            total_steps=None,
        ),
        capsys,
    )
    rows = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert rows["collect"][:6] == ["2", "s,", "at", "most", "8.00", "16.00"]
    assert rows["forward"][:5] == ["1,000", "of", "5,000", "5.00", "10.00"]
    assert rows["statistics"] == ["1,000", "of", "?"]  # of unknown length
    assert rows["publish"][0] == "all"
    assert rows["publish"][-4:] == ["300", "MiB", "2", "MiB"]
    assert rows["fp32"] == ["1.00", "ms", "0%", "40%"]
    assert any(line.startswith("x" * 41 + "...") for line in lines)
    assert any("unknown number" in line for line in lines)
    assert [line for line in lines if len(line) > 80] == []


def test_help_and_a_wrong_option() -> None:
    result = CliRunner().invoke(app, ["profile", "--help"])
    assert "nothing is published" in " ".join(result.stdout.split())
    assert CliRunner().invoke(app, ["profile", "a", "--collect-seconds", "-1"]).exit_code == 2
