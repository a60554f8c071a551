"""Genesis' own builder asks before it acts, and stores as ever: see docs/how-to/genesis.md.

Run it in Genesis' environment, with ``genesis-client`` in it, not in ours. Frameworks that are not
installed there are replaced by stand-ins, and named.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import logging
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from genesis_client import Agent
from genesis_client.trajectories import record_trajectories

FRAMEWORKS = {
    "agent_framework": ("azure", "observability"),
    "azure": ("identity", "identity.aio"),
}


def import_builder(checkout: Path) -> ModuleType:
    """Import the builder's own module; name the frameworks that it has to do without."""
    sys.path.insert(0, str(checkout))
    missing = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is None]
    for name in missing:
        for module in (name, *(f"{name}.{part}" for part in FRAMEWORKS[name])):
            sys.modules[module] = MagicMock()
    if missing:
        print("not installed, so replaced by stand-ins:", ", ".join(missing))
    try:
        return importlib.import_module("agents.builder_agent_enhanced")
    except FileNotFoundError:  # its logging writes to a fixed folder of its authors
        print("without its logging, whose folder does not exist")
        logging_config: Any = ModuleType("infrastructure.logging_config")
        logging_config.get_logger = logging.getLogger
        for name in ("genesis", "infrastructure", "agent", "a2a"):
            setattr(logging_config, f"{name}_logger", logging.getLogger(name))
        sys.modules[logging_config.__name__] = logging_config
        sys.modules.pop("infrastructure", None)
        return importlib.import_module("agents.builder_agent_enhanced")


def make_order(draw: random.Random, number: int) -> dict[str, Any]:
    """Draw an order of a customer; title or notes may be missing."""
    return {
        "number": number,
        "title": draw.choice(["Tea Shop", "Bike Rent", "Book Club", None, None]),
        "notes": draw.choice([["search", "cart", "login"], ["chat", "map"], None, None]),
    }


def make_plans(order: dict[str, Any]) -> list[dict[str, str]]:
    """Return three plans: what Genesis calls the application, and which features it gets."""
    number, features = order["number"], ["home"]
    plans = {
        "the title as the name": (order["title"], features),
        "the number as the name": (number, features),
        "the features from the notes": (f"Order {number}", order["notes"]),
    }
    return [
        {
            "tool": "generate_frontend",
            "arguments": json.dumps({"app_name": name, "features": wanted}),
            "reasoning": reasoning,
        }
        for reasoning, (name, wanted) in plans.items()
    ]


async def build(builder: Any, agent: Agent, order: dict[str, Any], draw: random.Random) -> bool:
    """Rank three plans, build by the one chosen, and report what came of it."""
    builder.business_id = f"order{order['number']}"
    plans = make_plans(order)
    draw.shuffle(plans)  # the builder's own order, the best first: it does not know better
    given = {name: order[name] is not None for name in ("title", "notes")}
    observation = {
        "task": "Build an application from an order",
        "state": json.dumps(given),
        "agent": f"builder_agent_{builder.business_id}",
        "step": 0.0,
        "last_tool": "",
        "last_result": "",
    }
    with agent.choose(observation, plans, group=observation["agent"]) as decision:
        arguments = json.loads(decision.action["arguments"])
        result = await builder.build_from_spec(
            {
                "business_name": arguments["app_name"],
                "executive_summary": {"core_features": arguments["features"]},
            }
        )
        success = bool(result["success"])
        outcome = {"success": success, "score": float(success)}
        decision.report(outcome, reward=float(success), terminated=True)
    return success


def main() -> None:
    """Build so many orders, and print how many succeeded."""
    arguments = argparse.ArgumentParser(description="Let Genesis' builder ask before it builds")
    arguments.add_argument("checkout", type=Path)
    arguments.add_argument("--home", type=Path, help="home of the daemon; .genesis in the checkout")
    arguments.add_argument("--builds", type=int, default=400)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    checkout, draw = given.checkout.resolve(), random.Random(given.seed)
    module: Any = import_builder(checkout)
    logging.disable(logging.ERROR)
    builder = module.EnhancedBuilderAgent("orders")
    with Agent("builder", home=given.home or checkout / ".genesis", deadline=0.5) as agent:
        record_trajectories(
            builder.replay_buffer, {"builder_agent_*": agent}, group=lambda each: each.agent_id
        )
        first = given.seed * 1_000_000
        successes = sum(
            asyncio.run(build(builder, agent, make_order(draw, number), draw))
            for number in range(first, first + given.builds)
        )
        until = time.monotonic() + 120.0
        while not agent.flush(10.0) and time.monotonic() < until:
            time.sleep(1.0)  # a predictor takes seconds to start; without one, reports wait on disk
        status = agent.status
    print(
        f"{successes} of {given.builds} builds succeeded; {status.sent} reports sent, "
        f"{status.waiting_bytes} bytes wait {status.problem}"
    )


if __name__ == "__main__":
    main()
