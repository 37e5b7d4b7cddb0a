"""Whether a cell stores a value that can differ between the ranks after it."""

from __future__ import annotations

import pytest

from mhnb.core.stored_names import stores_names, stores_values

STORING = (
    *("x.append(1)", "optimizer.update(m, g)", "setattr(x, 'a', 1)", "print(next(it))"),
    *("x = 1", "x += 1", "x: int = 1", "x[0] = 1", "x.a = 1", "del x", "import x", "from x import *", "f(y := 1)"),
    *(
        "def f(): pass",
        "class A: pass",
        "for i in x: pass",
        "with a as b: pass",
        "if f(): x = 1",
        "[y := i for i in x]",
    ),
    *(
        "match f():\n    case {'a': y}: pass",
        "async for i in x: f(i)",
        "(x, *y) = f()",
        "%time x = f()",
        "x = !ls",
        "not a python",
    ),
)
NOT_STORING = (
    *(
        "",
        "f(x)",
        "add(x)",
        "[i for i in x]",
        "{i: j for i, j in x}",
        "sorted(x, key=lambda i: (j := i))",
        "await f()",
    ),
    *(
        "assert x == 1",
        "raise ValueError",
        "if rank == 1: raise ValueError",
        "while True: pass",
        "x[0]",
        "print(f'{x=}')",
    ),
)


@pytest.mark.parametrize(("sources", "stores"), [(STORING, True), (NOT_STORING, False)])
def test_stored_names_are_found(sources: tuple[str, ...], stores: bool) -> None:  # noqa: FBT001
    """A store at the top level counts, one inside a lambda or a comprehension does not; other text than Python may store."""
    assert [source for source in sources if stores_names(source) is not stores] == []


CELL = """
def f(a):
    return g(a)
x = 1
y = f(
    x
)
z = 3"""


@pytest.mark.parametrize(
    ("first", "stores"),
    [(1, True), (5, True), (7, True), (8, True), (9, False)],
)
def test_statements_above_the_first_line_do_not_count(first: int, stores: bool) -> None:  # noqa: FBT001
    """The statement on that line counts, also if it began above it."""
    assert stores_names(CELL, first=first) is stores


@pytest.mark.parametrize(
    ("source", "failed_at", "stores"),
    [
        ("y = f(\n    x\n)\nz = 1", 2, False),
        ("x = 1\ny = f(x)", 2, True),
        ("f(x); y = 1", 1, False),
        ("y = 1; f(y)", 1, True),
        ("for i in x:\n    f(i)", 2, True),
        ("if x:\n    f(x)", 2, False),
        ("g = lambda a: f(a)\ny = g(1)", 1, True),
        ("list(f(a) for a in x)\ny = 1", 1, True),
        ("match x:\n    case 0:\n        y = 1\n        f()", 4, True),
        ("print(n := f(x), g(n))", 1, True),
        ("a, b[g()] = 1, 2", 1, True),
        ("x.append(f(x))", 1, False),
        (CELL, 3, True),
    ],
)
def test_statement_that_raised_has_stored_nothing(source: str, failed_at: int, stores: bool) -> None:  # noqa: FBT001
    """Nor has one below it; in a loop, a function or a lambda, the line does not tell how far the cell came."""
    assert stores_values(source, failed_at=failed_at) is stores


@pytest.mark.parametrize(
    ("source", "stores"),
    [
        ("import jax\nfrom jax import numpy\nf(x)", False),
        ("def step(w):\n    scaled = w * 2\n    return f(scaled)\nstep(x)", False),
        ("def step():\n    global y\n    y = f(x)\nstep()", True),
        ("def step(w):\n    state['w'] = w\n    f(w)\nstep(x)", True),
        ("def step(w):\n    losses.append(w)\n    f(w)\nstep(x)", True),
        ("class Model:\n    w = f(x)\nf(x)", True),
    ],
)
def test_code_is_no_value_that_differs(source: str, stores: bool) -> None:  # noqa: FBT001
    """A function or module is the same on all ranks; a function that changes something outside it may have been called."""
    assert stores_values(source, failed_at=source.count("\n") + 1) is stores
