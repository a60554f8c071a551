"""What this project says about CUDA, and where it says so.

A claim is decided by one section. A test holds every quotation to its document.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEP, GUIDE = "docs/explanation/training-step.md", "docs/how-to/training-loop.md"
COSTS, PREFLIGHT = "docs/explanation/benchmarks.md", "docs/how-to/preflight.md"
RANKS, FLEET = "docs/how-to/distributed.md", "docs/how-to/fleet.md"
POLICIES = "docs/explanation/policy-measurements.md"
ROLLBACK = "docs/explanation/precision-and-rollback.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claim of the documents about CUDA.

    Attributes:
        name: Name in the results.
        section: Section that decides it, see `plan.SECTIONS`.
        document: Document that makes it, from the root of the repository.
        quote: Words of that document.
        test: What holds if it is true, with the limit.
    """

    name: str
    section: str
    document: str
    quote: str
    test: str

    def line(self) -> int:
        """Line of the document in which the quotation begins.

        Raises:
            ValueError: The document does not hold it.
        """
        text = (ROOT / self.document).read_text()
        words = r"\s+".join(map(re.escape, self.quote.split()))
        found = re.search(words, text)
        if found is None:
            raise ValueError(f"{self.document} does not say {self.quote!r}: correct claims.py")
        return text.count("\n", 0, found.start()) + 1


CLAIMS = (
    Claim(
        name="auto-takes-cuda",
        section="device",
        document=GUIDE,
        quote='`device="auto"` takes CUDA where it is available.',
        test="`auto` is resolved to a CUDA device, and a small training by `train()` is on it",
    ),
    Claim(
        name="memory-metric",
        section="device",
        document="genesis_fp16/metrics/series.py",
        quote="Peak GPU memory of the last steps",
        test="every window of statistics of a training holds the peak that torch counted for it",
    ),
    Claim(
        name="graph-same-steps",
        section="graph-steps",
        document=STEP,
        quote="records a whole step, from the forward pass to the update of the loss scale, and "
        "repeats it with one launch",
        test="weights, moments and counters after 40 steps by a graph are those of eager steps "
        "(relative 1e-4), for three precisions and three optimizers, with dropout and overflows",
    ),
    Claim(
        name="graph-no-read",
        section="graph-steps",
        document="README.md",
        quote="never reads the device",
        test="steps by a graph pass under CUDA's sync debug mode `error`",
    ),
    Claim(
        name="graph-flip-and-load",
        section="graph-flip",
        document=STEP,
        quote="A flip of precision switches to that precision's graph, or records it. Loading a "
        "state drops all graphs.",
        test="weights and counters after two flips and a load are those of eager steps",
    ),
    Claim(
        name="graph-flip-next-step",
        section="graph-flip",
        document="README.md",
        quote="jobs on this machine train in FP32 within two seconds",
        test="after a flip the very next step computes in the other precision, for a graph too; "
        "flip and step take less than two seconds, recording included",
    ),
    Claim(
        name="graph-failure",
        section="graph-failure",
        document=STEP,
        quote="After a failure weights, counters and random numbers are as before",
        test="after a recording that reads the device, all of them are those of eager steps "
        "(torch 2.13 or newer)",
    ),
    Claim(
        name="graph-failure-old-torch",
        section="graph-failure",
        document=STEP,
        quote="A torch older than 2.13 does not survive a failure: the run ends with the remedy.",
        test="the failed recording raises an error that names the remedy (torch older than 2.13)",
    ),
    Claim(
        name="graph-first-steps",
        section="graph-rules",
        document=STEP,
        quote="The first three steps of each shape of batch and each precision run eagerly; the "
        "fourth is recorded.",
        test="three calls of the loss are eager, the fourth records, and later ones call it never",
    ),
    Claim(
        name="graph-eight-shapes",
        section="graph-rules",
        document=STEP,
        quote="After eight shapes further ones run eagerly.",
        test="a ninth shape of batch calls the loss at every step, and one warning is logged",
    ),
    Claim(
        name="graph-changing-settings",
        section="graph-rules",
        document=STEP,
        quote="A scheduler that changes another setting, such as the momentum in `OneCycleLR`, "
        "makes steps eager.",
        test="under OneCycleLR the loss is called at every step, and nothing fails",
    ),
    Claim(
        name="graph-telemetry",
        section="graph-rules",
        document=ROLLBACK,
        quote="CUDA graphs stay in use: the repeated step runs beside them.",
        test="a training by graphs with telemetry measures lost updates and refuses no graph",
    ),
    Claim(
        name="preflight-scale",
        section="preflight",
        document=PREFLIGHT,
        quote="at this scale no FP16 step overflows, and at twice this scale one does",
        test="so it is for the attention model of the tests; all three precisions are timed, with "
        "their peak memory",
    ),
    Claim(
        name="library-auto",
        section="preflight",
        document=GUIDE,
        quote="On a device without the half type the training runs in FP32, and "
        '`training_stats["precision_reason"]` tells why',
        test="the world model trains in FP16 on CUDA by default, with the reason `default`, and "
        "predicts on the CPU afterwards",
    ),
    Claim(
        name="reads",
        section="steps-small",
        document=COSTS,
        quote="The step reads the device 0 times; a naive FP16 loop reads it 3 times.",
        test="CUDA's sync debug mode counts 0 waits in a step of ours in every precision and mode, "
        "and 3 in the naive loop",
    ),
    Claim(
        name="graph-small",
        section="steps-small",
        document=COSTS,
        quote="a small step by a CUDA graph in FP16 takes at most a quarter of a textbook loop's "
        "time in IEEE FP32",
        test="ratio of times, median of the rounds, at most 0.25",
    ),
    Claim(
        name="graph-medium",
        section="steps-medium",
        document=COSTS,
        quote="a medium one at most half",
        test="ratio of times, median of the rounds, at most 0.5",
    ),
    Claim(
        name="half-faster-large",
        section="steps-large",
        document=ROLLBACK,
        quote="Half precision is faster for large models on GPUs that compute it natively",
        test="large: ours in FP16 and in BF16 take less time than ours in IEEE FP32 and than ours "
        "in TF32 (upper quartile of the ratio below 1)",
    ),
    Claim(
        name="memory-large",
        section="steps-large",
        document=COSTS,
        quote="a large step in FP16 needs at most 0.60 of the memory of one in FP32",
        test="ratio of the peaks of model, optimizer and step, at most 0.60",
    ),
    Claim(
        name="graph-helps-tiny",
        section="steps-tiny",
        document=STEP,
        quote="It helps small models, whose launches cost more than their arithmetic.",
        test="tiny: a step by a graph takes less time than an eager one, in FP16 (upper quartile "
        "of the ratio below 1)",
    ),
    Claim(
        name="accuracy",
        section="accuracy",
        document=COSTS,
        quote="the held-out loss after a training in half precision is within 0.5 % of FP32's",
        test="small, medium and large, FP16 and BF16: median over seeds of the ratio of held-out "
        "losses, at most 1.005",
    ),
    Claim(
        name="fleet-bits",
        section="fleet",
        document=FLEET,
        quote="So each product is tried once on random numbers of its shape, forward and "
        "backward, and stacked only if every bit agrees.",
        test="every member of a fleet of 16 on the GPU ends with the bits of the same training "
        "alone",
    ),
    Claim(
        name="fleet-adam",
        section="fleet",
        document=FLEET,
        quote="the optimizer's kernel is still called once per member",
        test="a step of a fleet of 16 calls the fused kernel 16 times",
    ),
    Claim(
        name="live-flip",
        section="daemon",
        document=ROLLBACK,
        quote="| on this machine | 2 s |",
        test="a real daemon's run on CUDA, by graphs, follows flag and override, there and back, "
        "within two seconds each time (`deploy/drill/drill.py`)",
    ),
    Claim(
        name="nccl-one-step",
        section="nccl",
        document=RANKS,
        quote="So two ranks compute the same step as one process with twice the `accumulate`.",
        test="over NCCL with two GPUs: weights after 12 steps under DDP and FSDP2 are those of one "
        "process, in FP16, BF16 and FP32 (relative 1e-2 in half precision, 1e-4 in FP32)",
    ),
    Claim(
        name="nccl-skip-together",
        section="nccl",
        document=RANKS,
        quote="So all ranks skip the same steps and keep the same loss scale, even if only one "
        "rank has an overflow",
        test="over NCCL with two GPUs: an overflow on one rank is skipped by both, and the scales "
        "agree",
    ),
    Claim(
        name="telemetry-share",
        section="telemetry",
        document=ROLLBACK,
        quote="at most 0.9 % of the steps' time",
        test="small and medium, three precisions: telemetry takes at most 1 % of the steps' time",
    ),
    Claim(
        name="mismatch-ratio",
        section="mismatch",
        document=POLICIES,
        quote="Three more bits of mantissa are 8 times less error in a probability and 64 times "
        "less divergence",
        test="small policy: BF16/BF16 divided by FP16/FP16 is 32 to 128 in k3 and 4 to 16 in the "
        "mean difference, or its 95 % interval reaches there",
    ),
    Claim(
        name="mismatch-order",
        section="mismatch",
        document=POLICIES,
        quote="A mixed pair is as bad as its BF16 side",
        test="small policy: k3 of every pair with BF16 is above k3 of every pair without it",
    ),
)


def claims_of(section: str) -> tuple[Claim, ...]:
    """Claims that *section* decides."""
    return tuple(claim for claim in CLAIMS if claim.section == section)
