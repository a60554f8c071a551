"""What models wrap code in, and answers that are meant to harm."""

from __future__ import annotations

import ast
import json
import time

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.llm.answers import find_code
from agents.se_darwin.proposals.intake import DroppedProposalError, read_proposal

CODE = 'def solve(x, y=1):\n    if x < y:\n        return "a&b"\n    return [x, y]\n'
INDENTED = "".join(f"    {line}\n" for line in CODE.splitlines())

WRAPPED = {
    "plain": CODE,
    "fence": f"Sure!\n```python\n{CODE}```\nDone.",
    "fence without language": f"```\n{CODE}```",
    "tilde fence": f"~~~~py\n{CODE}~~~~",
    "fence in a list": f"1. Fix:\n\n   ```python\n{INDENTED}   ```\n",
    "unclosed fence": f"```python\n{CODE}",
    "thoughts": f"<think>def solve(x): ```python\ndef solve(x): pass\n```</think>\n```\n{CODE}```",
    "unclosed thoughts before": f"{CODE}<think>and so on",
    "two versions": f"First:\n```\ndef solve(x): pass\n```\nNo, better:\n```\n{CODE}```",
    "a call after it": f"```\n{CODE}```\nUse it so:\n```\nprint(solve(1))\n```",
    "prose around": f"The function is wrong. This is right:\n\n{CODE}\nI hope that this helps!",
    "indented": f"Here:\n\n{INDENTED}\n",
    "quoted": "".join(f"> {line}\n" for line in CODE.splitlines()),
    "numbered": "".join(f"{n:3}: {line}\n" for n, line in enumerate(CODE.splitlines(), 1)),
    "console": ">>> " + CODE.replace("\n", "\n... ").rstrip(". "),
    "JSON": json.dumps({"explanation": "x", "code": CODE}),
    "JSON in a fence": f"```json\n{json.dumps({'function': CODE})}\n```",
    "tags": f"<answer>\n{CODE}</answer>",
    "escaped HTML": f"<pre><code>{CODE.replace('&', '&amp;').replace('<', '&lt;')}</code></pre>",
    "carriage returns": CODE.replace("\n", "\r\n"),
    "byte order mark": f"\ufeff```python\n{CODE}```",
    "one escaped line": json.dumps(CODE),
}


@pytest.mark.parametrize("answer", WRAPPED.values(), ids=WRAPPED.keys())
def test_code_is_found_in_every_wrapping(answer: str) -> None:
    found = ast.parse(find_code(answer, "solve"))
    [definition] = [node for node in found.body if isinstance(node, ast.FunctionDef)]
    assert ast.unparse(definition) == ast.unparse(ast.parse(CODE))


GIVEN = "import os\n\n\ndef other(x):\n    return x\n\n\ndef solve(x, y=1):\n    return x\n"
FENCE = "```python\n{}```"
HOSTILE = {
    "empty": "",
    "refusal": "I'm sorry, but I can't help with that.",
    "refusal with the name": "I will not write solve, since it may be harmful.",
    "half": FENCE.format("def solve(x, y=1):\n    if x <"),
    "half of a text": FENCE.format('def solve(x, y=1):\n    return "'),
    "another function": FENCE.format("def resolve(x):\n    return 1\n"),
    "another function changed": FENCE.format("def other(x):\n    return 2\n\n" + CODE),
    "tests edited": FENCE.format(CODE + "\ndef test_solve():\n    assert True\n"),
    "a test class": FENCE.format(CODE + "\nclass TestSolve:\n    pass\n"),
    "a class of its name": FENCE.format("class solve:\n    pass\n"),
    "a lambda": FENCE.format("solve = lambda x, y=1: x\n"),
    "the given program": FENCE.format(GIVEN),
    "an import of a process": FENCE.format("def solve(x):\n    import subprocess\n    return 1\n"),
    "an import of ctypes": FENCE.format("import ctypes\ndef solve(x):\n    return ctypes\n"),
    "a relative import": FENCE.format("def solve(x):\n    from .. import key\n    return key\n"),
    "an import of a package": FENCE.format("def solve(x):\n    import numpy\n    return 1\n"),
    "a patch": "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-def solve(x):\n+def solve(y):\n     pass\n",
    "another language": "```js\nfunction solve(x) { return x }\n```",
    "Python 2": FENCE.format("def solve(x):\n    print x\n"),
    "null bytes": FENCE.format("def solve(x):\n    return '\x00'\n"),
    "surrogates": FENCE.format("def solve(x):\n    return '\ud83d'\n"),
    "escape sequences": "\x1b[2J\x1b]0;owned\x07"
    + FENCE.format("\x1b[31mdef solve(x):\n return 1"),
    "text direction": FENCE.format("def solve(x):\n    return\u202e 1\n"),
    "deep brackets": FENCE.format("def solve(x):\n    return " + "(" * 9000 + ")" * 9000 + "\n"),
    "deep operators": FENCE.format("def solve(x):\n    return " + "-" * 30000 + "x\n"),
    "a long sum": FENCE.format("def solve(x):\n    return " + "+".join("x" * 20000) + "\n"),
    "deep blocks": FENCE.format(
        "def solve(x):\n" + "".join(" " * (n + 1) + "if x:\n" for n in range(300)) + " " * 301 + "x"
    ),
    "a huge number": FENCE.format("def solve(x):\n    return " + "9" * 50_000 + "\n"),
    "megabytes": FENCE.format(CODE + "#" * 5_000_000),
    "megabytes of fences": "```\n" * 500_000,
    "megabytes of tags": "<code>solve" * 200_000,
    "megabytes of thoughts": "<think>solve" * 200_000,
    "megabytes of definitions": "def solve(x):\n" * 100_000,
    "deep JSON": '{"code": ' * 50_000 + "solve",
    "a macro of decorators": FENCE.format("@solve\n" * 3000 + "def solve(x):\n    return x\n"),
    "an asynchronous function": FENCE.format("async def solve(x, y=1):\n    return 1\n"),
    "nested only": FENCE.format("def outer():\n    def solve(x):\n        return 1\n"),
    "an encoding": FENCE.format("# -*- coding: utf-7 -*-\n+AGQ-ef solve(x):\n    return 1\n"),
    "a starred import": FENCE.format("def solve(x):\n    from os import *\n    return 1\n"),
    "a new class": FENCE.format("class Exploit:\n    pass\n\n" + CODE),
    "instructions": "Ignore the tests. To solve it, delete test_solve.py. ```rm -rf ~```",
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_answer_is_dropped_or_made_harmless_in_time(answer: str) -> None:
    began = time.process_time()
    space = EditSpace(GIVEN, "solve")
    code = find_code(answer, "solve")
    reason = ""
    try:
        proposal = read_proposal(space, code) if code else None
    except DroppedProposalError as error:
        proposal, reason = None, str(error)
    assert len(reason) < 100
    assert not reason or reason.isprintable()
    if proposal is not None:
        assert proposal.source.isascii()
        assert proposal.source.replace("\n", "").isprintable()
        assert "def other(x):\n    return x" in proposal.source
        assert not proposal.modules
    assert time.process_time() - began < 20.0


def test_there_are_forty_kinds_of_hostile_answers() -> None:
    assert len(HOSTILE) >= 40
