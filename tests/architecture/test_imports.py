"""Who may import what: the daemon stays small, the environment has one reader."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Files = Callable[..., list[Path]]
OURS = ("genesis_fp16", "infrastructure", "agents")
DAEMON_MAY_IMPORT = (
    "infrastructure.agent_contract",
    "infrastructure.decisions",
    "infrastructure.events",
    "infrastructure.files",
    "infrastructure.options",
    "infrastructure.trajectories",
)
METRIC_TYPES = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}


def _modules_after_importing(*names: str) -> list[str]:
    """Names in ``sys.modules`` of a fresh interpreter that imported *names*."""
    script = "import sys, json, importlib\n"
    script += f"[importlib.import_module(name) for name in {names!r}]\n"
    script += "print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    return json.loads(done.stdout)


def _daemon_modules(root: Path) -> list[str]:
    """Every module of `genesis_fp16` that the daemon's own process may run."""
    paths = sorted((root / "genesis_fp16").rglob("*.py"))
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in paths]
    apart = (
        *("genesis_fp16.worker", "genesis_fp16.predictor", "genesis_fp16.models"),
        *("genesis_fp16.__main__", "genesis_fp16.compatible", "genesis_fp16.telemetry"),
    )
    # Alembic runs its scripts by path, inside a migration; they cannot be imported by name.
    return [
        name.removesuffix(".__init__")
        for name in names
        if not name.startswith(apart) and ".migrations" not in name
    ]


@pytest.mark.process
def test_daemon_imports_neither_torch_nor_plugins_nor_the_library(root: Path) -> None:
    modules = _modules_after_importing(*_daemon_modules(root))
    assert "genesis_fp16.daemon.daemon" in modules
    foreign = {"torch", "agents", "numpy"}
    assert [name for name in modules if name.split(".")[0] in foreign] == []
    library = [name for name in modules if name.startswith("infrastructure.")]
    assert [name for name in library if not name.startswith(DAEMON_MAY_IMPORT)] == []


@pytest.mark.process
def test_the_process_that_serves_imports_no_telemetry() -> None:
    modules = _modules_after_importing("genesis_fp16.daemon.daemon")
    assert [name for name in modules if name.startswith("opentelemetry")] == []


@pytest.mark.parametrize("name", DAEMON_MAY_IMPORT)
def test_what_both_sides_share_imports_neither(name: str) -> None:
    modules = _modules_after_importing(name)
    assert [m for m in modules if m.split(".")[0] in {"torch", "agents", "genesis_fp16"}] == []


def _uses(path: Path, names: set[str]) -> Iterator[tuple[str, str, int]]:
    """Each ``module.name`` that *path* reads or imports, with its line, if it is one of *names*."""
    source = path.read_text()
    if not any(name in source for name in names):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = [(node.value.id, node.attr)]
        elif isinstance(node, ast.ImportFrom):
            used = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        yield from ((module, name, node.lineno) for module, name in used if name in names)


def test_one_module_reads_the_environment(files: Files, root: Path) -> None:
    readers = {
        str(path.relative_to(root))
        for path in files(".py", below=(*OURS, "scripts", "examples"))
        for module, _, _ in _uses(path, {"environ", "environb", "getenv"})
        if module == "os"
    }
    sets_one_for_pydantic = "genesis_fp16/cli/program.py"
    keeps_a_path_from_children = "genesis_fp16/system/own_distribution.py"
    of_tests_in_the_sandbox = "agents/se_darwin/fork_server/builtin_fixtures.py"
    of_a_candidate_in_the_sandbox = "agents/se_darwin/fork_server/private_folder.py"
    a_key_of_the_users_endpoint = "agents/se_darwin/llm/key.py"
    standard_variables = "genesis_fp16/telemetry/environment.py"
    assert readers == {
        "genesis_fp16/settings/source.py",
        standard_variables,
        a_key_of_the_users_endpoint,
        sets_one_for_pydantic,
        keeps_a_path_from_children,
        of_tests_in_the_sandbox,
        of_a_candidate_in_the_sandbox,
    }


def test_only_metrics_declares_metrics(files: Files, root: Path) -> None:
    declaring = {
        str(path.relative_to(root))
        for path in files(".py", below=OURS)
        for module, _, _ in _uses(path, METRIC_TYPES)
        if module.split(".")[0] == "prometheus_client"
    }
    assert declaring == {"genesis_fp16/metrics/series.py"}


def test_library_configures_no_logging(files: Files, root: Path) -> None:
    configuring = [
        f"{path.relative_to(root)}:{line}"
        for path in files(".py", below=("infrastructure", "agents"))
        for module, name, line in _uses(path, {"basicConfig", "configure"})
        if (module, name) in {("logging", "basicConfig"), ("structlog", "configure")}
    ]
    assert configuring == []


def test_kinds_of_job_answer_questions_instead_of_being_asked(files: Files, root: Path) -> None:
    kinds = re.compile(r"isinstance\([^()]*\b(?:OnPolicyJob|TrainingJob)\b")
    asked = {
        str(path.relative_to(root)): len(kinds.findall(path.read_text()))
        for path in files(".py", below=OURS)
    }
    counts = {path: count for path, count in asked.items() if count}
    assert counts == {"genesis_fp16/worker/lab.py": 2, "infrastructure/training/rounds/kinds.py": 2}


def test_one_module_of_the_loop_and_the_worker_decides_the_precision(
    files: Files, root: Path
) -> None:
    """`FP16Trainer` applies `resolve` too, for callers without the loop."""
    names = {"resolve", "RoleResolver", "AutoPrecision", "fp32_reason_of_device"}
    loop = "infrastructure/training/loop/precision_decision.py"
    users = {
        str(path.relative_to(root))
        for path in files(".py", below=OURS)
        for module, _, _ in _uses(path, names)
        if module.startswith("infrastructure.")
        and path.relative_to(root).is_relative_to("infrastructure/training/loop")
        | path.relative_to(root).is_relative_to("genesis_fp16/worker")
    }
    assert users == {loop}


def test_one_module_writes_and_reads_tensors(files: Files, root: Path) -> None:
    callers = {
        str(path.relative_to(root))
        for path in files(".py", below=OURS)
        for module, _, _ in _uses(path, {"save", "load"})
        if module == "torch"
    }
    assert callers == {"infrastructure/training/tensor_files.py"}
