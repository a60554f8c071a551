"""``python -m benchmarks.waltzrl.recorded``: what the two agents learn from recorded conversations.

Without ``--folder`` the conversations are those of the game's imperfect teacher, with every advice.
With it, they are the files in that folder, in the format of ``docs/how-to/waltzrl.md``. Every
figure is of conversations that nothing was fitted on.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import structlog
import torch

from agents.waltzrl.game.demonstrations import record_conversations
from agents.waltzrl.recorded_agent import RecordedConversationAgent, RecordedConversationSettings
from agents.waltzrl_conversation_agent import WaltzRLConversationAgent
from agents.waltzrl_feedback_agent import WaltzRLFeedbackAgent
from benchmarks.measuring.machine import describe
from infrastructure.agent_contract import EvaluationReport, RunContext
from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.agent_contract.run_context import Budget
from infrastructure.events import PrecisionState
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.trajectories import ReplayBuffer

AGENTS: Mapping[str, type[RecordedConversationAgent]] = {
    "feedback": WaltzRLFeedbackAgent,
    "conversation": WaltzRLConversationAgent,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train each agent and print what a run reports."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    machine = describe(torch.device("cpu"))
    print(f"{machine['device']}, torch {machine['torch']}", flush=True)
    with tempfile.TemporaryDirectory(prefix="waltzrl-") as made:
        folder = options.folder
        if folder is None:
            folder = Path(made) / "conversations"
            folder.mkdir()
            found = record_conversations(Random(options.seed), options.replies)
            lines = [f"{each.model_dump_json()}\n" for each in found]
            (folder / "game.jsonl").write_text("".join(lines))
        for name in options.agent:
            begun = time.process_time()
            print(f"{name}: {_run(AGENTS[name](), folder, Path(made), options)}", flush=True)
            print(f"{name}: {time.process_time() - begun:.0f} s of CPU time", flush=True)
    return 0


def _run(
    agent: RecordedConversationAgent, folder: Path, made: Path, options: argparse.Namespace
) -> str:
    """What a run of the daemon does, in this process; returns the run's result."""
    context = RunContext(
        run_id="measured",
        attempt=1,
        agent=agent.name,
        device="cpu",
        seed=options.seed,
        agent_folder=made / agent.name,
        run_folder=made / agent.name / "run",
        budget=Budget(seconds=600.0, transitions=1_000_000),
        settings=RecordedConversationSettings(folder=folder),
        logger=structlog.get_logger(),
        report_progress=lambda *_, **__: None,
    )
    context.run_folder.mkdir(parents=True)
    with closing(ReplayBuffer(context.agent_folder / "replay")) as buffer:
        for transition in agent.collect(context):
            buffer.append(transition)
    if options.steps is not None:
        agent.training_steps = options.steps
    try:
        job = agent.build_job(context, buffer.read())
    except InsufficientDataError as error:
        return f"refused: {error}"
    result = train(
        job,
        device=torch.device("cpu"),
        precision=PrecisionState(requested="fp32", effective="fp32", reason="operator"),
        config=FP16TrainingConfig(),
        options=LoopOptions(seed=options.seed, checkpoint_interval_seconds=float("inf")),
        folder=context.run_folder / "checkpoints",
        emit=lambda _: None,
        commands=lambda: (),
    )
    if result.evaluation is None:
        raise RuntimeError("training ended without an evaluation")
    report = EvaluationReport(
        evaluation=result.evaluation, steps=result.steps, epochs=result.epochs
    )
    publication = agent.publish(context, job.model.eval(), report)
    for name, value in sorted(publication.metrics.items()):
        print(f"  {name} {value:.4f}")
    return publication.reason


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.waltzrl.recorded",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--agent", nargs="+", choices=list(AGENTS), default=list(AGENTS))
    parser.add_argument("--folder", type=Path, help="folder with *.jsonl")
    parser.add_argument("--replies", type=int, default=2000, help="first replies of the game")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="most optimizer steps")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
