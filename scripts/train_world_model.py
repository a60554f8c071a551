"""Train a world model in this process on the transitions that an agent has recorded.

``python scripts/train_world_model.py [AGENT] [--epochs N] [--save FOLDER]``; SE-Darwin by default.
Device, precision and options of the trainer come from the settings; ``ENABLE_FP16_TRAINING=false``
means FP32. ``genesis-fp16 run AGENT`` does a whole run instead: it also collects and publishes.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.plugins.discovery import installed_agent
from genesis_fp16.plugins.loading import load_agent
from genesis_fp16.settings import library_precision, load_settings
from genesis_fp16.worker.config import trainer_config
from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.training.loop import TrainingDivergedError
from infrastructure.training.precision import resolve_device
from infrastructure.trajectories import ReplayBuffer
from infrastructure.world_model import WorldModel
from infrastructure.world_model_agent import WorldModelAgent


async def train(agent_name: str, epochs: int | None, folder: Path | None) -> None:
    """Train, print statistics and metrics, and save the model in *folder*, if given."""
    settings, precision = load_settings(), library_precision()
    point = installed_agent(agent_name, settings.home.absolute())
    agent = load_agent(point.target, agent_name, definition=point.definition)
    if not isinstance(agent, WorldModelAgent):
        raise SystemExit(f"agent {agent_name!r} does not train a world model")
    agent_folder = settings.home / "agents" / agent_name
    model = WorldModel(agent.spec(), seed=settings.seed)
    try:
        await model.train(
            ReplayBuffer(agent_folder / "replay"),
            num_epochs=epochs,
            config=trainer_config(
                settings.trainer_options(), agent_folder, resolve_device(settings.device)
            ),
            device=settings.device,
            precision=precision,
        )
    except InsufficientDataError as error:
        more = "" if error.problem else f"; genesis-fp16 run {agent_name} records more"
        raise SystemExit(f"{error}{more}") from None
    for epoch in model.training_history:
        overflows = epoch["fp16_overflow_batches"]
        print(f"epoch {epoch['epoch']}: loss {epoch['loss']:.4g}, {overflows} overflows")
    for name, value in {**model.training_stats, **model.metrics}.items():
        print(f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}")
    if folder is not None:
        model.save(folder)


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("agent", nargs="?", default="se-darwin")
    parser.add_argument("--epochs", type=int, help="passes over the data; by default as agents do")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write the model there")
    arguments = parser.parse_args()
    try:
        asyncio.run(train(arguments.agent, arguments.epochs, arguments.save))
    except (GenesisError, ValueError, TrainingDivergedError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
