"""Faults in statements: lost, repeated, moved, in the wrong block."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from agents.se_darwin.faults.place import Change, Place, Rule

_BLOCKS = ("body", "orelse", "finalbody")


def _deleted(place: Place) -> Iterator[Change]:
    """Lose a simple statement."""
    if isinstance(place.node, ast.Assign | ast.AugAssign | ast.Expr | ast.Return | ast.Raise):
        yield place.set_block(
            [statement for statement in place.block if statement is not place.node]
        )
    if isinstance(place.node, ast.Break | ast.Continue):
        yield place.replace(ast.Pass())


def _repeated(place: Place) -> Iterator[Change]:
    """Write a statement twice."""
    if isinstance(place.node, ast.AugAssign | ast.Expr) and place.index is not None:
        at = place.index
        yield place.set_block(
            [*place.block[:at], copy.deepcopy(place.block[at]), *place.block[at:]]
        )


def _swapped(place: Place) -> Iterator[Change]:
    """Exchange a statement with the next."""
    block, at = place.block, place.index
    if at is not None and at + 1 < len(block):
        yield place.set_block([*block[:at], block[at + 1], block[at], *block[at + 2 :]])


def _indented(place: Place) -> Iterator[Change]:
    """Indent the statement after a loop or condition, so that it is the last one in it."""
    block, at = place.block, place.index
    if at is None or at == 0 or not isinstance(place.node, ast.stmt):
        return
    before = block[at - 1]
    if isinstance(before, ast.For | ast.While | ast.If):
        inner = "orelse" if isinstance(before, ast.If) and before.orelse else "body"
        longer = [*getattr(before, inner), place.node]
        yield [((before, inner, None), longer), *place.set_block([*block[:at], *block[at + 1 :]])]


def _dedented(place: Place) -> Iterator[Change]:
    """Dedent the last statement of a block."""
    block, at, outer = place.block, place.index, place.outer
    if at is None or at + 1 != len(block) or at == 0 or outer is None or outer.index is None:
        return
    if outer.node is place.parent and isinstance(place.parent, ast.For | ast.While | ast.If):
        if not isinstance(place.node, ast.stmt) or isinstance(place.node, ast.Break | ast.Continue):
            return
        around = list(outer.block)
        around.insert(outer.index + 1, place.node)
        yield [*place.set_block(block[:at]), *outer.set_block(around)]


def _guard_lost(place: Place) -> Iterator[Change]:
    """Lose an ``if`` without ``else`` and its body."""
    if isinstance(place.node, ast.If) and not place.node.orelse and place.index is not None:
        yield place.set_block(
            [statement for statement in place.block if statement is not place.node]
        )


def _branches_merged(place: Place) -> Iterator[Change]:
    """Keep one branch of an ``if`` and lose the condition."""
    if isinstance(place.node, ast.If) and place.index is not None:
        for branch in filter(None, (place.node.body, place.node.orelse)):
            at = place.index
            yield place.set_block([*place.block[:at], *branch, *place.block[at + 1 :]])


def _else_lost(place: Place) -> Iterator[Change]:
    """Run the ``else`` branch always, after the ``if``; lose the branch."""
    node = place.node
    if isinstance(node, ast.If) and node.orelse and place.index is not None:
        at = place.index
        after = [*place.block[: at + 1], *node.orelse, *place.block[at + 1 :]]
        yield [*place.set_block(after), *place.set_field("orelse", [])]
        yield place.set_field("orelse", [])


def _start_wrong(place: Place) -> Iterator[Change]:
    """Start a variable with another value before it is used in a loop."""
    node, follows = place.node, place.block[(place.index or 0) + 1 :]
    loops = any(isinstance(statement, ast.For | ast.While) for statement in follows)
    if not isinstance(node, ast.Assign) or not loops:
        return
    old = ast.unparse(node.value)
    for start in ("0", "1", "-1", "None", "[]", "''"):
        if start != old and (start not in ("None", "[]", "''") or not old.lstrip("-").isdigit()):
            yield place.set_field("value", ast.parse(start, mode="eval").body)


def _assignment_wrong(place: Place) -> Iterator[Change]:
    """``x += e`` to ``x = e`` or ``x -= e``, and ``x = e`` to ``x += e``."""
    node = place.node
    if isinstance(node, ast.AugAssign):
        yield place.replace(ast.Assign(targets=[node.target], value=node.value, lineno=0))
        operator = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield place.set_field("op", operator)


def _return_early(place: Place) -> Iterator[Change]:
    """Return from inside the loop whose result is returned after it."""
    block, at = place.block, place.index
    if isinstance(place.node, ast.For | ast.While) and at is not None and at + 1 < len(block):
        following = block[at + 1]
        if isinstance(following, ast.Return):
            yield place.set_field("body", [*place.node.body, copy.deepcopy(following)])


STATEMENT_FAULTS: dict[str, Rule] = {
    "statement deleted": _deleted,
    "statement repeated": _repeated,
    "statements swapped": _swapped,
    "statement indented": _indented,
    "statement dedented": _dedented,
    "guard lost": _guard_lost,
    "branches merged": _branches_merged,
    "else lost": _else_lost,
    "start wrong": _start_wrong,
    "assignment wrong": _assignment_wrong,
    "return early": _return_early,
}
