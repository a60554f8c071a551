import pytest


@pytest.mark.parametrize(
    ("kind", "broken", "right"),
    [
        (
            "clause_added",
            "while a[c] > 0:\n        c += 1",
            "while c < len(a) and a[c] > 0:\n        c += 1",
        ),
        (
            "clause_added",
            "while a[c] > 0:\n        c -= 1",
            "while c >= 0 and a[c] > 0:\n        c -= 1",
        ),
        ("clause_added", "if a[b]:\n        c = 0", "if b in a and a[b]:\n        c = 0"),
        (
            "clause_added",
            "if b:\n        d = set()\n        d.add(b)",
            "if b not in d and b:\n        d = set()\n        d.add(b)",
        ),
        (
            "clause_added",
            "if int(a) > 23:\n        c = 60 + int(b)",
            "if int(a) > 23 or int(b) >= 60:\n        c = 60 + int(b)",
        ),
        ("return_value", "return", "return a"),
        ("return_value", "c = len(a)\n    return", "c = len(a)\n    return len(a)"),
        ("assignment", "c = a\n    d = b", "c = b\n    d = a"),
        (
            "sign",
            "return sorted(a, key=lambda k: (k[1], k[0]))",
            "return sorted(a, key=lambda k: (-k[1], k[0]))",
        ),
        ("sign", "return a if c else b", "return -a if c else b"),
        (
            "update_added",
            "d = 0\n    e = []\n    for g in a:\n        h = -g\n        e.append((h, d + h))",
            "d = 0\n    e = []\n    for g in a:\n        h = -g\n        e.append((h, d + h))\n"
            "        d += h",
        ),
        ("call_added", "return '0' * (a - b)", "return '0' * max(0, a - b)"),
        ("call_moved", "return f(g(len, a * b))", "return f(g(len, a)) * b"),
        (
            "value_replaced",
            "p = f(a, b)\n    return f(a).find(b)",
            "p = f(a, b)\n    return p.find(b)",
        ),
        ("string", "return a['gross'] + b", "return a['b'] + b"),
        (
            "update_added",
            "d = {}\n    for e, g in a:\n        d[e] = sorted(a, key=lambda k: k[1])",
            "d = {}\n    for e, g in a:\n        d[e] = sorted(a, key=lambda k: k[1])\n"
            "        d[e] += g",
        ),
        ("condition_replaced", "if c % 2:\n        c = 0", "if c % 2 == 0:\n        c = 0"),
        ("condition_replaced", "if len(a):\n        c = 0", "if len(a) > 1:\n        c = 0"),
        ("condition_replaced", "return c % 2", "return c % 2 == 1"),
        ("comparison", "if a is 'x':\n        c = 0", "if a == 'x':\n        c = 0"),
        ("comparison", "if a in b:\n        c = 0", "if a == b:\n        c = 0"),
        ("boolean", "if a & b:\n        c = 0", "if a and b:\n        c = 0"),
        ("arithmetic", "return a - b", "return a / b"),
        ("constant", "return a + 100", "return a + 1000"),
        ("constant", "return a + 100", "return a + 10"),
        ("string", "return a + 'Abc'", "return a + 'abc'"),
        ("string", "return a + ','", "return a + ' '"),
        ("call_added", "return [c for c in a]", "return sorted([c for c in a])"),
        ("argument_added", "return sorted(a)", "return sorted(a, key=len)"),
        ("argument_added", "return max(a)", "return max(a, default=0)"),
        ("argument_added", "return a", "return (a, b)"),
        ("argument_added", "c = [a]", "c = [a, b]"),
        ("assignment", "a = b", "b = a"),
        ("assignment", "a = b\n    b = a + b", "a, b = (b, a + b)"),
        ("assignment", "a, b = (b, a + b)", "a = b\n    b = a + b"),
        ("assignment", "a.b = c", "a.b += c"),
        ("assignment", "a[b] = c", "a[b] -= c"),
        ("return_kind", "yield a\n    f(b)", "yield a\n    yield from f(b)"),
        ("operand_order", "return a | b", "return b | a"),
        ("element_order", "return {**a, **b}", "return {**b, **a}"),
        ("slice", "return a[:-1]", "return a[::-1]"),
        ("function", "return copy(a)", "return deepcopy(a)"),
        ("method", "return a.weekday()", "return a.isoweekday()"),
        ("attribute", "return (a - b).seconds", "return (a - b).total_seconds()"),
        ("negation", "return a.done", "return not a.done"),
        ("string", "return ','.join(a)", "return ', '.join(a)"),
        ("condition_replaced", "return a or b", "return b if a is None else a"),
        ("call_added", "c = a.rows", "c = dict(a.rows)"),
        ("call_added", "for d in a:\n        c = d", "for d in a:\n        c = max(c, d)"),
        ("call_added", "a[0] = b", "a[0] = min(a[0], b)"),
        ("call_added", "return a + 1", "return min(b, a + 1)"),
        ("term_added", "return a * (1 - percent)", "return a * (1 - percent / 100)"),
        ("term_added", "return {'net': a, 'all': a}", "return {'net': a, 'all': a + b}"),
        ("method_added", "return a == b.lower()", "return a.lower() == b.lower()"),
        ("argument_added", "return isinstance(a, int)", "return isinstance(a, (int, float))"),
        ("argument_added", "return a.get(b)", "return a.get(b, {})"),
        (
            "else_added",
            "for c in a:\n        if c:\n            b = c",
            "for c in a:\n        if c:\n            b = c\n        else:\n            break",
        ),
        (
            "else_added",
            "if b:\n        a += b\n    a = 7",
            "if b:\n        a += b\n    else:\n        a = 7\n    a = 7",
        ),
    ],
)
def test_conditions_and_values_are_completed(
    kinds_that_repair, kind: str, broken: str, right: str
) -> None:
    frame = "def solve(a, b, c=0):\n    "
    assert kind in kinds_that_repair(frame + broken, frame + right)


@pytest.mark.parametrize(
    ("kind", "broken", "right"),
    [
        (
            "clause_added",
            "return [r for r in rows if r.size > 3]",
            "return [r for r in rows if not r.hidden and r.size > 3]",
        ),
        (
            "filter_added",
            "return [r.size for r in rows]",
            "return [r.size for r in rows if r.hidden]",
        ),
        (
            "clause_added",
            "if limit > 3:\n        return rows",
            "if plan is Plan.FREE and limit > 3:\n        return rows",
        ),
        (
            "clause_added",
            "if row > 3:\n        return rows",
            "if kind is not Kind.B and row > 3:\n        return rows",
        ),
        ("attribute", "return plan is Plan.FREE", "return plan is Plan.PRO"),
    ],
)
def test_conditions_use_what_classes_declare(
    kinds_that_repair, kind: str, broken: str, right: str
) -> None:
    frame = """
from enum import Enum
class Plan(Enum):
    FREE = 1
    PRO = 2
class Kind(Enum):
    A = 1
    B = 2
class Row:
    size: int
    hidden: bool = False
def solve(rows, limit, plan: Plan, kind, row):
    """
    assert kind in kinds_that_repair(frame + broken, frame + right)
