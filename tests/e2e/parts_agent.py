"""Trains the job of five parts; its runs are as long and as slow as those of the quick agent.

Copied beside the quick agent by a fixture. It leaves hashes of what a run has made in its folder.
"""

import json
import time
from dataclasses import replace

from parts_job import parts_job, trained
from pydantic import BaseModel
from quick_agent import QuickAgent, QuickSettings

from infrastructure.agent_contract import EvaluationReport, Publication, RunContext
from infrastructure.agent_contract.on_policy_job import OnPolicyJob

WEIGHTS = "weights.json"
HOLD, HELD = "hold", "held"  # while the first exists no environment steps, and the second says so
TOO_STEEP = 1e12  # times the lowest loss scale, 2**-16, it is still far beyond FP16's 65504


class PartsSettings(QuickSettings):
    """Also how many rounds an epoch has, and which part has gradients that FP16 cannot hold."""

    rounds_per_epoch: int = 3
    steep_part: str = ""


class PartsAgent(QuickAgent):
    """Trains an actor and critics beside a world model."""

    name = "parts"

    def settings_model(self) -> type[BaseModel]:
        return PartsSettings

    def build_job(self, context: RunContext, transitions) -> OnPolicyJob:
        del transitions
        settings = context.settings or PartsSettings()

        def reach(place: str, count: int) -> None:
            if place == "batch":
                time.sleep(settings.pause_seconds)
            while place == "act" and (context.agent_folder / HOLD).exists():
                (context.agent_folder / HELD).touch()
                time.sleep(0.02)

        job = parts_job(
            context,
            epochs=settings.epochs,
            rounds=settings.rounds_per_epoch,
            batches=settings.batches_per_epoch,
            reach=reach,
        )
        parts = [_steep(part) if part.name == settings.steep_part else part for part in job.parts]
        return replace(job, parts=parts)

    def publish(self, context: RunContext, model, report: EvaluationReport) -> Publication:
        found = trained(context, model, report)
        (context.run_folder / WEIGHTS).write_text(json.dumps(found))
        return Publication(published=False, reason="a test", metrics=report.evaluation.metrics)


def _steep(part):
    return replace(part, loss=lambda *arguments: TOO_STEEP * part.loss(*arguments))
