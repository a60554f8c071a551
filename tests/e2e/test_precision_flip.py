"""FP16 in earnest on a CPU, and the way back to FP32 in a running job."""

from collections.abc import Callable

import pytest

from tests.patience import crowding

pytestmark = pytest.mark.e2e

DEADLINE_SECONDS = 2.0
SCALE = "genesis_fp16_loss_scale"


def _effective(daemon) -> tuple[str, str]:
    """Effective precision and reason that the metrics show, one each."""
    [labels] = daemon.metrics().labels("genesis_precision_info", agent="quick")
    return labels["effective"], labels["reason"]


def _steps(daemon) -> tuple[float, float]:
    """Steps attempted in any precision, and those in FP16."""
    metrics = daemon.metrics()
    return (
        metrics.value("genesis_training_steps_total", agent="quick"),
        metrics.value("genesis_fp16_training_steps_total", agent="quick"),
    )


@pytest.fixture
def acknowledged(
    training, record_property: Callable[[str, object], None]
) -> Callable[[tuple[str, str], str], None]:
    """Wait for the metric that tells of the worker's acknowledgement; hold it to the deadline."""

    def wait(expected: tuple[str, str], reason: str) -> None:
        seconds = training.wait_for(
            lambda: _effective(training) == expected, f"to be in {expected}"
        )
        record_property("measured", f"{seconds:.2f} s after {reason}: {' '.join(expected)}")
        assert seconds < DEADLINE_SECONDS * crowding()

    return wait


def _goes_on(daemon, *, in_fp16: bool) -> None:
    """The job makes steps, and makes them in FP16 or not."""
    # What was under way when the precision changed is reported with the next statistics.
    begun, _ = _steps(daemon)
    daemon.wait_for(lambda: _steps(daemon)[0] >= begun + 20, "to train on")
    total, fp16 = _steps(daemon)
    daemon.wait_for(lambda: _steps(daemon)[0] >= total + 40, "to train on")
    assert (_steps(daemon)[1] > fp16) == in_fp16


def _nothing_lost(daemon) -> None:
    """One attempt, and each of its steps counted once."""
    assert len(daemon.events("started")) == 1
    statistics = daemon.events("step_stats")
    assert sum(event.attempted for event in statistics) == statistics[-1].step


def test_overflows_and_the_scale_are_real(training) -> None:
    metrics = training.metrics()
    overflows = metrics.value("genesis_fp16_overflow_steps_total", agent="quick")
    assert overflows >= 5
    assert metrics.value("genesis_training_steps_total", outcome="overflow") == overflows
    assert metrics.value(SCALE, agent="quick") == 2.0 ** (34 - overflows)
    assert _effective(training) == ("fp16", "default")


def test_the_flag_rolls_back_a_running_job_and_forth(training, acknowledged) -> None:
    scale = training.metrics().value(SCALE, agent="quick")

    training.configure(ENABLE_FP16_TRAINING="false")
    acknowledged(("fp32", "flag"), "flag off is written")
    assert training.metrics().value(SCALE, agent="quick") == 1
    assert training.metrics().value("genesis_precision_rollbacks_total", reason="flag") == 1
    _goes_on(training, in_fp16=False)

    training.configure(ENABLE_FP16_TRAINING="true")
    acknowledged(("fp16", "default"), "flag on is written")
    assert training.metrics().value(SCALE, agent="quick") == scale
    _goes_on(training, in_fp16=True)
    _nothing_lost(training)


def test_an_operator_rolls_back_a_running_job_and_forth(training, acknowledged) -> None:
    scale = training.metrics().value(SCALE, agent="quick")

    done = training.cli("precision", "set", "fp32", "--reason", "loss looks odd")
    assert done.returncode == 0, done.stdout + done.stderr
    acknowledged(("fp32", "operator"), "precision set has returned")
    _goes_on(training, in_fp16=False)

    done = training.cli("precision", "clear", "--reason", "it was the data")
    assert done.returncode == 0, done.stdout + done.stderr
    acknowledged(("fp16", "default"), "precision clear has returned")
    assert training.metrics().value(SCALE, agent="quick") == scale
    _goes_on(training, in_fp16=True)
    _nothing_lost(training)


def test_a_wrong_edit_changes_nothing(training) -> None:
    """One that may mean true: the settings in force stay, and the failure is shown."""
    training.configure(ENABLE_FP16_TRAINING="treu")
    training.wait_for(
        lambda: training.metrics().value("genesis_config_reload_success") == 0, "to refuse"
    )
    assert _effective(training) == ("fp16", "default")
    assert "treu" in training.log
    _goes_on(training, in_fp16=True)
