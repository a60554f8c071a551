"""On-policy jobs in the loop: rounds, resumption, precision of the roles, staleness."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from infrastructure.agent_contract import Evaluation
from infrastructure.events import PrecisionState, Role, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.events.event import Evaluated, PrecisionChanged, Resumed, StepStats
from infrastructure.events.role_precision import PRESETS
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.checkpoints import BestEpoch
from infrastructure.training.distributed import Ranks, distribute
from infrastructure.training.loop import LoopOptions, TrainingResult, train
from infrastructure.training.precision import device_name
from infrastructure.training.precision.keep_fp32 import is_kept
from infrastructure.training.rounds import OnPolicyRounds
from tests.infrastructure.training.bandit import PER_ROUND, ROWS, Bandit

CPU = torch.device("cpu")
STEPS = 8 * PER_ROUND


def wish(precision: str) -> PrecisionState:
    return PrecisionState(requested=precision, effective=precision, reason="default")


class Daemon:
    """Sends each command after the given step and keeps the events."""

    def __init__(self, *, at: int = 0, command=None):
        self.at, self.command, self.calls, self.events = at, command, 0, []

    def commands(self):
        self.calls += 1
        return [self.command] if self.calls == self.at else []

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def run(
    bandit: Bandit,
    folder: Path,
    precision="fp32",
    daemon: Daemon | None = None,
    best_epoch: Path | None = None,
    **options,
) -> tuple[TrainingResult, Daemon]:
    daemon = daemon or Daemon()
    result = train(
        bandit.job,
        device=CPU,
        precision=wish(precision) if isinstance(precision, str) else precision,
        config=FP16TrainingConfig(cpu_half=True, loss_scale=256.0, growth_interval=10),
        options=LoopOptions(seed=3, checkpoint_interval_seconds=3600.0, **options),
        folder=folder,
        emit=daemon.events.append,
        commands=daemon.commands,
        best_epoch=best_epoch,
    )
    return result, daemon


def weights(bandit: Bandit) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in bandit.model.parameters()])


@pytest.mark.process
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_policy_learns_from_reward_in_every_precision(tmp_path: Path, precision):
    bandit = Bandit(epochs=12, warm_up_rounds=0)
    result, daemon = run(bandit, tmp_path, precision)
    rewards = [event.metrics["reward"] for event in daemon.of(Evaluated)]
    assert result.steps == 12 * 4 * PER_ROUND
    assert rewards[-1] > rewards[0] + 0.1
    assert daemon.of(StepStats)[-1].total_steps == result.steps
    assert sum(event.samples for event in daemon.of(StepStats)) == result.steps * ROWS
    half = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    assert set(bandit.dtypes["rollout"][1:]) == {half}  # the first is of before the training
    assert set(bandit.dtypes["reference"][1:]) == {half}


def test_the_best_epoch_after_the_warm_up_is_kept(tmp_path: Path):
    rewards, seen = iter([0.9, 0.8, 0.5, 0.7, 0.6]), []  # the first epoch is the warm-up's

    def evaluate(forward):
        seen.append(weights(bandit).clone())
        metrics = {"reward": next(rewards)}
        return Evaluation(metrics=metrics, primary="reward", higher_is_better=True)

    bandit = Bandit(epochs=4, rounds_per_epoch=1, warm_up_rounds=1, evaluate=evaluate)
    best = tmp_path / "best.pt"
    stop = Daemon(at=2 * (PER_ROUND + 1) + 2, command=Stop(reason="test"))
    stopped, _ = run(bandit, tmp_path / "run", daemon=stop, best_epoch=best)
    assert (stopped.outcome, stopped.epochs) == ("stopped", 2)
    result, _ = run(bandit, tmp_path / "run", best_epoch=best)
    assert result.evaluation.value == BestEpoch(best).evaluation.value == 0.8
    assert torch.equal(weights(bandit), seen[1])


# Commands are asked for at each round's beginning and after each step: 4 times a round.
@pytest.mark.process
@pytest.mark.parametrize("stop_at", range(1, 4 * 8 + 1, 3))
@pytest.mark.parametrize("sync_every_rounds", [1, 3])
def test_resuming_in_a_round_is_bit_exact(tmp_path: Path, stop_at, sync_every_rounds):
    whole = Bandit(sync_every_rounds=sync_every_rounds)
    expected, _ = run(whole, tmp_path / "whole", "bf16")
    stop = Daemon(at=stop_at, command=Stop(reason="test"))
    begun = Bandit(sync_every_rounds=sync_every_rounds)
    stopped, _ = run(begun, tmp_path / "parts", "bf16", stop)
    assert stopped.outcome == "stopped"
    torch.manual_seed(999)  # another process, another generator state
    bandit = Bandit(sync_every_rounds=sync_every_rounds)
    resumed, daemon = run(bandit, tmp_path / "parts", "bf16")
    assert daemon.of(Resumed)[0].step == stopped.steps
    assert (resumed.steps, resumed.evaluation) == (expected.steps, expected.evaluation)
    assert torch.equal(weights(bandit), weights(whole))
    generated = [number for number, *_ in (*begun.seen, *bandit.seen)]
    assert generated == [number for number, *_ in whole.seen], "a round was generated twice"


MIXED = {role: str(each) for role, each in PRESETS["bf16_train_fp16_infer"].items()}


@pytest.mark.parametrize(
    ("measured", "preset", "policy", "rollout", "reference"),
    [
        ("bf16", {}, "fp32/bf16/fp32", "bf16/bf16/fp32", "bf16/bf16/fp32"),
        ("fp16", {}, "fp32/fp16/fp32", "fp16/fp16/fp32", "fp16/fp16/fp32"),
        ("fp32", {}, *["fp32/fp32/fp32"] * 3),
        ("bf16", MIXED, "fp32/bf16/fp32", "fp16/fp16/fp32", "bf16/bf16/fp32"),
        ("fp16", MIXED, "fp32/fp16/fp32", "fp16/fp16/fp32", "fp16/fp16/fp32"),
        ("fp32", MIXED, *["fp32/fp32/fp32"] * 3),
    ],
)
def test_the_roles_follow_what_auto_has_measured(
    tmp_path: Path, measured, preset, policy, rollout, reference
):
    device = f"{device_name(CPU)}, {torch.get_num_threads()} threads"
    choice = {"device": device, "precision": measured}
    (tmp_path / "precision-choice.json").write_text(json.dumps(choice))
    auto = replace(wish("auto"), roles=preset)
    _, daemon = run(Bandit(epochs=1, rounds_per_epoch=2), tmp_path, auto)
    (changed,) = daemon.of(PrecisionChanged)
    assert (changed.state.effective, changed.state.reason) == (measured, "measured")
    assert changed.state.roles == {
        Role.POLICY: policy,
        Role.ROLLOUT: rollout,
        Role.REFERENCE: reference,
    }


def test_a_stale_rollout_copy_lags_behind_and_the_reference_never_changes(tmp_path: Path):
    bandit = Bandit(sync_every_rounds=3, epochs=1, rounds_per_epoch=8)
    copies = {}

    def batches(round_, roles):
        x = torch.ones(1, 4)
        copies[round_] = (roles.rollout(x), roles.policy(x), roles.reference(x))
        return bandit.batches(round_, roles)

    object.__setattr__(bandit.job, "batches", batches)
    run(bandit, tmp_path)
    in_sync = [n for n in sorted(copies) if torch.equal(copies[n][0], copies[n][1])]
    assert in_sync == [0, 1, 4, 7]
    assert torch.equal(copies[3][0], copies[1][0])
    assert all(torch.equal(copies[n][2], copies[1][2]) for n in range(1, 8))
    assert not torch.equal(copies[2][1], copies[2][2])


@pytest.mark.parametrize("sync_every_rounds", [1, 4])
def test_a_flip_in_a_round_takes_every_role_to_fp32(tmp_path: Path, sync_every_rounds):
    bandit = Bandit(sync_every_rounds=sync_every_rounds)
    flip = SetPrecision(state=PrecisionState(requested="fp16", effective="fp32", reason="flag"))
    _, daemon = run(bandit, tmp_path, "fp16", Daemon(at=11, command=flip))
    changed = daemon.of(PrecisionChanged)[-1]
    assert (changed.state.effective, changed.step) == ("fp32", 8)
    halves = [torch.float16] * 2  # rounds 1 and 2; round 0 is the warm-up
    assert bandit.dtypes["rollout"] == halves + [torch.float32] * 5
    assert bandit.dtypes["reference"] == halves + [torch.float32] * 5
    assert sum(event.fp16 for event in daemon.of(StepStats)) == 8


@pytest.mark.parametrize("types", ["fp32/fp32/fp32", "bf16/bf16/fp32"])
def test_a_reference_is_changed_live_as_if_it_had_begun_so(tmp_path: Path, types: str):
    live, begun, half = Bandit(), Bandit(), Bandit()
    changed = replace(wish("fp16"), roles={Role.REFERENCE: types})
    _, daemon = run(
        live, tmp_path / "live", "fp16", Daemon(at=11, command=SetPrecision(state=changed))
    )
    run(begun, tmp_path / "begun", changed)
    run(half, tmp_path / "half", "fp16")
    state = daemon.of(PrecisionChanged)[-1].state
    assert (state.effective, state.roles[Role.REFERENCE]) == ("fp16", types)
    assert state.roles[Role.ROLLOUT] == "fp16/fp16/fp32"
    of_reference = [[seen[2] for seen in each.seen] for each in (live, begun, half)]
    assert all(map(torch.equal, of_reference[0][2:], of_reference[1][2:]))
    assert torch.equal(of_reference[0][1], of_reference[2][1])
    assert not torch.equal(of_reference[0][-1], of_reference[2][-1])


def test_a_preset_and_single_roles_reach_the_copies_and_are_acknowledged(tmp_path: Path):
    bandit = Bandit(role_precision="bf16_train_fp16_infer", warm_up_rounds=0)
    state = wish("bf16")
    rollout_fp32 = replace(state, roles={Role.ROLLOUT: "fp32/fp32/fp32"})
    daemon = Daemon(at=11, command=SetPrecision(state=rollout_fp32))
    run(bandit, tmp_path, "bf16", daemon)
    first, last = (each.state.roles for each in daemon.of(PrecisionChanged))
    assert first == {
        Role.POLICY: "fp32/bf16/fp32",
        Role.ROLLOUT: "fp16/fp16/fp32",
        Role.REFERENCE: "bf16/bf16/fp32",
    }
    assert last == {**first, Role.ROLLOUT: "fp32/fp32/fp32"}
    of_the_training = bandit.dtypes["rollout"][1:]
    assert of_the_training == [torch.float16] * 3 + [torch.float32] * 5
    assert set(bandit.dtypes["reference"][1:]) == {torch.bfloat16}
    with pytest.raises(ValueError, match="'fp16_pure'"):
        run(Bandit(role_precision="fp16_pure"), tmp_path / "pure", "fp16")


def test_after_a_rollback_a_lagging_copy_is_the_fp32_weights_it_was_made_from(tmp_path: Path):
    """Not the rounded ones: a copy in FP32 of weights rounded to FP16 would be no rollback."""
    exact, flipped = (Bandit(sync_every_rounds=8, warm_up_rounds=0) for _ in range(2))
    run(exact, tmp_path / "exact")
    flip = SetPrecision(state=PrecisionState(requested="fp16", effective="fp32", reason="flag"))
    run(flipped, tmp_path / "flipped", "fp16", Daemon(at=2, command=flip))
    outputs = [(one[1], other[1]) for one, other in zip(exact.seen, flipped.seen, strict=True)]
    assert not torch.equal(*outputs[1])  # round 0; outputs[0] is from before the training
    assert torch.equal(*outputs[2])


def test_a_checkpoint_of_one_precision_continues_in_another_with_the_same_batches(tmp_path: Path):
    stop = Daemon(at=11, command=Stop(reason="test"))
    first = Bandit()
    run(first, tmp_path, "fp16", stop)
    second = Bandit()
    result, _ = run(second, tmp_path, "fp32")
    assert result.steps == STEPS
    assert [number for number, *_ in second.seen] == [3, 4, 5, 6, 7]


def test_a_round_without_batches_makes_no_step_and_still_obeys(tmp_path: Path):
    bandit = Bandit(epochs=1, rounds_per_epoch=50, reference=False)
    batches = bandit.batches
    object.__setattr__(bandit.job, "batches", lambda n, roles: batches(n, roles) if n == 0 else [])
    result, _ = run(bandit, tmp_path, daemon=Daemon(at=20, command=Stop(reason="test")))
    assert (result.outcome, result.steps) == ("stopped", PER_ROUND)
    result, _ = run(bandit, tmp_path)
    assert (result.outcome, result.steps) == ("done", PER_ROUND)


def test_restored_weights_are_those_that_generate_the_next_round():
    """Otherwise a lagging copy would still hold the weights from before they were restored."""
    bandit = Bandit(sync_every_rounds=100, warm_up_rounds=0, reference=False)
    ranks = Ranks()
    model = distribute(bandit.model, ranks, CPU, "ddp", torch.float32)
    rounds = OnPolicyRounds(bandit.job, model, ranks, CPU)
    rounds.begin(0)
    torch.nn.init.zeros_(bandit.model[3].weight)
    torch.nn.init.zeros_(bandit.model[3].bias)
    rounds.begin(1)
    rounds.synchronize()
    rounds.begin(2)
    assert [bool(output.any()) for _, output, _ in bandit.seen] == [True, True, False]


def test_wrong_batches_are_named(tmp_path: Path):
    bandit = Bandit(batches=lambda *_: [3], warm_up_rounds=0)
    with pytest.raises(TypeError, match=r"batches\(0, roles\) .*got int"):
        run(bandit, tmp_path)
    bandit = Bandit(batches=lambda *_: [{"x": torch.ones(1), "y": 3}], warm_up_rounds=0)
    with pytest.raises(TypeError, match=r"\['y'\]"):
        run(bandit, tmp_path)


def test_a_preset_keeps_the_head_in_fp32_on_all_sides(tmp_path: Path):
    bandit = Bandit(role_precision="fp16_fp32_head")
    bandit.model.get_output_embeddings = lambda: bandit.model[-1]
    kept: list[tuple[bool, torch.dtype, torch.dtype]] = []

    def batches(round_, roles):
        yield from bandit.batches(round_, roles)
        if round_ >= bandit.job.warm_up_rounds:
            for copied in (roles.rollout.module, roles.reference.module):
                kept.append((is_kept(copied[-1]), copied[-1].weight.dtype, copied[0].weight.dtype))

    bandit.job = replace(bandit.job, batches=batches)
    run(bandit, tmp_path, "fp16")
    assert set(kept[2:]) == {(True, torch.float32, torch.float16)}, "the first are of a check"
    nothing = Bandit(role_precision="fp16_fp32_head")
    with pytest.raises(ValueError, match="Sequential names no output head"):
        run(nothing, tmp_path / "nothing", "fp16")
