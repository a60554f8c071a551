"""Learns the dynamics of Gymnasium's Pendulum-v1, and swings up by plans in what it learned.

A complete third-party agent: what a transition is, and where transitions come from.
`WorldModelAgent` does the rest: encoding, held-out split, training in half precision, the decision
to publish.
"""

from collections.abc import Iterator

import gymnasium
import numpy as np

from infrastructure.agent_contract import RunContext, Schedule, Transition
from infrastructure.agent_contract.transition import Box, TransitionSpec
from infrastructure.world_model_agent import WorldModelAgent

EPISODES = 60  # of 200 steps each, as Pendulum-v1 ends them
PLANNED_EPISODES = 10  # in each run after a model was published
HORIZON = 20  # steps of a plan: one second
MAX_TORQUE = 2.0  # newton metres, as Pendulum-v1 clips it


class PendulumAgent(WorldModelAgent):
    """Predicts the next state of a pendulum under a torque, and the reward."""

    name = "pendulum"

    def spec(self) -> TransitionSpec:
        """Inputs: state and torque; targets: change of state and reward."""
        state = Box(shape=(3,))  # cos(angle), sin(angle), angular velocity
        return TransitionSpec(
            observation={"state": state},
            action={"torque": Box(shape=(1,))},
            targets={"state": Box(shape=(3,), delta=True), "reward": Box()},
        )

    def schedule(self) -> Schedule:
        """Every half hour; the operator's setting wins."""
        return Schedule.parse("every 30m")

    def collect(self, context: RunContext) -> Iterator[Transition]:
        """Swing up by plans in the published model; before one, under a torque that changes slowly.

        The group is the episode. There is no propensity, because a continuous torque has a
        density instead of a probability.
        """
        from infrastructure.world_model.planning import PlanSettings

        rng = np.random.default_rng(context.seed)
        env = gymnasium.make("Pendulum-v1")
        model = self.published_model(context)
        settings = PlanSettings(bounds={"torque": (-MAX_TORQUE, MAX_TORQUE)})
        planner = None if model is None else model.planner(HORIZON, settings, seed=context.seed)
        episodes = EPISODES if planner is None else PLANNED_EPISODES
        for episode in range(episodes):
            state, _ = env.reset(seed=int(rng.integers(2**31)))
            torque, truncated = 0.0, False
            if planner is not None:
                planner.reset()
            while not truncated:  # Pendulum-v1 never terminates; it is truncated
                if planner is not None:
                    plan = planner.plan({"state": state.tolist()})
                    action = np.array(plan.actions[0]["torque"], dtype=np.float32)
                else:
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
            context.report_progress(episode + 1, episodes, unit="episodes")
        env.close()
