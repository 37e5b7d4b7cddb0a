"""The variable that an error concerns, read from the failing code: one name, or none."""

from __future__ import annotations

import pytest

from mhnb.core.error_site import (
    ArrayFacts,
    ErrorSite,
    add_argument,
    find_captured,
    find_failing_name,
    find_first_argument,
    find_in_sharding,
    find_operands,
    find_sharding,
)

ARRAYS = {"x": True, "y": True, "tree": False}


def site(expression: str, names: dict[str, bool] | None = None) -> ErrorSite:
    """Return an error site at the cell's top level."""
    return ErrorSite("jax._src.array", "f", expression, ARRAYS if names is None else names, top_level=True)


@pytest.mark.parametrize(
    ("expression", "code", "text"),
    [
        ("np.asarray(x)", "", "x"),
        ("x.tolist()", "", "x"),
        ("x.T.tolist()", "", "x.T"),
        ("float(x[0])", "", "x[0]"),
        ("np.save('file', x)", "", "x"),
        ("np.save(file=path, arr=x)", "", "x"),
        ("jax.tree.map(np.asarray, tree)", "", "tree"),
        ("np.asarray(tree['w'])", "", "tree['w']"),
        ("f(tree, x)", "", "x"),
        ("for row in x:\n    use(row)", "", "x"),
        ("for a, b in zip(x, range(8)): pass", "", "x"),
        ("first, *rest", "first, *rest = x", "x"),
        ("[float(r) for r in x]", "", "x"),
        ("x + x", "", "x"),
        ("jax.device_put(make(), x.sharding)", "", None),
        ("jax.device_put(make(), NamedSharding(x.sharding.mesh, P()))", "", None),
        ("jax.device_put(x, y.sharding)", "", "x"),
        ("jax.device_put(make(), rows)", "g(x, jax.device_put(make(), rows))", None),
        ("np.asarray(z)", "", None),
        ("f(x, y)", "", None),
        ("x + y", "", None),
        ("f(lambda: x)", "", None),
        ("f(", "", None),
        ("", "np.asarray(x)", None),
        ("np.asarray(x" + "[0]" * 20 + ")", "", None),
        ("a = 1; b = 2", "", None),
        ("f(x" + " + x" * 5000 + ")", "", None),
    ],
)
def test_failing_name_is_found(expression: str, code: str, text: str | None) -> None:
    """The name is the one array, or the one tree if there is no array; with two candidates it is None."""
    named = find_failing_name(site(expression), code)
    assert (named.text if named else None) == text


@pytest.mark.parametrize(
    ("expression", "name"), [("f(x[0].T)", "x"), ("f(tree['w'][0])", "tree"), ("f(tree.w)", ""), ("f(tree)", "tree")]
)
def test_variable_to_pull_is_named(expression: str, name: str) -> None:
    """Arrays and containers are pulled by name; an attribute of another object has no name to pull."""
    named = find_failing_name(site(expression))
    assert named is not None
    assert named.name == name


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("jit(lambda a: a + x)(1.0)", "x"),
        ("jit(lambda x: x + 1)(x)", None),
        ("jit(lambda a: a + x + y)(1.0)", None),
        ("jit(lambda a, y=2: a + x * y)(1.0)", "x"),
        ("step(x)", None),
    ],
)
def test_captured_array_is_found(expression: str, name: str | None) -> None:
    """The name is the array that a lambda takes from outside; the lambda's own arguments are not captured."""
    assert find_captured(site(expression)) == name


def test_operands_are_found() -> None:
    """Both sides of an operator are returned as the user wrote them, if they are short."""
    assert find_operands(site("w @ x.T")) == ("w", "x.T")
    assert find_operands(site("f(w, x)")) is None
    assert find_operands(site(f"w + f({'x, ' * 20})")) is None


@pytest.mark.parametrize(
    ("expression", "sharding"),
    [
        ("jax.device_put(x, rows)", "rows"),
        ("jax.device_put(x, x.sharding)", "x.sharding"),
        ("jax.jit(abs, in_shardings=rows)(x)", "rows"),
        ("jax.device_put(y, NamedSharding(x.sharding.mesh, P('x')))", "NamedSharding(x.sharding.mesh, P('x'))"),
        ("jax.jit(f, in_shardings=(rows, whole))(x)", ""),
        ("jax.device_put(x, P('x'))", ""),
        ("jax.device_put(x, unknown)", ""),
        ("g(x, jax.device_put(y, rows))", ""),
        ("g(x, [2 * jax.device_put(y, device=rows)])", ""),
        ("x + jax.device_put(y, rows)", ""),
        ("g(x, jax.shard_map(f, mesh=mesh, in_specs=P('x'))(y))", ""),
        ("jax.device_put(jax.device_put(x, rows), whole)", "whole"),
        ("jax.jit(lambda a: jax.lax.with_sharding_constraint(a, rows))(x)", "rows"),
        ("jax.shard_map(f, mesh=mesh, in_specs=P('x'), out_specs=P())(x)", "NamedSharding(mesh, P())"),
    ],
)
def test_only_a_sharding_that_the_rank_has_seen_is_named(expression: str, sharding: str) -> None:
    """Between two the hint does not choose, and a PartitionSpec is none."""
    facts = ArrayFacts((8,), False, True, False, 8, 1, 1)
    seen = ErrorSite(expression=expression, names={"x": True}, arrays={"x": facts}, shardings=["rows", "whole"])
    assert find_sharding(seen) == sharding


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("jax.jit(f, in_shardings=rows)(x)", ("x", "rows")),
        ("jax.jit(f, in_shardings=(rows,), out_shardings=whole)(x)", ("x", "rows")),
        ("jax.jit(f, in_shardings=x.sharding)(x)", ("x", "x.sharding")),
        ("jax.jit(f, in_shardings=P('x'), out_shardings=whole)(x)", ("x", "")),
        ("jax.jit(f, in_shardings={'w': rows})(x)", ("x", "")),
        ("jax.jit(f, in_shardings=rows)(2 * x)", ("", "rows")),
        ("jax.jit(f, in_shardings=rows)(x, y)", ("", "")),
        ("g(jax.device_put(x, rows))", ("", "")),
        ("g(x)", ("x", "")),
        ("x + y", ("", "")),
    ],
)
def test_only_argument_of_a_call_has_the_in_sharding(expression: str, found: tuple[str, str]) -> None:
    """Argument and sharding are named only if no other argument can be the one that differs."""
    facts = ArrayFacts((8,), False, True, False, 8, 1, 1)
    seen = ErrorSite(expression=expression, names=ARRAYS, arrays={"x": facts}, shardings=["rows", "whole"])
    assert find_in_sharding(seen) == found


def test_argument_of_another_call_is_not_the_failing_one() -> None:
    """The line may call another function with the result of the one that failed."""
    seen = site("jax.device_put(make(), rows)")
    assert find_first_argument(seen, "g(x, jax.device_put(make(), rows))") is None
    assert find_first_argument(site("first, *rest"), "first, *rest = f(x)") == "x"


def test_function_of_numpy_is_replaced() -> None:
    """The functions of NumPy do not accept the arguments of those of JAX."""
    assert add_argument(site("np.reshape(x, 8)"), {"reshape"}, "out_sharding=s") == "jnp.reshape(x, 8, out_sharding=s)"
    assert add_argument(site("x.reshape(8)"), {"reshape"}, "out_sharding=s") == "x.reshape(8, out_sharding=s)"
