"""Rollouts: many steps imagined by a fitted model, member by member.

Shapes: M members, S particles of each, P = M * S particles, B starts, N = S * B rows of a member,
H steps, X columns of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from numbers import Integral
from typing import TypeAlias, cast

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import MAX_ROLLOUT_STEPS, Box
from infrastructure.trajectories.schema import Values
from infrastructure.world_model.planning.dynamics import ActionRows, Dynamics
from infrastructure.world_model.planning.layout import as_tensor

Policy: TypeAlias = Callable[[Mapping[str, Tensor], int], Mapping[str, Tensor]]
"""Chooses actions. It receives the current observation's fields and the number of the step, and
returns the action's fields: ``[P, B, n]`` float64 of a `Box` of shape ``(n,)``, ``[P, B]`` of a
scalar one, and positions of labels, ``[P, B]`` int64, of a `Discrete`."""

Actions: TypeAlias = Sequence[Values] | Sequence[Sequence[Values]] | Mapping[str, Tensor] | Policy
"""Actions of a rollout; see `WorldModel.rollout`."""

RewardFunction: TypeAlias = Callable[
    [Mapping[str, Tensor], Mapping[str, Tensor], Mapping[str, Tensor]], Tensor
]
"""Computes rewards from fields of observation, action and next observation, which are tensors as a
`Policy` has them but with any leading sizes, not to be changed in place. It returns a tensor of
these sizes; minus infinity forbids a step."""


MAX_SEED = (1 << 63) - 1
MAX_PARTICLES = 1_000_000


def check_count(name: str, count: object, *, least: int = 1, most: int | None = None) -> None:
    """Check that *count* is a whole number.

    Raises:
        ValueError: It is not, or below *least*, or above *most*.
    """
    number = int(count) if isinstance(count, Integral) and not isinstance(count, bool) else None
    if number is None or number < least or (most is not None and number > most):
        limit = "" if most is None else f" and at most {most}"
        raise ValueError(
            f"{name} must be a whole number of at least {least}{limit}, got {count!r:.60}"
        )


def check_reward(reward: object) -> None:
    """Check that *reward* is None or a function.

    Raises:
        ValueError: It is not.
    """
    if reward is not None and not callable(reward):
        raise ValueError(f"reward must be a function, see RewardFunction, got {reward!r:.60}")


def is_sequence(value: object) -> bool:
    """Whether *value* is a sequence, but not a string."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """Imagined trajectories. Particle ``p`` stays with member ``member[p]`` of the ensemble.

    Attributes:
        observation: Each field at the start and after each step: ``[P, B, H + 1, n]`` float64 of a
            `Box` of shape ``(n,)``, ``[P, B, H + 1]`` of a scalar one, and positions of labels,
            int64, of a `Discrete`. A value that is missing or unseen at the start is, in each
            particle, that of a training row whose observation resembles it: actions tell nothing
            of it, as a policy or a plan chooses them without knowing it. Where the model has
            learned what a gap means, it is NaN, or the number of labels, until the model predicts
            it; one more than that number where it has learned what undeclared labels mean.
        mean: Mean of each `Box` over the particles, ``[B, H + 1, n]`` or ``[B, H + 1]`` float64.
        sd: Standard deviation over the particles, of the same shape and units. Means of members
            show only their disagreement; drawn particles also the noise that the model predicts.
        reward: Reward of each step, ``[P, B, H]`` float64; 0 once a particle has ended, and
            everywhere if the model learned no reward and no function was given.
        alive: Probability that the particle has not ended, ``[P, B, H + 1]`` float64; 0 or 1 where
            particles are drawn. A particle stays where it ended: at a probability below one half.
        in_range: Whether the inputs of each step lay near the training data, ``[P, B, H]`` bool;
            those of the first step as they were given. Nothing is shrunk to the base rate where
            they did not, as a prediction is.
        member: Number of each particle's member, ``[P]`` int64.
        warnings: What is odd about each start and the recorded values of its actions, see
            `Prediction.warnings`; and fields whose learned gap loses what it tells of the others
            after the first step.
    """

    observation: Mapping[str, Tensor]
    mean: Mapping[str, Tensor]
    sd: Mapping[str, Tensor]
    reward: Tensor
    alive: Tensor
    in_range: Tensor
    member: Tensor
    warnings: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Imagined:
    """Steps imagined, as columns.

    Attributes:
        states: ``[H + 1, M, N, X]`` float64; the last alone where they were not kept.
        actions: Columns of the actions, with known labels instead of unknown ones,
            ``[H, M, N, A]`` float64, or ``[H, N, A]`` where members act alike.
        rewards: Learned rewards while alive, ``[H, M, N]`` float32.
        alive: See `Rollout`, ``[H + 1, M, N]`` float32; None if nothing ends.
    """

    states: Tensor
    actions: Tensor
    rewards: Tensor
    alive: Tensor | None


def imagine(
    dynamics: Dynamics,
    state_MNX: Tensor,
    actions: ActionRows,
    *,
    noise: torch.Generator | None = None,
    quantiles_MDX: Tensor | None = None,
    places_MD: Tensor | None = None,
    alive_MN: Tensor | None = None,
    go_on: Callable[[], bool] | None = None,
) -> Imagined | None:
    """Imagine all steps of *actions*.

    Args:
        state_MNX: Current states, float64.
        noise: Generator that draws next states; None for means and likeliest labels.
        quantiles_MDX: For the first step; see `Dynamics.step`.
        places_MD: For labels of actions that the training data does not explain, see
            `Dynamics.act`; None to take the mean for them.
        alive_MN: Probability that each row has not ended before, float32; 1 by default.
        go_on: Asked before each step; the result is None as soon as it returns False.
    """
    states, rewards, lives, raws = [state_MNX], [], [], []
    draws = places_MD is not None and actions.unknown is not None
    if alive_MN is not None:
        lives.append(alive_MN)
    for number in range(len(actions)):
        if go_on is not None and not go_on():
            return None
        taken, place = actions, number
        if places_MD is not None and draws:
            taken, place = dynamics.act(states[-1], actions, number, places_MD), 0
            raws.append(taken.raw[0].expand(*states[-1].shape[:2], -1))
        step = dynamics.step(states[-1], taken, place, noise, None if number else quantiles_MDX)
        state_MNX, reward_MN = step.state, step.reward
        if step.ends is not None:
            alive_MN = lives[-1] if lives else torch.ones_like(step.ends)
            stays_MN = 1.0 - step.ends
            if noise is not None:
                stays_MN = torch.bernoulli(stays_MN, generator=noise)
            state_MNX = torch.where((alive_MN >= 0.5)[..., None], state_MNX, states[-1])
            reward_MN = reward_MN * alive_MN
            lives += [alive_MN * stays_MN] if lives else [alive_MN, stays_MN]
        states.append(state_MNX)
        rewards.append(reward_MN)
    return Imagined(
        states=torch.stack(states),
        actions=torch.stack(raws) if raws else actions.raw,
        rewards=torch.stack(rewards),
        alive=torch.stack(lives) if lives else None,
    )


def given_rewards(dynamics: Dynamics, imagined: Imagined, reward: RewardFunction) -> Tensor:
    """Rewards by the author's function, ``[H, M, N]`` float64, 0 after the end.

    Raises:
        ValueError: The function returned a tensor of another shape, a NaN, or plus infinity.
    """
    before, after = imagined.states[:-1], imagined.states[1:]
    steps, members, rows, _ = before.shape
    raw = imagined.actions if imagined.actions.ndim == 4 else imagined.actions[:, None]
    raw = raw.expand(-1, members, rows, -1)
    split = dynamics.observation.split
    reward_HMN = reward(split(before), dynamics.action.split(raw), split(after))
    shape = tuple(reward_HMN.shape) if isinstance(reward_HMN, Tensor) else type(reward_HMN).__name__
    if shape != (steps, members, rows):
        raise ValueError(
            f"the reward function must return a tensor of one number per row, shape "
            f"{(steps, members, rows)}, got {shape}"
        )
    if bool((reward_HMN.isnan() | (reward_HMN == torch.inf)).any()):
        raise ValueError(
            "the reward function returned NaN or infinity; numbers that are missing may be NaN, "
            "and minus infinity forbids a step"
        )
    reward_HMN = reward_HMN.double()
    if imagined.alive is None:
        return reward_HMN
    alive_HMN = imagined.alive[:-1].double()
    return torch.where(alive_HMN > 0, reward_HMN * alive_HMN, 0.0)


def roll_out(
    dynamics: Dynamics,
    observations: Sequence[Values],
    actions: Actions,
    horizon: int | None,
    *,
    particles: int,
    noise: torch.Generator | None,
    gaps: torch.Generator,
    reward: RewardFunction | None,
) -> Rollout:
    """Imagine trajectories; see `WorldModel.rollout`."""
    starts, members = len(observations), dynamics.members
    if starts < 1:
        raise ValueError("a rollout needs an observation, got none")
    if horizon is not None:
        check_count("horizon", horizon, most=MAX_ROLLOUT_STEPS)
    check_reward(reward)
    start_BX = dynamics.start(observations)
    given_MNX = dynamics.read(observations).repeat(particles, 1).expand(members, -1, -1)
    state_MNX = start_BX.repeat(particles, 1).expand(members, -1, -1)
    drawn_PBX = dynamics.draw_starts(observations, start_BX, members * particles, gaps)
    if drawn_PBX is not None:
        state_MNX = drawn_PBX.unflatten(0, (members, particles)).flatten(1, 2)
    places_MS, rows = dynamics.draw_places(particles, gaps), list[Sequence[Values]]()
    if callable(actions):
        if horizon is None:
            raise ValueError("a policy has no length: give the horizon")
        imagined, taken = _follow(dynamics, state_MNX, actions, horizon, noise, places_MS)
    else:
        if isinstance(actions, Mapping):
            taken = _given_tensors(dynamics, actions, horizon, starts)
        else:
            rows = _given_rows(actions, horizon, starts)
            taken = dynamics.encode_values(list(chain(*zip(*rows, strict=True))), len(rows[0]))
        taken = taken.take(torch.arange(starts).repeat(particles))
        imagined = cast(
            Imagined, imagine(dynamics, state_MNX, taken, noise=noise, places_MD=places_MS)
        )
    rewards_HMN = imagined.rewards.double()
    if reward is not None:
        rewards_HMN = given_rewards(dynamics, imagined, reward)
    steps = len(rewards_HMN)
    in_range = torch.stack(
        [
            dynamics.is_in_range(imagined.states[h] if h else given_MNX, taken.raw[h])
            for h in range(steps)
        ]
    )
    near_HMB = torch.stack(
        [dynamics.is_in_range(given_MNX, taken.raw[h])[:, :starts] for h in range(steps)]
    )
    alive = imagined.alive
    if alive is None:
        alive = torch.ones(steps + 1, members, starts * particles)

    def arrange(tensor: Tensor) -> Tensor:
        """From ``[H, M, S * B, ...]`` to ``[P, B, H, ...]``."""
        split: Tensor = tensor.movedim(0, 2).unflatten(1, (particles, starts))
        return split.flatten(0, 1)

    observation = dynamics.observation.split(arrange(imagined.states))
    boxes = {
        name: tensor
        for name, tensor in observation.items()
        if isinstance(dynamics.observation.fields[name], Box)
    }
    unbiased = 1 if members * particles > 1 else 0
    return Rollout(
        observation=observation,
        mean={name: tensor.mean(0) for name, tensor in boxes.items()},
        sd={name: tensor.std(0, correction=unbiased) for name, tensor in boxes.items()},
        reward=arrange(rewards_HMN),
        alive=arrange(alive.double()),
        in_range=arrange(in_range),
        member=torch.arange(members).repeat_interleave(particles),
        warnings=[
            dynamics.warnings(each, rows[start] if rows else (), is_in_range=near, steps=steps)
            for start, (each, near) in enumerate(
                zip(observations, near_HMB.flatten(0, 1).all(0).tolist(), strict=True)
            )
        ],
    )


def _follow(
    dynamics: Dynamics,
    state_MNX: Tensor,
    policy: Policy,
    horizon: int,
    noise: torch.Generator | None,
    places_MS: Tensor,
) -> tuple[Imagined, ActionRows]:
    """Imagine steps under a policy; return also its actions."""
    (members, particles), rows = places_MS.shape, state_MNX.shape[1]
    sizes = (members * particles, rows // particles)
    parts, raws, alive_MN = list[Imagined](), [], None
    for number in range(horizon):
        fields = dynamics.observation.split(state_MNX.reshape(*sizes, -1).clone())
        chosen = policy(fields, number)
        if not isinstance(chosen, Mapping):
            raise ValueError(
                f"a policy must return a mapping of the action's fields "
                f"{sorted(dynamics.action.fields)}, got {chosen!r:.60}"
            )
        raw = dynamics.action.join(chosen, sizes).view(1, members, rows, -1)
        actions = dynamics.encode_columns(raw)
        part = imagine(
            dynamics, state_MNX, actions, noise=noise, places_MD=places_MS, alive_MN=alive_MN
        )
        part = cast(Imagined, part)
        state_MNX = part.states[-1]
        alive_MN = None if part.alive is None else part.alive[-1]
        parts.append(part)
        raws.append(raw)
    lives = [part.alive for part in parts if part.alive is not None]
    imagined = Imagined(
        states=torch.cat([parts[0].states[:1], *(part.states[1:] for part in parts)]),
        actions=torch.cat([part.actions for part in parts]),
        rewards=torch.cat([part.rewards for part in parts]),
        alive=torch.cat([lives[0][:1], *(life[1:] for life in lives)]) if lives else None,
    )
    return imagined, dynamics.encode_columns(torch.cat(raws))


def _given_tensors(
    dynamics: Dynamics, actions: Mapping[str, Tensor], horizon: int | None, starts: int
) -> ActionRows:
    """Encode given tensors as ``[H, starts, ...]``.

    Raises:
        ValueError: There are none, fewer than *horizon*, or of another shape.
    """
    tensors = {name: as_tensor(f"action {name!r}", each) for name, each in actions.items()}
    steps, each = _sizes(dynamics, tensors)
    _check_length(steps, horizon)
    raw = dynamics.action.join(tensors, (starts, steps) if each else (steps,))
    raw_BHA = raw if each else raw.expand(starts, -1, -1)
    return dynamics.encode_columns(raw_BHA.transpose(0, 1)[:horizon].contiguous())


def _given_rows(
    actions: Sequence[Values] | Sequence[Sequence[Values]], horizon: int | None, starts: int
) -> list[Sequence[Values]]:
    """Actions of each start, as many as the horizon.

    Raises:
        ValueError: There are none, fewer than *horizon*, or something else than sequences.
    """
    if not is_sequence(actions):
        raise ValueError(
            f"actions must be a sequence of actions or of such sequences, a mapping of tensors or "
            f"a policy, got {actions!r:.60}"
        )
    rows = [cast("Sequence[Values]", actions)] * starts
    if actions and is_sequence(actions[0]):
        rows = list(cast("Sequence[Sequence[Values]]", actions))
    if len(rows) != starts or not all(map(is_sequence, rows)) or len(set(map(len, rows))) != 1:
        raise ValueError(
            f"give actions for all starts, or as many sequences of one length as the {starts} "
            f"starts, got {actions!r:.60}"
        )
    _check_length(len(rows[0]), horizon)
    return [list(row)[:horizon] for row in rows]


def _sizes(dynamics: Dynamics, tensors: Mapping[str, Tensor]) -> tuple[int, bool]:
    """Number of steps, and whether each start has actions of its own."""
    for name, field in dynamics.action.fields.items():
        if name in tensors:
            shape = field.shape if isinstance(field, Box) else ()
            each = tensors[name].ndim == len(shape) + 2
            if tensors[name].ndim > len(shape):
                return tensors[name].shape[int(each)], each
            raise ValueError(f"action {name!r} needs a dimension of steps before {shape}")
    raise ValueError(f"actions name none of {sorted(dynamics.action.fields)}")


def _check_length(steps: int, horizon: int | None) -> None:
    if steps < 1 or (horizon is not None and steps < horizon):
        raise ValueError(f"there are actions for {steps} steps, but the horizon is {horizon or 1}")
