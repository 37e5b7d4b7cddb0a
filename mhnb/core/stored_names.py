"""Find whether a cell stores values that can differ between ranks."""

from __future__ import annotations

import ast

_BINDINGS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Match)
_DEFERRED = (ast.Lambda, ast.GeneratorExp)
"""Expressions whose lines can run in a later statement."""


def stores_names(source: str, *, first: int = 1, failed_at: int | None = None) -> bool:
    r"""Check whether the cell assigns a name, an attribute or an element.

    Text that only IPython can parse may assign one. A call is not looked into.

    Args:
        source: the cell's text.
        first: statements that end above this line are left out.
        failed_at: the line that raised; that statement assigned nothing, and no later one ran. None if the cell did not end there.

    >>> stores_names("y = 2 * x"), stores_names("print([i for i in x])"), stores_names("x[0] = 1"), stores_names("n = !nproc")
    (True, False, True, True)
    >>> stores_names("y = f(x)\ncheck(y)", first=2), stores_names("y = f(x)", failed_at=1)
    (False, False)
    """
    try:
        statements = ast.parse(source).body
        if failed_at is not None:
            statements = _list_completed(statements, failed_at)
        return any(_stores(each) for each in statements if (each.end_lineno or each.lineno) >= first)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


def _list_completed(statements: list[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the statements before one that raised; all if that is compound."""
    begun = [each for each in statements if each.lineno <= line]
    # The line is the innermost in the cell's text. That of a function or a loop does not tell how far the cell came.
    is_simple = bool(begun) and not hasattr(begun[-1], "body")
    deferred = any(isinstance(node, _DEFERRED) for each in begun[-1:] for node in ast.walk(each))
    return begun[:-1] if is_simple and not deferred else statements


def _stores(node: ast.AST) -> bool:
    if isinstance(node, _BINDINGS) or isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
        return True
    if isinstance(node, ast.Lambda):
        return False
    # The variable of a comprehension is its own.
    inner = (node.iter, *node.ifs) if isinstance(node, ast.comprehension) else ast.iter_child_nodes(node)
    return any(map(_stores, inner))
