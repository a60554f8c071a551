"""Rollouts: many steps imagined by a fitted model, member by member.

Shapes: M members, S particles of each, P = M * S particles, B starts, N = S * B rows of a member,
H steps, X columns of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TypeAlias, cast

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Box
from infrastructure.trajectories.schema import Values
from infrastructure.world_model.planning.dynamics import ActionRows, Dynamics

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
`Policy` has them but with any leading sizes. It returns a tensor of these sizes; minus
infinity forbids a step."""


def check_count(name: str, count: object, *, least: int = 1) -> None:
    """Check that *count* is a whole number.

    Raises:
        ValueError: It is not, or below *least*.
    """
    if isinstance(count, bool) or not isinstance(count, Integral) or count < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {count!r:.60}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """Imagined trajectories. Particle ``p`` stays with member ``member[p]`` of the ensemble.

    Attributes:
        observation: Each field at the start and after each step: ``[P, B, H + 1, n]`` float64 of a
            `Box` of shape ``(n,)``, ``[P, B, H + 1]`` of a scalar one, and positions of labels,
            int64, of a `Discrete`. A value that is missing or unseen at the start is, in each
            particle, that of a training row which resembles it. Where the model has learned what a
            gap means, it is NaN, or the number of labels, until the model predicts it; where it
            predicts only a change, NaN remains.
        mean: Mean of each `Box` over the particles, ``[B, H + 1, n]`` or ``[B, H + 1]`` float64.
        sd: Standard deviation over the particles, of the same shape and units. Means of members
            show only their disagreement; drawn particles also the noise that the model predicts.
        reward: Reward of each step, ``[P, B, H]`` float64; 0 once a particle has ended, and
            everywhere if the model learned no reward and no function was given.
        alive: Probability that the particle has not ended, ``[P, B, H + 1]`` float64; 0 or 1 where
            particles are drawn. A particle stays where it ended: at a probability below one half.
        in_range: Whether the inputs of each step lay near the training data, ``[P, B, H]`` bool;
            those of the first step as they were given.
        member: Number of each particle's member, ``[P]`` int64.
    """

    observation: Mapping[str, Tensor]
    mean: Mapping[str, Tensor]
    sd: Mapping[str, Tensor]
    reward: Tensor
    alive: Tensor
    in_range: Tensor
    member: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Imagined:
    """Steps imagined, as columns.

    Attributes:
        states: ``[H + 1, M, N, X]`` float64; the last alone where they were not kept.
        rewards: Learned rewards while alive, ``[H, M, N]`` float32.
        alive: See `Rollout`, ``[H + 1, M, N]`` float32; None if nothing ends.
    """

    states: Tensor
    rewards: Tensor
    alive: Tensor | None


def imagine(
    dynamics: Dynamics,
    state_MNX: Tensor,
    actions: ActionRows,
    *,
    noise: torch.Generator | None = None,
    quantiles_MDX: Tensor | None = None,
    alive_MN: Tensor | None = None,
    go_on: Callable[[], bool] | None = None,
) -> Imagined | None:
    """Imagine all steps of *actions*.

    Args:
        state_MNX: Current states, float64.
        noise: Generator that draws next states; None for means and likeliest labels.
        quantiles_MDX: For the first step; see `Dynamics.step`.
        alive_MN: Probability that each row has not ended before, float32; 1 by default.
        go_on: Asked before each step; the result is None as soon as it returns False.
    """
    states, rewards, lives = [state_MNX], [], []
    if alive_MN is not None:
        lives.append(alive_MN)
    for number in range(len(actions)):
        if go_on is not None and not go_on():
            return None
        step = dynamics.step(states[-1], actions, number, noise, None if number else quantiles_MDX)
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
        rewards=torch.stack(rewards),
        alive=torch.stack(lives) if lives else None,
    )


def given_rewards(
    dynamics: Dynamics, imagined: Imagined, actions: ActionRows, reward: RewardFunction
) -> Tensor:
    """Rewards by the author's function, ``[H, M, N]`` float64, 0 after the end.

    Raises:
        ValueError: The function returned a tensor of another shape, a NaN, or plus infinity.
    """
    before, after = imagined.states[:-1], imagined.states[1:]
    steps, members, rows, _ = before.shape
    raw = actions.raw if actions.raw.ndim == 4 else actions.raw[:, None]
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
        check_count("horizon", horizon)
    start_BX = dynamics.start(observations)
    given_MNX = state_MNX = start_BX.repeat(particles, 1).expand(members, -1, -1)
    drawn_PBX = dynamics.draw_starts(observations, start_BX, members * particles, gaps)
    if drawn_PBX is not None:
        state_MNX = drawn_PBX.unflatten(0, (members, particles)).flatten(1, 2)
    if callable(actions):
        if horizon is None:
            raise ValueError("a policy has no length: give the horizon")
        imagined, taken = _follow(dynamics, state_MNX, actions, horizon, (particles, noise))
    else:
        taken = _given(dynamics, actions, horizon, starts)
        taken = taken.take(torch.arange(starts).repeat(particles))
        imagined = cast(Imagined, imagine(dynamics, state_MNX, taken, noise=noise))
    rewards_HMN = imagined.rewards.double()
    if reward is not None:
        rewards_HMN = given_rewards(dynamics, imagined, taken, reward)
    steps = len(rewards_HMN)
    in_range = torch.stack(
        [
            dynamics.is_in_range(imagined.states[h] if h else given_MNX, taken.raw[h])
            for h in range(steps)
        ]
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
    )


def _follow(
    dynamics: Dynamics,
    state_MNX: Tensor,
    policy: Policy,
    horizon: int,
    drawing: tuple[int, torch.Generator | None],
) -> tuple[Imagined, ActionRows]:
    """Imagine steps under a policy; return also its actions."""
    particles, noise = drawing
    members, rows, _ = state_MNX.shape
    sizes = (members * particles, rows // particles)
    parts, raws, alive_MN = list[Imagined](), [], None
    for number in range(horizon):
        fields = dynamics.observation.split(state_MNX.reshape(*sizes, -1))
        raw = dynamics.action.join(policy(fields, number), sizes).view(1, members, rows, -1)
        actions = dynamics.encode_columns(raw)
        part = imagine(dynamics, state_MNX, actions, noise=noise, alive_MN=alive_MN)
        part = cast(Imagined, part)
        state_MNX = part.states[-1]
        alive_MN = None if part.alive is None else part.alive[-1]
        parts.append(part)
        raws.append(raw)
    lives = [part.alive for part in parts if part.alive is not None]
    imagined = Imagined(
        states=torch.cat([parts[0].states[:1], *(part.states[1:] for part in parts)]),
        rewards=torch.cat([part.rewards for part in parts]),
        alive=torch.cat([lives[0][:1], *(life[1:] for life in lives)]) if lives else None,
    )
    return imagined, dynamics.encode_columns(torch.cat(raws))


def _given(
    dynamics: Dynamics,
    actions: Sequence[Values] | Sequence[Sequence[Values]] | Mapping[str, Tensor],
    horizon: int | None,
    starts: int,
) -> ActionRows:
    """Encode given actions as ``[H, starts, ...]``.

    Raises:
        ValueError: There are none, fewer than *horizon*, or of another shape.
    """
    if isinstance(actions, Mapping):
        tensors = {name: torch.as_tensor(tensor) for name, tensor in actions.items()}
        steps, each = _sizes(dynamics, tensors)
        _check_length(steps, horizon)
        raw = dynamics.action.join(tensors, (starts, steps) if each else (steps,))
        raw_BHA = raw if each else raw.expand(starts, -1, -1)
        return dynamics.encode_columns(raw_BHA.transpose(0, 1)[:horizon].contiguous())
    if not actions or isinstance(actions[0], Mapping):
        rows = [cast("Sequence[Values]", actions)] * starts
    else:
        rows = list(cast("Sequence[Sequence[Values]]", actions))
    if len(rows) != starts or len(set(map(len, rows))) != 1:
        raise ValueError(
            f"give actions for all starts, or as many sequences of one length as the {starts} "
            f"starts, got lengths {[len(row) for row in rows]}"
        )
    _check_length(len(rows[0]), horizon)
    steps = horizon or len(rows[0])
    return dynamics.encode_values([row[h] for h in range(steps) for row in rows], steps)


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
