"""Agents whose names, errors and log lines try to run script in the page, or whose runs differ.

Copied beside the quick agent by a fixture.
"""

from collections.abc import Iterator
from dataclasses import replace

from quick_agent import QuickAgent

from infrastructure.agent_contract import RunContext, TrainingJob, Transition

MARKUP = "<img src=x onerror=\"document.title='taken'\">"
ATTACK = "</pre><script>document.title='taken'</script>" + MARKUP
TOO_STEEP = 1e12  # times the lowest loss scale, 2**-16, it is still far beyond FP16's 65504


class HostileAgent(QuickAgent):
    """Fails, and writes markup into its log and its error."""

    name = "hostile"

    def collect(self, context: RunContext) -> Iterator[Transition]:
        print(f"log line {ATTACK}", flush=True)  # noqa: T201
        raise ValueError(f"error {ATTACK}")
        yield


class StormyAgent(QuickAgent):
    """Has gradients that FP16 cannot hold in two steps of five."""

    name = "stormy"

    def build_job(self, context: RunContext, transitions) -> TrainingJob:
        job = super().build_job(context, transitions)

        def batches(epoch: int):
            for number, batch in enumerate(job.batches(epoch)):
                steep = number % 5 < 2
                yield {**batch, "factor": batch["inputs"].new_tensor(TOO_STEEP if steep else 1.0)}

        def loss(forward, batch):
            return job.loss(forward, batch) * batch["factor"]

        return replace(job, batches=batches, loss=loss)
