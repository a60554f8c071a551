"""Repair tasks: a failing program and its tests, evaluation of candidates, fault injection."""

from agents.se_darwin.tasks.evaluation import Evaluation, label_outcome, line_suspiciousness
from agents.se_darwin.tasks.repair_task import RepairTask
from agents.se_darwin.tasks.subject_suite import SubjectSuite

__all__ = ["Evaluation", "RepairTask", "SubjectSuite", "label_outcome", "line_suspiciousness"]
