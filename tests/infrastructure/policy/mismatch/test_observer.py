"""Samples of a real training: when, of what, and that the training does not change."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from infrastructure.agent_contract.on_policy_job import OnPolicyJob
from infrastructure.events import PrecisionState, Role
from infrastructure.events.event import MismatchMeasured, Notice
from infrastructure.events.role_precision import FP32, RolePrecision, RolePrecisions
from infrastructure.policy.mismatch import COST_SHARE, MismatchObserver
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.training.precision.roles import PRESETS, RoleForward
from infrastructure.training.rounds import GeneratedRound
from tests.infrastructure.policy.mismatch.policy_job import FUNCTIONS, a_job, a_model, sampled

pytestmark = pytest.mark.process  # trains for seconds

CPU = torch.device("cpu")


class Clock:
    """Seconds that pass at each look."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 1000.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def run(
    job: OnPolicyJob,
    folder: Path,
    *,
    half: str = "bf16",
    roles: dict[Role, str] | None = None,
    interval: int = 1,
    clock: Clock | None = None,
) -> list:
    events: list = []
    observer = None
    if interval:
        functions = job.log_probs or FUNCTIONS
        observer = MismatchObserver(
            functions, interval, events.append, cpu_half=True, clock=clock or Clock()
        )
    train(
        job,
        device=CPU,
        precision=PrecisionState(
            requested=half, effective=half, reason="default", roles=roles or {}
        ),
        config=FP16TrainingConfig(cpu_half=True, loss_scale=256.0),
        options=LoopOptions(seed=3, checkpoint_interval_seconds=3600.0),
        folder=folder,
        emit=events.append,
        commands=list,
        observe_round=observer,
    )
    return events


def samples(events: list) -> list[MismatchMeasured]:
    return [event for event in events if isinstance(event, MismatchMeasured)]


def test_every_nth_round_is_sampled(tmp_path: Path) -> None:
    found = samples(run(a_job(epochs=5), tmp_path, interval=2))
    assert [event.round for event in found] == [0, 2, 4]
    assert [event.step for event in found] == [0, 2, 4]
    assert {(each.report.policy, each.report.rollout) for each in found} == {("bf16", "bf16")}
    assert all(each.report.floor_k3 < 1e-9 < each.report.k3 for each in found)
    assert all(each.report.sequences == 16 for each in found), "the first 16 of 20"


def test_the_warm_up_is_not_sampled(tmp_path: Path) -> None:
    found = samples(run(a_job(epochs=4, warm_up_rounds=2), tmp_path))
    assert [event.round for event in found] == [2, 3]


def test_the_training_does_not_change_by_a_bit(tmp_path: Path) -> None:
    plain, observed = a_job(), a_job()
    run(plain, tmp_path / "plain", interval=0)
    assert samples(run(observed, tmp_path / "observed"))
    for one, other in zip(plain.model.parameters(), observed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_precision_of_each_role_is_reported(tmp_path: Path) -> None:
    [found] = samples(
        run(a_job(epochs=1), tmp_path, half="fp16", roles={Role.ROLLOUT: "bf16/bf16/fp32"})
    )
    assert (found.report.policy, found.report.rollout) == ("fp16", "bf16")
    fp32 = found.report.k3_of("fp16", "fp32")
    assert fp32 is not None
    assert fp32 < found.report.k3 / 10


def test_in_fp32_the_floor_is_all_there_is(tmp_path: Path) -> None:
    [found] = samples(run(a_job(epochs=1), tmp_path, half="fp32"))
    assert found.report.k3 == found.report.floor_k3 < 1e-9


def test_stale_weights_are_part_of_the_floor(tmp_path: Path) -> None:
    job = a_job(epochs=4, sync_every_rounds=4)
    first, *_, last = samples(run(job, tmp_path))
    assert first.report.floor_k3 < 1e-9 < last.report.floor_k3


def test_samples_take_a_hundredth_of_the_time(tmp_path: Path) -> None:
    """Each look at the clock takes a second, so a sample takes one, and a round one more."""
    clock = Clock(1.0)
    found = samples(run(a_job(epochs=12), tmp_path, clock=clock))
    assert len(found) == 1
    assert COST_SHARE == 0.01


def test_later_samples_make_up_for_the_first() -> None:
    """A round takes a second by the clock, and so does a sample; a tenth is allowed."""
    model, sampled_rounds = a_model(), []
    rollout = RoleForward(model, CPU, FP32)
    generated = GeneratedRound(
        number=0,
        batches=[sampled(rollout, seed=0).to_tensors()],
        rollout=rollout,
        policy=model,
        reference=None,
        precisions=PRESETS["fp32_baseline"],
        device=CPU,
    )
    observer = MismatchObserver(
        FUNCTIONS,
        1,
        lambda event: sampled_rounds.append(event.round),
        cpu_half=True,
        cost_share=0.1,
        clock=Clock(1.0),
    )
    for number in range(40):
        observer(replace(generated, number=number), step=number)
    assert sampled_rounds == [0, 18, 28, 38]
    assert observer.compared == 4


def test_the_first_round_after_a_change_of_precision_is_sampled_at_once() -> None:
    """Otherwise metrics and alerts would show the old precisions until the cost allows a sample."""
    model, events = a_model(), []
    bf16 = RolePrecision.parse("fp32/bf16/fp32")
    rollout = RoleForward(model, CPU, bf16)
    generated = GeneratedRound(
        number=0,
        batches=[sampled(rollout, seed=0).to_tensors()],
        rollout=rollout,
        policy=model,
        reference=None,
        precisions=RolePrecisions(name="half", roles={Role.POLICY: bf16, Role.ROLLOUT: bf16}),
        device=CPU,
    )
    observer = MismatchObserver(FUNCTIONS, 100, events.append, cpu_half=True, clock=Clock(1.0))
    for number in range(5):
        if number == 3:
            rollout.set_precision(FP32)
            generated = replace(
                generated,
                batches=[sampled(rollout, seed=1).to_tensors()],
                precisions=PRESETS["fp32_baseline"],
            )
        observer(replace(generated, number=number), step=number)
    assert [event.round for event in events] == [0, 3]
    assert events[1].report.k3 == events[1].report.floor_k3 < 1e-9


@pytest.mark.parametrize("error", [RuntimeError, KeyError, TypeError])
def test_what_cannot_be_measured_is_told_once(tmp_path: Path, error: type[Exception]) -> None:
    def fails(_forward, _batch):
        raise error("too little memory")

    job = a_job(epochs=3)
    job = replace(job, log_probs=replace(FUNCTIONS, rollout=fails))
    events = run(job, tmp_path)
    assert not samples(events)
    [notice] = [event for event in events if isinstance(event, Notice)]
    assert notice.event == "mismatch_not_measured"
    assert "too little memory" in notice.fields["error"]


def test_the_reference_is_compared_with_itself_in_fp32(tmp_path: Path) -> None:
    job = a_job(epochs=1, reference=True)
    [half] = samples(run(job, tmp_path / "half", half="bf16"))
    assert half.reference is not None
    assert (half.reference.precision, half.reference.floor_k3) == ("bf16", 0.0)
    assert half.reference.excess_k3 == half.reference.k3 > 1e-7
    assert half.reference.tokens == half.report.tokens
    [fp32] = samples(run(a_job(epochs=1, reference=True), tmp_path / "fp32", half="fp32"))
    assert fp32.reference is not None
    assert (fp32.reference.precision, fp32.reference.k3) == ("fp32", 0.0)
    [without] = samples(run(a_job(epochs=1), tmp_path / "without"))
    assert without.reference is None


def test_a_reference_in_fp32_has_no_rounding(tmp_path: Path) -> None:
    """As the preset precision-rl has it, beside a rollout in half precision."""
    roles = {Role.REFERENCE: "fp32/fp32/fp32"}
    job = a_job(epochs=1, reference=True)
    [found] = samples(run(job, tmp_path, half="bf16", roles=roles))
    assert found.reference is not None
    assert found.reference.k3 == 0.0 < found.report.k3


def test_a_reference_that_fails_hides_nothing_else(tmp_path: Path) -> None:
    def fails(forward, batch):
        if isinstance(forward, RoleForward):
            raise RuntimeError("logits are not finite")
        return FUNCTIONS.policy(forward, batch)

    job = a_job(epochs=3, reference=True, log_probs=replace(FUNCTIONS, policy=fails))
    events = run(job, tmp_path)
    assert [each.reference for each in samples(events)] == [None] * 3
    assert len([event for event in events if isinstance(event, Notice)]) == 1


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_the_rollout_gets_its_types_back(tmp_path: Path, half: str) -> None:
    """The second round is generated as without a sample; the reference gets its types back too."""
    references: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    jobs = [a_job(epochs=2, reference=True), a_job(epochs=2, reference=True)]
    for interval, job in enumerate(jobs):

        def batches(round_, roles, job=job, seen=references[interval]):
            for batch in job.batches(round_, roles):
                seen.append(FUNCTIONS.policy(roles.reference, batch))
                yield batch

        observed = replace(job, batches=batches)
        run(observed, tmp_path / str(interval), half=half, interval=interval)
    one, other = jobs
    for plain, changed in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(plain, changed)
    assert len(references[0]) == len(references[1]) >= 2
    assert all(map(torch.equal, *references.values()))
