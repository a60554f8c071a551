"""The example agents: their folders, their modules, and a report of a run."""

import importlib.util
from pathlib import Path
from types import ModuleType

from infrastructure.agent_contract import Evaluation, EvaluationReport

FOLDERS = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*_agent"))
REPORT = EvaluationReport(
    evaluation=Evaluation(metrics={"return": 0.0}, primary="return", higher_is_better=True),
    steps=3,
    epochs=1,
)


def load(name: str) -> ModuleType:
    """The module of the example *name*, loaded from its folder: it is not installed here."""
    [folder] = [folder for folder in FOLDERS if folder.name == name]
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
