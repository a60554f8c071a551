"""Edits that insert, remove or move statements."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from agents.se_darwin.edits.edit import (
    BLOCKS,
    Assignment,
    Block,
    Proposal,
    Site,
    Slot,
    read,
    statement_in,
)
from agents.se_darwin.edits.nodes import ForNode, FunctionNode, WithNode
from agents.se_darwin.edits.scope import MAX_TEXT

_SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr)
_EXITS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPOUND = (ast.If, *_LOOPS, ast.With, ast.AsyncWith)


def _leaves_loop(node: ast.AST) -> bool:
    """Whether ``break`` or ``continue`` is in *node*."""
    return any(isinstance(part, ast.Break | ast.Continue) for part in ast.walk(node))


def _summary(node: ast.AST) -> str:
    """First line of a statement, shortened."""
    return ast.unparse(node).split("\n")[0][:MAX_TEXT]


def _gone() -> Block:
    return Block([])


def statement_removed(site: Site) -> Iterator[Proposal]:
    """Remove a statement."""
    if site.is_statement and not isinstance(site.node, ast.Pass):
        yield Proposal(
            kind="statement_removed",
            old=_summary(site.node),
            new="nothing",
            assign=lambda: [(site.slot, _gone())],
        )


def branch_unwrapped(site: Site) -> Iterator[Proposal]:
    """``if c: body`` to ``body``, a loop to one pass of it, an ``else`` to nothing."""
    node = site.node
    if not isinstance(node, ast.If | ForNode | ast.While | WithNode | ast.Try):
        return
    if not isinstance(node, ForNode | ast.While):
        yield Proposal(
            kind="branch_unwrapped",
            old=type(node).__name__,
            new="body",
            assign=lambda: [(site.slot, Block(node.body))],
        )
    if not isinstance(node, WithNode) and node.orelse:
        yield Proposal(
            kind="branch_unwrapped",
            old=f"{type(node).__name__} else",
            new="nothing",
            assign=site.set_field("orelse", []),
        )
        if not isinstance(node, ast.Try):
            yield Proposal(
                kind="branch_unwrapped",
                old=f"{type(node).__name__} else",
                new="after it",
                assign=lambda: [
                    ((node, "orelse", None), []),
                    (site.slot, Block([statement_in(site.slot), *node.orelse])),
                ],
            )


def branch_kind(site: Site) -> Iterator[Proposal]:
    """``if`` to ``while`` and back; ``if`` after an ``if`` to ``elif``; exchanged branches."""
    node = site.node
    if isinstance(node, ast.If):
        if not node.orelse:
            yield Proposal(
                kind="branch_kind",
                old="If",
                new="While",
                assign=site.replace(lambda: ast.While(node.test, node.body, [])),
            )
        if site.is_statement and site.index:
            before = site.block[site.index - 1]
            if isinstance(before, ast.If) and not before.orelse:
                previous = (site.parent, site.role, site.index - 1)
                yield Proposal(
                    kind="branch_kind",
                    old="If",
                    new="elif",
                    assign=lambda: [
                        ((before, "orelse", None), [read(site.slot)]),
                        (site.slot, _gone()),
                        (previous, read(previous)),
                    ],
                )
    elif isinstance(node, ast.While) and not node.orelse and not _leaves_loop(node):
        yield Proposal(
            kind="branch_kind",
            old="While",
            new="If",
            assign=site.replace(lambda: ast.If(node.test, node.body, [])),
        )


def moved_out(site: Site) -> Iterator[Proposal]:
    """Move the first or last statement of a block out of the block."""
    owner = _slot_of(site.parent, site.ancestors)
    if not site.is_statement or owner is None or len(site.block) == 1:
        return
    if isinstance(site.parent, _LOOPS) and _leaves_loop(site.node):
        return
    if site.index == 0:
        yield _move(site, "before its block", owner, before=True)
    if site.is_last:
        yield _move(site, "after its block", owner, before=False)


def moved_in(site: Site) -> Iterator[Proposal]:
    """Move a statement to the end of the block before it, or to the start of the one after it."""
    if not site.is_statement:
        return
    block, index = site.block, site.index or 0
    if index and isinstance(block[index - 1], _COMPOUND):
        for role in ("body", "orelse"):
            inner = getattr(block[index - 1], role, [])
            if inner:
                place = f"into {role} of the {type(block[index - 1]).__name__} before"
                slot = (block[index - 1], role, len(inner) - 1)
                yield _move(site, place, slot, before=False)
    if index + 1 < len(block) and isinstance(block[index + 1], _COMPOUND):
        place = f"into body of the {type(block[index + 1]).__name__} after"
        yield _move(site, place, (block[index + 1], "body", 0), before=True)


def moved_along(site: Site) -> Iterator[Proposal]:
    """Move a statement past the next one, or to the end of its block."""
    if not site.is_statement or site.is_last:
        return
    block, index = site.block, site.index or 0
    if not (isinstance(site.node, _SIMPLE) and isinstance(block[index + 1], _SIMPLE)):
        place = (site.parent, site.role, index + 1)  # `statement_order` exchanges simple ones
        yield _move(site, "past the next", place, before=False)
    if index + 2 < len(block):
        place = (site.parent, site.role, len(block) - 1)
        yield _move(site, "to the end of its block", place, before=False)


def _move(site: Site, new: str, there: Slot, *, before: bool) -> Proposal:
    def assign() -> Sequence[Assignment]:
        moved, stays = statement_in(site.slot), statement_in(there)
        both = [moved, stays] if before else [stays, moved]
        return [(there, Block(both)), (site.slot, Block([]))]

    return Proposal(kind="statement_moved", old=_summary(site.node), new=new, assign=assign)


def _slot_of(parent: ast.AST, ancestors: tuple[ast.AST, ...]) -> Slot | None:
    """Return the slot of *parent* if it is a statement in a block of the function."""
    if len(ancestors) < 2 or not isinstance(parent, ast.stmt):
        return None
    for role in BLOCKS:
        block = getattr(ancestors[1], role, None)
        if isinstance(block, list) and parent in block:
            return ancestors[1], role, block.index(parent)
    return None


def statement_copied(site: Site) -> Iterator[Proposal]:
    """Insert a copy of a simple statement at an end of a block."""
    if not site.is_statement or _is_exit(site.node):
        return
    node_text = ast.unparse(site.node)
    for text in site.scope.statements[:8]:
        if text != node_text and site.is_last:
            yield site.insertion("statement_copied", after=[text])
        if text != node_text and site.index == 0 and not isinstance(site.parent, FunctionNode):
            yield site.insertion("statement_copied", before=[text])


def _is_exit(node: ast.AST) -> bool:
    return isinstance(node, _EXITS)


def exit_added(site: Site) -> Iterator[Proposal]:
    """Insert ``break``, ``continue`` or ``return`` at the end of a block."""
    if not site.is_statement or not site.is_last or _is_exit(site.node):
        return
    if site.in_loop and not isinstance(site.parent, _LOOPS):
        for text in ("break", "continue"):
            yield site.insertion("exit_added", after=[text])
    elif isinstance(site.parent, _LOOPS) and site.role == "body":
        yield site.insertion("exit_added", after=["break"])
    if site.in_loop and isinstance(site.parent, _LOOPS):
        return
    values = (*site.scope.names[:3], *site.scope.returned[:4], "None", "True", "False")
    for value in dict.fromkeys(values):
        yield site.insertion("exit_added", after=[f"return {value}"])


def else_added(site: Site) -> Iterator[Proposal]:
    """Give an ``if`` an ``else`` that leaves, changes a number or repeats another statement."""
    node, scope = site.node, site.scope
    if not isinstance(node, ast.If) or node.orelse or not site.is_statement:
        return
    texts = ["break", "continue"] if site.in_loop else []
    texts += [f"return {value}" for value in (*scope.returned[:2], "False", "None")]
    stored = [name for name in scope.assigned if name in scope.numeric]
    texts += [f"{name} {operator}= 1" for name in stored[:1] for operator in "+-"]
    texts += [f"{name} = {value}" for name in scope.assigned[:1] for value in ("0", "None")]
    texts += scope.statements[:4]
    for text in dict.fromkeys(texts):
        yield Proposal(
            kind="else_added",
            old="nothing",
            new=f"else {text}",
            assign=lambda text=text: [((node, "orelse", None), ast.parse(text).body)],  # type: ignore[misc]
        )


def update_added(site: Site) -> Iterator[Proposal]:
    """Insert ``x += 1``, ``x.append(y)``, ``x = y`` or ``x[i] += y`` at the end of a block."""
    if not site.is_statement or not site.is_last or _is_exit(site.node):
        return
    scope = site.scope
    if isinstance(site.parent, FunctionNode):
        return
    stored = [name for name in scope.assigned if name in scope.numeric]
    texts = [f"{name} {operator}= 1" for name in stored[:2] for operator in "+-"]
    texts += _accumulations(site)
    texts += [
        f"{name} += {value}" for name in stored[:2] for value in scope.names[:3] if value != name
    ]
    for method, owners in (("append", scope.lists), ("add", scope.sets)):
        texts += [
            f"{owner}.{method}({value})"
            for owner in owners[:2]
            for value in scope.names[:3]
            if value != owner
        ]
    texts += [
        f"{name} = {value}"
        for name in scope.assigned[:2]
        for value in scope.names[:3]
        if value != name
    ]
    for place in _places(site)[:3]:
        names = dict.fromkeys((*scope.unused, *scope.names))
        values = [name for name in names if name not in place and name not in scope.hidden][:2]
        texts += [f"{place} {change}" for change in ("+= 1", "-= 1")]
        texts += [f"{place} {operator} {value}" for operator in ("+=", "=") for value in values]
    for text in dict.fromkeys(texts):
        yield site.insertion("update_added", after=[text])


def _accumulations(site: Site) -> list[str]:
    """``x += y``: ``x`` is set before the loop and only read in it, ``y`` is set in this block."""
    loops = [ancestor for ancestor in site.ancestors if isinstance(ancestor, _LOOPS)]
    if not loops:
        return []
    stored, read = _stored(loops[0]), set[str]()
    for node in ast.walk(loops[0]):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read.add(node.id)
    scope = site.scope
    totals = [name for name in scope.assigned if name in scope.numeric]
    totals = [name for name in totals if name in read and name not in stored]
    values = [name for statement in site.block for name in _stored(statement)]
    values += _stored(loops[0].target) if isinstance(loops[0], ForNode) else []
    return [
        f"{total} {operator}= {value}"
        for total in totals[:2]
        for value in list(dict.fromkeys(values))[:3]
        for operator in "+-"
    ]


def _stored(node: ast.AST) -> list[str]:
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def _places(site: Site) -> list[str]:
    """Return subscripts and attributes that the function can set: those it sets first."""
    scope = site.scope
    places = [*scope.places]
    owners = dict.fromkeys(text.partition("[")[0] for text in scope.places if "[" in text)
    for owner in owners:
        places += [f"{owner}[{index}]" for index in scope.indexes[:3]]
    places += [f"self.{name}" for name in scope.module.attributes[:2]]
    return [place for place in dict.fromkeys(places) if not _names_of(place) & scope.hidden]


def _names_of(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def return_kind(site: Site) -> Iterator[Proposal]:
    """Exchange ``return e``, ``yield e``, ``yield from e``, ``x = e`` and the statement ``e``."""
    node = site.node
    if not isinstance(node, ast.Expr | ast.Return | ast.Assign) or node.value is None:
        return
    old_kind, value = type(node).__name__, node.value
    if isinstance(node, ast.Expr) and isinstance(value, ast.Yield | ast.YieldFrom):
        if value.value is None:
            return
        old_kind, value = type(value).__name__, value.value
    made: dict[str, Callable[[], ast.stmt]] = {"Return": lambda: ast.Return(value)}
    if old_kind == "Return":
        made["Expr"] = lambda: ast.Expr(value)
    if old_kind in ("Return", "YieldFrom"):
        made["Yield"] = lambda: ast.Expr(ast.Yield(value))
    elif old_kind == "Yield":
        made["YieldFrom"] = lambda: ast.Expr(ast.YieldFrom(value))
    elif old_kind == "Expr" and site.scope.yields and isinstance(value, ast.Call):
        made["Yield"] = lambda: ast.Expr(ast.Yield(value))
        made["YieldFrom"] = lambda: ast.Expr(ast.YieldFrom(value))
    for name, build in made.items():
        if name != old_kind:
            yield Proposal(kind="return_kind", old=old_kind, new=name, assign=site.replace(build))


BLOCK_RULES = (
    statement_removed,
    branch_unwrapped,
    branch_kind,
    moved_out,
    moved_in,
    moved_along,
    statement_copied,
    exit_added,
    else_added,
    update_added,
    return_kind,
)
