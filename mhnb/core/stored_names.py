"""Find whether a cell stores values that can differ between ranks."""

from __future__ import annotations

import ast
import re

_BINDINGS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Match)
_UNCERTAIN = (ast.Lambda, ast.GeneratorExp, ast.NamedExpr)
"""Expressions whose lines can run in a later statement, or that store before their statement ends."""
_CHANGING_METHOD = re.compile(
    "add|append(left)?|clear|discard|extend|fill|insert|pop(item|left)?|remove|reverse|setdefault|sort|update"
)
"""Methods of Python's own values that change one, such as `losses.append`."""
_CHANGING_FUNCTIONS = ("delattr", "next", "setattr")


def stores_names(source: str, *, first: int = 1) -> bool:
    r"""Check whether the cell assigns a name, an attribute or an element.

    A call that changes a value of Python's own counts, such as `losses.append(x)`; other calls are not looked into. Text that
    only IPython can parse may assign one.

    Args:
        source: the cell's text.
        first: statements that end above this line are left out.

    >>> stores_names("y = 2 * x"), stores_names("print([i for i in x])"), stores_names("x[0] = 1"), stores_names("n = !nproc")
    (True, False, True, True)
    >>> stores_names("y = f(x)\ncheck(y)", first=2)
    False
    """
    try:
        return any(_stores(each) for each in ast.parse(source).body if (each.end_lineno or each.lineno) >= first)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


def stores_values(source: str, *, failed_at: int | None) -> bool:
    r"""Check whether a cell that failed has stored a value.

    As `stores_names`, but a function or a module is the same on every rank that ran the statement.

    Args:
        source: the cell's text.
        failed_at: the line that raised; that statement assigned nothing, and no later one ran. None if the ranks did not fail there.

    >>> stores_values("y = f(x)", failed_at=1), stores_values("y = f(x)\nz = g(y)", failed_at=2)
    (False, True)
    >>> stores_values("def f(x):\n    return g(x)\nf(x)", failed_at=2)
    False
    """
    try:
        statements = ast.parse(source).body
        if failed_at is not None:
            statements = _list_completed(statements, failed_at)
        return any(not _is_same_everywhere(each) and _stores(each) for each in statements)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


def _is_same_everywhere(statement: ast.stmt) -> bool:
    """Check for an import, or a function that changes nothing outside it."""
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return isinstance(statement, ast.Import | ast.ImportFrom)
    return not any(map(_changes_outside, ast.walk(statement)))


def _changes_outside(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute | ast.Subscript):
        return not isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Global) or (isinstance(node, ast.Call) and _changes_a_value(node.func))


def _list_completed(statements: list[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the statements before one that raised; all if that is compound."""
    begun = [each for each in statements if each.lineno <= line]
    return begun[:-1] if begun and _has_stored_nothing(begun[-1]) else statements


def _has_stored_nothing(statement: ast.stmt) -> bool:
    """Check whether a statement that raised has stored nothing."""
    # The line is the innermost in the cell's text. That of a function or a loop does not tell how far the cell came.
    if hasattr(statement, "body") or hasattr(statement, "cases"):
        return False
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    is_plain = len(targets) == 1 and isinstance(targets[0], ast.Name | None)
    return is_plain and not any(isinstance(node, _UNCERTAIN) for node in ast.walk(statement))


def _stores(node: ast.AST) -> bool:
    if isinstance(node, _BINDINGS) or isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
        return True
    if isinstance(node, ast.Lambda):
        return False
    if isinstance(node, ast.Call) and _changes_a_value(node.func):
        return True
    # The variable of a comprehension is its own.
    inner = (node.iter, *node.ifs) if isinstance(node, ast.comprehension) else ast.iter_child_nodes(node)
    return any(map(_stores, inner))


def _changes_a_value(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return _CHANGING_METHOD.fullmatch(function.attr) is not None
    return isinstance(function, ast.Name) and function.id in _CHANGING_FUNCTIONS
