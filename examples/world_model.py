"""A world model that predicts whether an action repairs a file."""

from __future__ import annotations

import asyncio

from genesis_fp16.settings import library_precision
from infrastructure.agent_contract import Transition
from infrastructure.world_model import WorldModel

transitions = [
    Transition(
        group=f"task-{number // 4}",
        observation={"state": f"file {number} has a bug"},
        action={"action": "fix it" if number % 3 else "ignore it"},
        next_observation={"success": bool(number % 3), "improvement": float(number % 3)},
    )
    for number in range(400)
]
world_model = WorldModel()
training = world_model.train(
    transitions, num_epochs=2, device="auto", precision=library_precision()
)
asyncio.run(training)
print(world_model.training_history[-1]["fp16_overflow_batches"], world_model.training_stats)
prediction = asyncio.run(world_model.predict("file 7 has a bug", "fix it"))
print(prediction.success_probability)
