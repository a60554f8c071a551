"""A folder in the shape of Genesis' checkout; the code and the records are written here."""

from __future__ import annotations

import json
from pathlib import Path

from genesis_fp16.cli.configured_agents import GENESIS_AGENTS

STORES = """
class Writer:
    def __init__(self, business_id):
        self.agent_id = f"{prefix}{{business_id}}"

    def end(self, buffer, trajectory):
        return buffer.store_trajectory(trajectory)
"""
STORES_BY_ARGUMENT = """
def end(buffer, make, business):
    buffer.store_trajectory(make(agent_id=f"builder_agent_{business}", reward=1.0))
"""
ADDS_CASES = "async def end(self): await self.casebank.add_case(state='', action='')\n"
FAILS_IF_IMPORTED = "raise RuntimeError('nobody imports this')\n"


def make_checkout(root: Path) -> Path:
    """Write the checkout below *root*; return its root."""
    for name in GENESIS_AGENTS:
        _write(root / "agents" / f"{name}_agent.py", FAILS_IF_IMPORTED)
    for name, prefix in {
        "spec": "spec_",
        "security": "security_",
        "deploy": "deploy_agent_",
    }.items():
        code = FAILS_IF_IMPORTED + STORES.format(prefix=prefix)
        _write(root / "agents" / f"{name}_agent.py", code)
    _write(root / "agents" / "builder_agent_enhanced.py", STORES_BY_ARGUMENT)
    _write(root / "agents" / "qa_agent.py", "def broken(:\n")
    _write(root / "agents" / "se_darwin_agent.py", ADDS_CASES)
    _write(root / "infrastructure" / "safety" / "waltzrl_feedback_agent.py", ADDS_CASES)
    _write(root / "infrastructure" / "__init__.py", FAILS_IF_IMPORTED)
    _write(root / ".env", "GENESIS_ENV=production\n")
    cases = [_case(number, "waltzrl_feedback" if number % 3 else "a_test") for number in range(30)]
    _write(root / "data" / "memory" / "casebank.jsonl", "".join(cases) + "no case\n")
    _write(root / "data" / "openai_format" / "chats.jsonl", "{}\n")
    return root


def _case(number: int, agent: str) -> str:
    case = {"state": f"state {number}", "action": "", "reward": 0.5, "metadata": {"agent": agent}}
    return json.dumps(case) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
