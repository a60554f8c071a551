"""Learns the dynamics of Gymnasium's Pendulum-v1 from its own swings.

A whole third-party agent: what a transition is, and where transitions come from. Everything
else (encoding, held-out split, training in half precision, the decision to publish) is
`WorldModelAgent`'s.
"""

from collections.abc import Iterator

import gymnasium
import numpy as np

from infrastructure.agent_contract import RunContext, Schedule, Transition
from infrastructure.agent_contract.transition import Box, TransitionSpec
from infrastructure.world_model_agent import WorldModelAgent

EPISODES = 60  # of 200 steps each, as Pendulum-v1 ends them
MAX_TORQUE = 2.0  # newton metres, as Pendulum-v1 clips it


class PendulumAgent(WorldModelAgent):
    """Predicts how a pendulum answers a torque, and the reward of it."""

    name = "pendulum"

    def spec(self) -> TransitionSpec:
        """State and torque in; change of state and reward out."""
        state = Box(shape=(3,))  # cos(angle), sin(angle), angular velocity
        return TransitionSpec(
            observation={"state": state},
            action={"torque": Box(shape=(1,))},
            targets={"state": Box(shape=(3,), delta=True), "reward": Box()},
        )

    def schedule(self) -> Schedule:
        """Every half hour, unless the operator says otherwise."""
        return Schedule.parse("every 30m")

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Swing under a torque that wanders slowly, so that fast and slow states are seen.

        The group is the episode. No propensity: a continuous torque has a density, and no
        probability, of being chosen.
        """
        rng = np.random.default_rng(context.seed)
        env = gymnasium.make("Pendulum-v1")
        for episode in range(EPISODES):
            state, _ = env.reset(seed=int(rng.integers(2**31)))
            torque, truncated = 0.0, False
            while not truncated:  # Pendulum-v1 never terminates, it is cut off
                torque = 0.9 * torque + rng.normal(scale=0.8)
                action = np.array([np.clip(torque, -MAX_TORQUE, MAX_TORQUE)], dtype=np.float32)
                following, reward, terminated, truncated, _ = env.step(action)
                yield Transition(
                    group=f"{context.run_id}/{episode}",
                    observation={"state": state.tolist()},
                    action={"torque": action.tolist()},
                    reward=float(reward),
                    next_observation={"state": following.tolist()},
                    terminated=terminated,
                )
                state = following
            context.report_progress(episode + 1, EPISODES, unit="episodes")
        env.close()
