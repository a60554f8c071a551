"""Rounds that act, in the training loop: resuming, crashes, flips, hidden randomness."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.on_policy_job import OnPolicyJob, Roles
from infrastructure.environments import EnvironmentRounds, RoundOptions
from infrastructure.environments.actions import UnsuitableActionsError
from infrastructure.environments.course import UnsuitableEnvironmentError
from infrastructure.events import PrecisionState, SaveCheckpoint, SetPrecision
from infrastructure.events.command import Command, Stop
from infrastructure.events.event import BaseEvent, StepStats
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics.fp32_check import check_fp32_step
from infrastructure.training.loop import LoopOptions, TrainingResult, train
from infrastructure.training.rounds import batches_of_each_kind, first_batches
from tests.infrastructure.environments.acting_job import (
    OPTIONS,
    PARTS,
    ROUNDS,
    STEPS,
    UPDATES,
    Warnings,
    act,
    drifting,
    make_context,
    make_job,
    pendulums,
    recorded,
)

FP32 = PrecisionState(requested="fp16", effective="fp32", reason="override")
WARM_UP = OPTIONS["warm_up_steps"]
OF_SEQUENCES = {"rounds_per_reset": 3, "sequence_length": 5}


def run(
    job: OnPolicyJob, folder: Path, commands: Callable[[], list[Command]] = list, **changes: Any
) -> tuple[TrainingResult, list[BaseEvent]]:
    events: list[BaseEvent] = []
    given = {"precision": PrecisionState(requested="fp16", effective="fp16", reason="default")}
    result = train(
        job,
        device=torch.device("cpu"),
        config=FP16TrainingConfig(cpu_half=True, loss_scale=4096.0, growth_interval=5),
        options=LoopOptions(seed=3, checkpoint_interval_seconds=3600.0),
        folder=folder / "checkpoints",
        emit=events.append,
        commands=commands,
        **given | changes,
    )
    return result, events


class KilledError(Exception):
    """Stands for a process that ends without a word."""


def at_calls(**given: Any) -> Callable[[], list[Command]]:
    """The commands of the loop's calls, by their number; an exception is raised."""
    due = {int(name.removeprefix("call_")): command for name, command in given.items()}
    calls = iter(range(10**6))

    def commands() -> list[Command]:
        command = due.get(next(calls))
        if isinstance(command, Exception):
            raise command
        return [] if command is None else [command]

    return commands


def weights(job: OnPolicyJob) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in job.model.state_dict().values()])


def places(folder: Path) -> Counter[tuple[object, ...]]:
    names = ("round", "step", "environment")
    return Counter(tuple(each.info[name] for name in names) for each in recorded(folder))


def test_every_step_is_recorded_once_and_counted(tmp_path):
    result, events = run(make_job(tmp_path, job={"epochs": 1}), tmp_path)
    kept = recorded(tmp_path)
    assert len(kept) == WARM_UP + STEPS * ROUNDS // 2 - 1  # the first episode's end is a reset
    assert set(places(tmp_path).values()) == {1}
    assert len({transition.group for transition in kept}) == ROUNDS // 2 + 1  # rounds begin one
    stats = [event for event in events if isinstance(event, StepStats)]
    batches = UPDATES * ROUNDS // 2
    assert result.steps == stats[-1].total_steps == batches + batches // 2
    assert all(abs(transition.action["action"][0]) <= 2.5 for transition in kept)


ENVIRONMENTS = {
    "one": pendulums,
    "two": lambda: pendulums(2),
    "same-step": lambda: pendulums(2, "SameStep", limit=7),
}


Whole = Callable[[str, int], tuple[TrainingResult, torch.Tensor, list[Transition]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Result, weights and record of a run that nothing disturbs, made once for each case."""

    @cache
    def make(environments: str, rounds_per_reset: int) -> Any:
        folder = tmp_path_factory.mktemp("whole")
        job = make_job(folder, ENVIRONMENTS[environments], rounds_per_reset=rounds_per_reset)
        result, _ = run(job, folder)
        return result, weights(job), recorded(folder)

    return make


@pytest.mark.parametrize(
    ("environments", "stop_at", "rounds_per_reset"),
    [  # each two of them together once at least
        (name, stop_at, 1 if (place + number) % 2 else 3)
        for place, name in enumerate(ENVIRONMENTS)
        for number, stop_at in enumerate((2, 11, 22, 29))
    ],
)
def test_a_stopped_run_resumes_bit_for_bit(
    environments, stop_at, rounds_per_reset, whole: Whole, tmp_path
):
    def make() -> OnPolicyJob:
        make_environments = ENVIRONMENTS[environments]
        return make_job(tmp_path, make_environments, rounds_per_reset=rounds_per_reset)

    expected, expected_weights, expected_record = whole(environments, rounds_per_reset)
    stopped, resumed = make(), make()
    first, _ = run(stopped, tmp_path, at_calls(**{f"call_{stop_at}": Stop(reason="t")}))
    assert first.outcome == "stopped"
    result, _ = run(resumed, tmp_path)
    assert result.stats == expected.stats
    assert torch.equal(weights(resumed), expected_weights)
    assert recorded(tmp_path) == expected_record


def recurrent(forward: Any, observations: torch.Tensor, generator: Any, state: Any) -> Any:
    """Acts by the sum of what it has seen in its episode."""
    state["seen"] = observations + state.get("seen", torch.zeros_like(observations))
    return act(forward, state["seen"], generator, state)


def by_rows(loss: Any) -> Any:
    """*loss* of single transitions for batches of sequences of 5."""

    def of_sequences(forward: Any, batch: Any, computed: Any) -> torch.Tensor:
        assert batch["first"].shape == (OPTIONS["batch_size"], 5)
        rows = {name: tensor.flatten(0, 1) for name, tensor in batch.items()}
        return loss(forward, rows, computed)

    return of_sequences


@pytest.mark.parametrize("stop_at", [2, 11, 22, 29])
def test_a_stopped_recurrent_policy_of_sequences_resumes_bit_for_bit(stop_at, tmp_path):
    parts = [replace(part, loss=by_rows(part.loss)) for part in PARTS]

    def make(name: str) -> OnPolicyJob:
        given = {"policy": recurrent, "job": {"parts": parts}}
        return make_job(tmp_path / name, ENVIRONMENTS["two"], **given, **OF_SEQUENCES)

    undisturbed, stopped, resumed = make("whole"), make("parts"), make("parts")
    expected, _ = run(undisturbed, tmp_path / "whole")
    run(stopped, tmp_path / "parts", at_calls(**{f"call_{stop_at}": Stop(reason="t")}))
    result, _ = run(resumed, tmp_path / "parts")
    assert result.stats == expected.stats
    assert torch.equal(weights(resumed), weights(undisturbed))
    assert recorded(tmp_path / "parts") == recorded(tmp_path / "whole")


@pytest.mark.parametrize(("mode", "steps"), [("NextStep", 6), ("SameStep", 5)])
def test_the_state_of_a_policy_is_0_where_an_episode_begins(mode, steps, tmp_path):
    """The policy counts its steps in episodes of 5, after which NextStep only resets in a step."""
    counts: list[list[float]] = []

    def counting(forward: Any, observations: torch.Tensor, generator: Any, state: Any) -> Any:
        state["count"] = state.get("count", torch.zeros(len(observations))) + 1
        counts.append(state["count"].tolist())
        return act(forward, observations, generator, state)

    def of_5() -> Any:
        return pendulums(2, mode, limit=5)

    given = {"policy": counting, "job": {"epochs": 1}, "warm_up_steps": 0}
    run(make_job(tmp_path, of_5, **given), tmp_path)
    of_a_round = [[1.0 + number % steps] * 2 for number in range(STEPS)]
    assert counts == of_a_round * (1 + ROUNDS // 2)  # the check before training has one


def test_rounds_shorter_than_a_sequence_are_refused(tmp_path):
    job = make_job(tmp_path, warm_up_steps=0, sequence_length=STEPS + 1)
    with pytest.raises(ValueError, match="gave no 13 consecutive transitions"):
        run(job, tmp_path)


def sequences_of_16(folder: Path, **changes: Any) -> OnPolicyJob:
    """A job whose rounds are shorter than its sequences, but for the first round."""

    def of_rows(loss: Any) -> Any:
        return lambda forward, batch, computed: loss(
            forward, {name: tensor.flatten(0, 1) for name, tensor in batch.items()}, computed
        )

    parts = [replace(part, loss=of_rows(part.loss)) for part in PARTS]
    return make_job(folder, job={"parts": parts, "epochs": 1}, sequence_length=16, **changes)


def test_sequences_may_be_longer_than_a_round(tmp_path):
    """A later run needs no warm-up: it begins with what earlier runs have recorded."""
    first = sequences_of_16(tmp_path)
    assert len(first_batches(first, torch.device("cpu"), 2 * UPDATES)) == 2 * UPDATES
    assert run(first, tmp_path)[0].outcome == "done"
    changes = {"warm_up_steps": 0, "earlier": recorded(tmp_path), "context": {"run_id": "run-2"}}
    later = sequences_of_16(tmp_path / "later", **changes)
    assert run(later, tmp_path / "later")[0].outcome == "done"


def test_a_policy_that_changes_its_observations_in_place_does_not_change_the_record(tmp_path):
    def in_place(forward: Any, observations: torch.Tensor, generator: Any, state: Any) -> Any:
        return act(forward, observations.mul_(0.5), generator, state)

    def by_copy(forward: Any, observations: torch.Tensor, generator: Any, state: Any) -> Any:
        return act(forward, observations * 0.5, generator, state)

    warnings = Warnings()
    for name, policy in (("place", in_place), ("copy", by_copy)):
        job = make_job(tmp_path / name, policy=policy, context={"logger": warnings})
        run(job, tmp_path / name)
    assert recorded(tmp_path / "place") == recorded(tmp_path / "copy")
    assert warnings.told == []


@pytest.mark.parametrize(
    ("saved_at", "killed_at", "lost_bytes"),
    [
        (5, 6, 0),  # no round has begun since, so all that is recorded is known
        *((*calls, lost) for calls in ((5, 12), (9, 30), (1, 25)) for lost in (0, 1, 2000)),
    ],
)
def test_rounds_that_the_checkpoint_does_not_know_are_not_recorded_twice(
    saved_at, killed_at, lost_bytes, whole: Whole, tmp_path
):
    _, expected_weights, expected_record = whole("one", 3)
    killed, resumed = (make_job(tmp_path / "parts", rounds_per_reset=3) for _ in range(2))
    events = {f"call_{saved_at}": SaveCheckpoint(), f"call_{killed_at}": KilledError()}
    with pytest.raises(KilledError):
        run(killed, tmp_path / "parts", at_calls(**events))
    before = recorded(tmp_path / "parts")
    (segment,) = (tmp_path / "parts" / "agent" / "replay").iterdir()
    segment.write_bytes(segment.read_bytes()[: segment.stat().st_size - lost_bytes])
    run(resumed, tmp_path / "parts")
    assert torch.equal(weights(resumed), expected_weights)
    assert recorded(tmp_path / "parts") == expected_record
    assert len(before) <= len(recorded(tmp_path / "parts"))


def test_a_round_that_comes_out_otherwise_is_a_further_take(tmp_path):
    """The precision changes between two attempts, so the weights act differently."""
    killed, resumed, again = (make_job(tmp_path) for _ in range(3))
    events = {"call_3": SaveCheckpoint(), "call_14": KilledError()}
    with pytest.raises(KilledError):
        run(killed, tmp_path, at_calls(**events))
    before = recorded(tmp_path)
    run(resumed, tmp_path, at_calls(call_20=Stop(reason="test")), precision=FP32)
    kept = recorded(tmp_path)
    assert kept[: len(before)] == before
    second = [transition for transition in kept if transition.info["take"] == 1]
    assert {transition.info["round"] for transition in second} == {1, 2, 3}
    run(again, tmp_path, precision=FP32)
    expected = make_job(tmp_path / "flipped")
    flip = SetPrecision(state=FP32)
    run(expected, tmp_path / "flipped", at_calls(call_3=flip))
    assert torch.equal(weights(again), weights(expected))


def test_a_flip_reaches_the_policy_that_acts(tmp_path):
    job = make_job(tmp_path)
    run(job, tmp_path, at_calls(call_9=SetPrecision(state=FP32)))
    types = job.model.types
    changed = types.index(torch.float32, types.index(torch.float16))
    assert set(types[changed:]) == {torch.float32}
    assert len(types) - changed > STEPS * ROUNDS // 2


def test_checks_record_nothing(tmp_path):
    job = make_job(tmp_path)
    check_fp32_step(job, torch.device("cpu"))
    assert recorded(tmp_path) == []


def test_observations_that_the_environment_overwrites_are_kept(tmp_path):
    def overwriting() -> Any:
        return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")], copy=False)

    for name, make_environments in (("copied", pendulums_of_200), ("overwritten", overwriting)):
        run(make_job(tmp_path / name, make_environments), tmp_path / name)
    assert recorded(tmp_path / "overwritten") == recorded(tmp_path / "copied")


def pendulums_of_200() -> Any:
    return pendulums(limit=200)


@pytest.mark.parametrize("rounds_per_reset", [1, 4])
def test_hidden_randomness_is_told_once_and_rounds_are_reset(rounds_per_reset, tmp_path):
    warnings = Warnings()
    changes = {"rounds_per_reset": rounds_per_reset, "context": {"logger": warnings}}
    result, _ = run(make_job(tmp_path, drifting, **changes), tmp_path)
    assert result.outcome == "done"
    ((event, fields),) = warnings.told
    assert event == "environment_not_deterministic"
    assert fields["environment"] == "SyncVectorEnv"
    groups = {transition.group for transition in recorded(tmp_path)}
    assert len(groups) == ROUNDS  # no episode goes on in the next round


def normalising(wrapper: str, *, of_vectors: bool) -> Callable[[], Any]:
    wrappers = gymnasium.wrappers.vector if of_vectors else gymnasium.wrappers

    def make() -> Any:
        wrap = getattr(wrappers, wrapper)
        if of_vectors:
            return wrap(pendulums())
        return gymnasium.vector.SyncVectorEnv([lambda: wrap(gymnasium.make("Pendulum-v1"))])

    return make


@pytest.mark.parametrize("of_vectors", [True, False])
@pytest.mark.parametrize("wrapper", ["NormalizeObservation", "NormalizeReward"])
@pytest.mark.parametrize("rounds_per_reset", [1, 4])
def test_a_wrapper_that_keeps_state_over_a_reset_is_told_apart_with_a_remedy(
    rounds_per_reset, wrapper, of_vectors, tmp_path
):
    """New environments repeat the first round, so one repetition alone would not find it."""
    make_environments = normalising(wrapper, of_vectors=of_vectors)
    for commands in (at_calls(call_14=Stop(reason="test")), list):  # once more when it resumes
        warnings = Warnings()
        changes = {"rounds_per_reset": rounds_per_reset, "context": {"logger": warnings}}
        run(make_job(tmp_path, make_environments, **changes), tmp_path, commands)
        ((event, fields),) = warnings.told
        assert event == "environment_keeps_state"
        assert "NormalizeObservation" in fields["reason"]
        assert "inside the model" in fields["remedy"]


def test_an_environment_that_was_changed_since_is_told_apart(tmp_path):
    run(make_job(tmp_path), tmp_path, at_calls(call_14=Stop(reason="test")))
    warnings = Warnings()
    changed = make_job(tmp_path, lambda: pendulums(limit=7), context={"logger": warnings})
    run(changed, tmp_path)
    ((event, fields),) = warnings.told
    assert event == "recorded_rounds_differ"
    assert "changed since" in fields["reason"]


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (3, 2)])
def test_another_number_of_environments_is_named(before, now, tmp_path):
    stopped, resumed = (
        make_job(tmp_path, lambda count=count: pendulums(count)) for count in (before, now)
    )
    run(stopped, tmp_path, at_calls(call_14=Stop(reason="test")))
    told = f"recorded in {before} environments, and now there are {now}: make as many as before"
    with pytest.raises(ValueError, match=told):
        run(resumed, tmp_path)


def test_fewer_steps_than_were_recorded_are_named(tmp_path):
    run(make_job(tmp_path), tmp_path, at_calls(call_14=Stop(reason="test")))
    with pytest.raises(ValueError, match="round 0 was recorded with more than the 12 steps of now"):
        run(make_job(tmp_path, warm_up_steps=0), tmp_path)


def test_two_checks_of_an_environment_that_is_not_deterministic_agree(tmp_path):
    warnings = Warnings()
    job = make_job(tmp_path, drifting, context={"logger": warnings})
    one, other = (batches_of_each_kind(job, job.model, torch.device("cpu"))[0] for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [event for event, _ in warnings.told] == ["environment_not_deterministic"]


def test_a_policy_that_acts_otherwise_is_not_blamed_on_the_environment(tmp_path):
    warnings = Warnings()
    job = make_job(tmp_path, context={"logger": warnings})
    one = batches_of_each_kind(job, job.model, torch.device("cpu"))[0]
    with torch.no_grad():
        job.model.actor[0].weight.add_(1.0)
    other = batches_of_each_kind(job, job.model, torch.device("cpu"))[0]
    assert not torch.equal(one["action"], other["action"])
    assert warnings.told == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda action: action.numpy(), "returned a ndarray"),
        (lambda action: action[:1], r"returned a tensor of shape \[1, 1\] and torch.float32"),
        (lambda action: action.expand(2, 3).T, r"returned a tensor of shape \[3, 2\]"),
        (lambda action: action + 1j, "and torch.complex64"),
        (lambda _: None, "returned a NoneType"),
    ],
)
def test_what_is_no_action_is_refused_with_the_name_of_the_function(wrong, told, tmp_path):
    def my_policy(forward: Any, observations: torch.Tensor, generator: Any, state: Any) -> Any:
        return wrong(act(forward, observations, generator, state))

    expected = r"my_policy.* for observations of shape \[2, 3\]: .* shape \[2, 1\].*float32"
    with pytest.raises(UnsuitableActionsError, match=expected) as caught:
        run(make_job(tmp_path, lambda: pendulums(2), policy=my_policy), tmp_path)
    assert re.search(told, str(caught.value))


@pytest.mark.parametrize(
    "right",
    [lambda action: action[:, 0], lambda action: action.bfloat16(), lambda action: action.double()],
)
def test_actions_of_another_type_or_without_a_size_of_one_are_taken(right, tmp_path):
    def policy(forward: Any, observations: torch.Tensor, generator: Any, state: Any) -> Any:
        return right(act(forward, observations, generator, state))

    result, _ = run(make_job(tmp_path, lambda: pendulums(2), policy=policy), tmp_path)
    assert result.outcome == "done"


def test_actions_that_are_not_finite_are_replaced_in_discrete_spaces_too(tmp_path):
    def broken(_forward: Any, observations: torch.Tensor, *_: Any) -> Any:
        return torch.full((len(observations),), torch.nan)

    rounds = EnvironmentRounds(
        make_context(tmp_path), (), cart_poles, broken, RoundOptions(**OPTIONS)
    )
    roles = Roles(rollout=None, policy=None, reference=None, device="cpu")
    batch = rounds.batches(0, roles)[0]
    assert set(batch["action"].tolist()) == {0, 1}


def cart_poles() -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")


def test_a_deterministic_environment_is_not_warned_of(tmp_path):
    warnings = Warnings()
    run(make_job(tmp_path, context={"logger": warnings}, rounds_per_reset=3), tmp_path)
    assert warnings.told == []
    long = [t for t in recorded(tmp_path) if t.group.endswith("/0-0-1")]
    assert {transition.info["round"] for transition in long} >= {0, 1}


def test_actions_that_are_not_finite_are_replaced_and_told_once(tmp_path):
    def broken(*arguments: Any) -> Any:
        return act(*arguments) * torch.nan

    warnings = Warnings()
    run(make_job(tmp_path, policy=broken, context={"logger": warnings}), tmp_path)
    ((event, fields),) = warnings.told
    assert event == "actions_not_finite"
    assert fields["function"].endswith("broken")
    actions = torch.tensor([transition.action["action"] for transition in recorded(tmp_path)])
    assert actions.isfinite().all()
    assert actions.std() > 0.5


def test_sampling_begins_with_what_earlier_runs_recorded(tmp_path):
    run(make_job(tmp_path), tmp_path)
    earlier = recorded(tmp_path)
    alone, with_them = (
        make_job(tmp_path / name, earlier=given, context={"run_id": "run-2"})
        for name, given in (("alone", ()), ("both", earlier))
    )
    run(alone, tmp_path / "alone")
    run(with_them, tmp_path / "both")
    first = WARM_UP + STEPS - 1  # transitions of round 0
    both, without = (recorded(tmp_path / name)[:first] for name in ("both", "alone"))
    assert both == without
    assert not torch.equal(weights(alone), weights(with_them))


def test_a_run_that_repeats_another_records_in_a_folder_of_its_own(tmp_path):
    run(make_job(tmp_path, context={"repeats": tmp_path / "first"}), tmp_path)
    assert recorded(tmp_path) == []
    assert (tmp_path / "run" / "replay").is_dir()


@pytest.mark.parametrize(
    ("make_environments", "told"),
    [
        (lambda: pendulums(1, "Disabled"), "SyncVectorEnv|Pendulum-v1 has autoreset_mode=DISABLED"),
        (
            lambda: gymnasium.make_vec("Blackjack-v1", num_envs=1, vectorization_mode="sync"),
            "Blackjack-v1 has an observation space Tuple.*FlattenObservation",
        ),
    ],
)
def test_environments_that_do_not_fit_are_refused_by_name(make_environments, told, tmp_path):
    with pytest.raises(UnsuitableEnvironmentError, match=told):
        run(make_job(tmp_path, make_environments), tmp_path)


@pytest.mark.parametrize(
    "name",
    ["steps", "updates", "batch_size", "capacity", "rounds_per_reset", "sequence_length"],
)
def test_sizes_out_of_range_are_refused_by_name(name):
    options = RoundOptions(**OPTIONS)
    with pytest.raises(ValueError, match=f"{name} must be a whole number, at least 1, got 0"):
        replace(options, **{name: 0})
    with pytest.raises(ValueError, match="warm_up_steps must be a whole number, at least 0"):
        replace(options, warm_up_steps=-1)


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (torch.zeros(1, 2, 4), r"left 'h' in the policy's state with shape \[1, 2, 4\]"),
        ((torch.zeros(2, 4), torch.zeros(2, 4)), "with tuple: keep tensors"),
    ],
)
def test_a_state_without_a_row_for_each_environment_is_refused(kept, told, tmp_path):
    def my_policy(forward: Any, observations: torch.Tensor, generator: Any, state: Any) -> Any:
        state["h"] = kept
        return act(forward, observations, generator, state)

    with pytest.raises(TypeError, match=rf"my_policy.*{told}"):
        run(make_job(tmp_path, lambda: pendulums(2), policy=my_policy), tmp_path)


@pytest.mark.parametrize(
    ("environment", "number", "told"),
    [
        ("Pendulum-v1", 1e300, "do not fit float32, such as 1e\\+300"),
        ("CartPole-v1", 0.9, "do not fit int64, such as 0.9"),
    ],
)
def test_actions_that_do_not_fit_their_type_are_refused(environment, number, told, tmp_path):
    def make() -> Any:
        return gymnasium.make_vec(environment, num_envs=2, vectorization_mode="sync")

    def my_policy(_forward: Any, observations: torch.Tensor, *_: Any) -> Any:
        return torch.full((len(observations),), number, dtype=torch.float64)

    rounds = EnvironmentRounds(make_context(tmp_path), (), make, my_policy, RoundOptions(**OPTIONS))
    roles = Roles(rollout=None, policy=None, reference=None, device="cpu")
    with pytest.raises(ValueError, match=f"my_policy.*{told}"):
        rounds.batches(0, roles)


def test_a_state_is_forgotten_where_an_action_is_not_finite(tmp_path):
    seen = []

    def recurrent(_forward: Any, observations: torch.Tensor, _: Any, state: Any) -> Any:
        before = state.get("h", torch.zeros(len(observations)))
        seen.append(before.clone())
        state["h"] = torch.where(observations[:, 0] > 2, 0, before + 1)
        if len(seen) == 3:
            state["h"][0] = torch.nan
        return state["h"].clone() * 0

    rounds = EnvironmentRounds(
        make_context(tmp_path), (), lambda: pendulums(2), recurrent, RoundOptions(**OPTIONS)
    )
    rounds.batches(0, Roles(rollout=None, policy=None, reference=None, device="cpu"))
    assert [one.tolist() for one in seen[:5]] == [[0, 0], [1, 1], [2, 2], [0, 3], [1, 4]]


@pytest.mark.parametrize(
    "options",
    [{"steps": 1.5}, {"capacity": 1e6}, {"updates": True}, {"warm_up_steps": -1}],
)
def test_options_that_are_no_counts_are_refused(options):
    [name] = options
    with pytest.raises(ValueError, match=f"{name} must be a whole number"):
        RoundOptions(**OPTIONS | options)


def test_a_capacity_below_a_sequence_is_refused():
    with pytest.raises(ValueError, match="capacity must be at least sequence_length, 16, got 10"):
        RoundOptions(**OPTIONS | {"capacity": 10, "sequence_length": 16})
