"""Samples that agree on too much rounding between trainer and rollout, and what is changed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from genesis_fp16.daemon.precision_resolver import PrecisionResolver
from genesis_fp16.domain.guard import Detection, GuardSettings
from genesis_fp16.guard import Guard
from genesis_fp16.guard.mismatch import MismatchDetector
from genesis_fp16.plugins.probe import Hardware
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import Event, SetPrecision
from infrastructure.events.event import MismatchMeasured, PrecisionChanged
from infrastructure.policy.mismatch import MismatchObserver
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from tests.infrastructure.policy.mismatch.policy_job import FUNCTIONS, a_job

LIMITS = GuardSettings()


@pytest.fixture
def add(mismatched):
    def add(
        detector: MismatchDetector, *pair, on_probation=False, allowed=False, **changes
    ) -> Detection | None:
        return detector.add(
            mismatched(*pair, **changes).report,
            LIMITS,
            on_probation=on_probation,
            other_half_allowed=allowed,
        )

    return add


def test_three_samples_in_a_row_name_the_role_and_its_cure(add) -> None:
    detector = MismatchDetector()
    assert [add(detector), add(detector)] == [None, None]
    detection = add(detector)
    assert detection.trigger == "mismatch"
    assert detection.roles == {"rollout": "fp32"}
    assert detection.numbers["guilty"] == ["rollout"]
    assert detection.numbers["shares"]["rollout"] == pytest.approx(0.99, abs=0.01)
    assert detection.numbers["excess"] == [pytest.approx(2.02e-3)] * 3
    for said in ("(fp16)", "(bf16)", "0.00202 nats", "1e-09 if", "is 0.001", "3 samples", " 1% of"):
        assert said in detection.summary
    assert "rollout in bf16 causes it. Rollout changes to FP32" in detection.summary


def test_the_other_half_type_only_where_nobody_chose_one(add) -> None:
    free, chosen = MismatchDetector(), MismatchDetector()
    for detector, allowed, roles in (
        (free, True, {"policy": "fp16", "rollout": "fp16"}),
        (chosen, False, {}),
    ):
        add(detector, "bf16", "bf16", allowed=allowed)
        add(detector, "bf16", "bf16", allowed=allowed)
        detection = add(detector, "bf16", "bf16", allowed=allowed)
        assert detection.roles == roles
        cured = "Policy and rollout change to FP16" if allowed else "Every role changes to FP32"
        assert cured in detection.summary
    assert "policy in bf16 and rollout in bf16" in detection.summary


def test_one_sample_within_the_limit_ends_the_row(add) -> None:
    detector = MismatchDetector()
    sequence = ["bf16", "bf16", "fp16", "bf16", "bf16"]
    assert [add(detector, "fp16", half) for half in sequence] == [None] * 5
    assert add(detector) is not None


def test_reports_of_other_precisions_begin_a_new_row(add) -> None:
    detector = MismatchDetector()
    for pair in (("fp16", "bf16"), ("fp16", "bf16"), ("bf16", "fp16"), ("bf16", "fp16")):
        assert add(detector, *pair) is None
    assert add(detector, "bf16", "fp16").numbers["guilty"] == ["policy"]


def test_what_fp32_does_not_end_is_no_reason_to_change_a_precision(add) -> None:
    """A wrong temperature, or weights from many rounds ago."""
    detector = MismatchDetector()
    assert [add(detector, floor=0.5) for _ in range(9)] == [None] * 9


def test_on_probation_one_sample_is_enough(add) -> None:
    assert add(MismatchDetector(), on_probation=True) is not None


def test_samples_from_before_the_change_do_not_count_again(add) -> None:
    detector = MismatchDetector()
    assert [add(detector) for _ in range(3)][-1] is not None
    after = MismatchDetector(detector.detected)
    assert [add(after) for _ in range(9)] == [None] * 9
    detections = [add(after, "bf16", "fp16") for _ in range(3)]
    assert detections[-1] is not None, "another pair does"


@pytest.mark.process
def test_a_training_in_bf16_is_moved_to_fp16(
    store: Store, home_settings: Settings, tmp_path: Path
) -> None:
    """Worker's loop, guard and the rule for precisions, from the first sample to the cure."""
    settings = home_settings.model_copy(
        update={"precision": "bf16", "cpu_half": True, "guard_mismatch_kl": 1e-6}
    )
    cpu = Hardware(device="cpu", fp16=False, bf16=False, torch_version="2")
    run = store.enqueue("a", first_seed=0)
    assert store.begin_attempt(run.id, run.id) is not None
    guard = Guard(store, settings)
    resolver = PrecisionResolver(store, cpu, settings, guard)
    sent, samples, acknowledged = [resolver(run)], [], []

    def emit(event: Event) -> None:
        guard.on_event("a", run.id, event)
        if isinstance(event, MismatchMeasured):
            samples.append(event.report)
        if isinstance(event, PrecisionChanged):
            acknowledged.append(event.state)

    def commands() -> Iterator[SetPrecision]:
        if (state := resolver(run)) != sent[-1]:
            sent.append(state)
            yield SetPrecision(state=state)

    train(
        a_job(epochs=6),
        device=torch.device("cpu"),
        precision=sent[0],
        config=FP16TrainingConfig(cpu_half=True, loss_scale=256.0),
        options=LoopOptions(seed=3, checkpoint_interval_seconds=3600.0),
        folder=tmp_path / "checkpoints",
        emit=emit,
        commands=commands,
        observe_round=MismatchObserver(FUNCTIONS, 1, emit, cpu_half=True, clock=lambda: 0.0),
    )
    pairs = [(sample.policy, sample.rollout) for sample in samples]
    assert pairs == [("bf16", "bf16")] * 3 + [("fp16", "fp16")] * 3
    assert max(sample.k3 for sample in samples[3:]) < min(sample.k3 for sample in samples[:3]) / 10
    assert [state.effective for state in acknowledged] == ["bf16", "fp16"]
    assert acknowledged[-1].reason == "guard"
    assert acknowledged[-1].roles["rollout"] == "fp16/fp16/fp32"
    guard.refresh()
    [decision] = store.guard.history("a")
    assert decision.roles == {"policy": "fp16", "rollout": "fp16"}
    assert not decision.demands_fp32
