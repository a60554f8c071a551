"""An agent with a network of its own, which misbehaves as a file beside its models asks.

Copied by a test into a folder of its own on the module search path.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

from infrastructure.agent_contract.transition import Box, Discrete, TransitionSpec
from infrastructure.world_model import EnsembleNetwork
from infrastructure.world_model_agent import WorldModelAgent

SPEC = TransitionSpec(
    observation={"load": Box()},
    action={"tool": Discrete(values=("x", "y"))},
    targets={"ok": Discrete(values=("no", "yes")), "reward": Box()},
    success=("ok", "yes"),
)
DEED = Path(os.environ.get("OWN_NETWORK_DEED", "/nonexistent"))
sys.stdout.write("an agent that prints when it is imported")
LEAKED = []


class OwnNetwork(EnsembleNetwork):
    """The library's, as a class of its own."""

    def forward(self, *inputs):
        sys.stdout.write("and when it predicts")
        os.write(1, b"{}\n")
        deed = DEED.read_text() if DEED.exists() else ""
        if deed == "hang":
            time.sleep(3600)
        elif deed == "crash":
            ctypes.string_at(0)
        elif deed == "leak":
            LEAKED.append(bytearray(os.urandom(1 << 20) * 500))
        return super().forward(*inputs)


class OwnAgent(WorldModelAgent):
    """Its name is the test's."""

    name = "own"

    def spec(self):
        return SPEC

    def collect(self, context):
        yield from ()

    def build_model(self, shape):
        return OwnNetwork(shape, members=1, hidden=8)


if DEED.exists() and DEED.read_text() == "exit":
    sys.exit(3)
