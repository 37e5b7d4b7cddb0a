"""A block in the usual layouts, planned: bytes by formula, the bound of a search, and programs compiled for absent machines."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from mhnb import fits
from mhnb.compiler import close_shared
from mhnb.core.program_replies import ExportedCall
from mhnb.rank.requests.fit import Target, export_call
from mhnb.sharding.fit import Candidate, Fit
from mhnb.sharding.machines import parse_machine

pytestmark = pytest.mark.slow

D, F, TOKENS, BLOCKS = 512, 2048, 4096, 3
WEIGHTS, ACTIVATIONS = 4 * D * F, 4 * TOKENS * D
"""Bytes of one matrix, and of a block's input, in f32."""
Kind: TypeAlias = tuple[str, tuple[str, ...]]
"""Operation and axes of a collective."""
ROWS, COLUMNS, TILES = P("x"), P(None, "y"), P("x", "y")
SPECS: Mapping[str, tuple[P, dict[str, P]]] = {
    # How activations lie between blocks; how matrices do, after the axis of the blocks.
    "dp": (ROWS, {}),
    "fsdp": (ROWS, {"w/in": P(None, "x"), "w/out": P(None, None, "x")}),
    "tp": (COLUMNS, {"w/in": P(None, None, "y"), "w/out": P(None, "y")}),
    "both": (TILES, {"w/in": P(None, "x", "y"), "w/out": P(None, "y", "x")}),
}


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the answers of each test apart."""
    monkeypatch.setenv("MHNB_HOME", str(tmp_path))


@pytest.fixture(scope="module", autouse=True)
def ended() -> object:
    """End the helper processes after the last test."""
    yield
    close_shared()


def make_step(between: P) -> Any:
    """Return a step of gradient descent on blocks of two matrices, whose inner values are computed again."""

    def block(x: Any, w: Any) -> Any:
        return jax.lax.with_sharding_constraint(jnp.square(x @ w["in"]) @ w["out"], between), None

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.sum(jnp.square(jax.lax.scan(jax.checkpoint(block), x, w)[0]))

        return jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w))

    return jax.jit(step, donate_argnums=0)


def describe_blocks() -> tuple[Any, Any]:
    """Return the blocks and the batch as shapes."""
    shapes = {"in": (BLOCKS, D, F), "out": (BLOCKS, F, D)}
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}, jax.ShapeDtypeStruct(
        (TOKENS, D), jnp.float32
    )


def plan_blocks(name: str, machine: str, mesh: Mapping[str, int]) -> Fit:
    """Plan the step in one of the layouts."""
    between, specs = SPECS[name]
    return fits.fit(make_step(between), *describe_blocks(), on=machine, mesh=mesh, specs={"^x$": between, **specs})


def bytes_by_kind(planned: Fit) -> Counter[Kind]:
    """Return what a device contributes to the collectives of a block, by operation and axes."""
    found: Counter[Kind] = Counter()
    for row in planned.collectives.rows:
        # A reduce-scatter is an all-reduce whose result is not kept whole; XLA for CPU does not know it.
        op = "all-reduce" if row.op == "reduce-scatter" else row.op
        found[op, row.axes] += row.nbytes_per_device * row.times // BLOCKS
    return found


def formula(name: str, x: int, y: int) -> dict[Kind, int]:
    """Return what a device contributes in a block, as "How to Scale Your Model" lists it in chapter 5.

    FSDP gathers both matrices forward and once more backward, and adds up both gradients. Tensor parallelism gathers the input forward
    and once more backward, and the gradient of the output; it adds up the output, and the gradient of the input.
    """
    weights, activations = WEIGHTS // y, ACTIVATIONS // x
    data: dict[Kind, int] = {("all-reduce", ("x",)): 2 * weights}
    gathered: dict[Kind, int] = {("all-gather", ("x",)): 4 * weights // x}
    model: dict[Kind, int] = {("all-gather", ("y",)): 3 * activations // y, ("all-reduce", ("y",)): 2 * activations}
    return {"dp": data, "fsdp": data | gathered, "tp": model, "both": data | gathered | model}[name]


@pytest.mark.parametrize(
    "count", [pytest.param(8, marks=pytest.mark.test_all), 64, pytest.param(512, marks=pytest.mark.test_all)]
)
@pytest.mark.parametrize("name", ["dp", "fsdp", "tp"])
def test_bytes_of_a_block(name: str, count: int) -> None:
    """Collectives and arguments have the bytes of the formula, on 8, 64 and 512 devices."""
    x, y = (1, count) if name == "tp" else (count, 1)
    planned = plan_blocks(name, f"cpu:{count // 8}x8", {"y": y} if name == "tp" else {"x": x})
    assert bytes_by_kind(planned) == formula(name, x, y)
    shards = 1 if name == "dp" else count
    assert planned.memory.arguments == BLOCKS * 2 * WEIGHTS // shards + ACTIVATIONS // count
    assert planned.memory.aliased == BLOCKS * 2 * WEIGHTS // shards
    # Two products forward, the first one again, and four backward.
    assert planned.cost.flops == BLOCKS * 7 * 2 * TOKENS * D * F // count


@pytest.mark.parametrize(
    ("x", "y"),
    [pytest.param(4, 2, marks=pytest.mark.test_all), (8, 8), pytest.param(64, 8, marks=pytest.mark.test_all)],
)
def test_bytes_of_a_block_with_both(x: int, y: int) -> None:
    """With both, sums are as in the formula; XLA for CPU gathers some values a second time where they are used."""
    planned = plan_blocks("both", f"cpu:{x * y // 8}x8", {"x": x, "y": y})
    found, expected = bytes_by_kind(planned), formula("both", x, y)
    assert {kind for kind in found if found[kind] != expected[kind]} <= {
        kind for kind in expected if kind[0] == "all-gather"
    }
    assert all(expected[kind] <= found[kind] <= 2 * expected[kind] for kind in expected)
    assert planned.memory.arguments == BLOCKS * 2 * WEIGHTS // (x * y) + ACTIVATIONS // (x * y)


@pytest.mark.requires_part("compilers")
@pytest.mark.parametrize("name", SPECS)
def test_bytes_of_a_block_on_h100(name: str) -> None:
    """The compiler of H100 gathers and adds up just what the formula says, and of FSDP only what crosses hosts leaves a host."""
    x, y = {"dp": (8, 1), "fsdp": (8, 1), "tp": (1, 8), "both": (4, 2)}[name]
    mesh = {"dp": {"x": 8}, "fsdp": {"x": 8}, "tp": {"y": 8}}.get(name, {"x": x, "y": y})
    planned = plan_blocks(name, "h100:2x4", mesh)
    found, expected = bytes_by_kind(planned), formula(name, x, y)
    assert {kind: found[kind] for kind in expected if kind[0] == "all-reduce"} == {
        kind: nbytes for kind, nbytes in expected.items() if kind[0] == "all-reduce"
    }
    assert all(expected[kind] <= found[kind] <= 2 * expected[kind] for kind in expected)
    assert set(found) == set(expected)
    crossing = {row.axes for row in planned.collectives.rows if row.nbytes_across_hosts}
    assert crossing == ({("x",)} if y < 8 else {("y",)})


# -- the bound of a search

NAMES = ("x", "y")
RULES = {"rows": {"^x$": ROWS}, "tiles": {"^x$": ROWS, "^w$": TILES}}


def sum_of_squares(w: Any, x: Any) -> Any:
    """One product, and its gradient."""
    return jax.grad(lambda w: jnp.sum(jnp.square(x @ w)))(w)


@pytest.mark.parametrize("machine", ["cpu:2x4", pytest.param("h100:2x4", marks=pytest.mark.requires_part("compilers"))])
def test_the_bound_of_a_search_excludes_nothing_that_fits(machine: str) -> None:
    """With every candidate compiled, the best three are those of the search, and what it excluded does not fit."""
    known = parse_machine(machine)
    small = dataclasses.replace(known, chip=dataclasses.replace(known.chip, nbytes=8 * 2**20, reserved=0))
    given = jax.ShapeDtypeStruct((512, 1024), jnp.float32), jax.ShapeDtypeStruct((4096, 512), jnp.float32)

    def export(axes: Mapping[str, int], name: str) -> ExportedCall:
        return export_call(sum_of_squares, (given, {}), Target(axes, fits.find_platform(small), RULES[name]))

    def best(candidates: list[Candidate]) -> list[tuple[Any, str]]:
        ordered = sorted(candidates, key=lambda each: each.sort_key)
        return [(each.mesh, each.specs) for each in ordered if each.fits][:3]

    searched = list(fits.search(export, small, NAMES, list(RULES)))
    compiled = [
        Candidate(
            each.mesh, each.specs, fits.compile_exported(export(dict(each.mesh), each.specs), small, dict(each.mesh))
        )
        for each in searched
    ]
    assert 0 < sum(not each.is_compiled for each in searched) < len(searched) == 8
    for one, whole in zip(searched, compiled, strict=True):
        assert one.is_compiled or not whole.fits
        assert whole.fit is not None
        # The bound is the compiler's own figure.
        assert whole.fit.memory.arguments == sum(argument.nbytes for argument in whole.fit.arguments)
    assert best(searched) == best(compiled) != []
