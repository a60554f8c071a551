"""Whether what a program does can depend on the order of sets."""

from __future__ import annotations

import ast
from functools import lru_cache

HASH_SEEDS = tuple(range(1, 8))
"""Seeds of hashes, besides that of the search, under which a repair with sets must pass every test.

A program that sorts one of two sets passes under half of the seeds: two more let one of four pass.
"""
SEEDS_OF_ALL = 2
"""Number of them for every other repair: a library may make sets that no source shows."""
_NAMES = {"set", "frozenset", "hash", "Set", "FrozenSet", "MutableSet"}
_VIEWS = {"keys", "items"}
_METHODS = {"union", "intersection", "difference", "symmetric_difference"}


@lru_cache(maxsize=256)
def uses_sets(source: str) -> bool:
    """Whether *source* contains a set or a hash, or computes with the keys of a mapping."""
    return any(map(_is_of_sets, ast.walk(ast.parse(source))))


def _is_of_sets(node: ast.AST) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Name):
        return node.id in _NAMES
    if isinstance(node, ast.Attribute):
        return node.attr in _NAMES | _METHODS
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    if isinstance(node, ast.AugAssign):
        sides = [node.value]
    return any(
        isinstance(side, ast.Call)
        and isinstance(side.func, ast.Attribute)
        and side.func.attr in _VIEWS
        for side in sides
    )
