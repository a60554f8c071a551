"""Nodes of the syntax tree that occur in two forms: with ``async`` and without."""

from __future__ import annotations

import ast

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
ForNode = ast.For | ast.AsyncFor
WithNode = ast.With | ast.AsyncWith
