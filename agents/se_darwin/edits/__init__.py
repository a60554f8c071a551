"""Small edits of a program's syntax tree: enumerate, apply, undo, write into the source text."""

from agents.se_darwin.edits.edit import Assignment, Edit
from agents.se_darwin.edits.edit_space import EDIT_KINDS, EditSpace

__all__ = ["EDIT_KINDS", "Assignment", "Edit", "EditSpace"]
