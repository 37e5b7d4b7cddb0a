"""Which outputs of a lowered program are unchanged arguments."""

from __future__ import annotations

import pytest

from mhnb.sharding.shardy import find_passthrough_outputs

CASES = {
    "a copy": ("    return %arg0 : t", ((0, 0),)),
    "beside another": ("    %0 = stablehlo.add %arg0, %arg1 : t\n    return %0, %arg1 : t, t", ((1, 1),)),
    "constrained twice": (
        """    %0 = sdy.sharding_constraint %arg2 <@mesh, [{"x"}]> : t
    %1 = sdy.sharding_constraint %0 <@mesh, [{}]> : t
    return %1 : t""",
        ((0, 2),),
    ),
    "barrier": ("    %0 = stablehlo.optimization_barrier %arg0 : t\n    return %0 : t", ((0, 0),)),
    "barrier of two": (
        "    %0:2 = stablehlo.optimization_barrier %arg0, %arg1 : t, t\n    return %0#0, %0#1 : t, t",
        (),
    ),
    "computed": ("    %0 = stablehlo.negate %arg0 : t\n    return %0 : t", ()),
    "inside of a loop": (
        "    %0 = stablehlo.while(%iterArg = %arg0) : t\n      stablehlo.return %arg0 : t\n    return %0 : t",
        (),
    ),
    "nothing": ("    return", ()),
}


@pytest.mark.parametrize(("body", "passed"), CASES.values(), ids=CASES.keys())
def test_passthrough_outputs_are_found(body: str, passed: tuple[tuple[int, int], ...]) -> None:
    """Outputs of the main function that are arguments are found, and those of later functions are ignored."""
    after = "  func.func private @helper(%arg0: t) -> t {\n    return %arg0 : t\n  }"
    module = f"module @jit_f {{\n  func.func public @main(%arg0: t) -> t {{\n{body}\n  }}\n{after}\n}}"
    if body.strip() != "return":
        assert find_passthrough_outputs(module) == passed
    assert find_passthrough_outputs(module.replace(after, "")) == passed


def test_other_text_has_no_passthrough_outputs() -> None:
    """A text that is not a module, as of a serialised executable, has no such outputs."""
    assert find_passthrough_outputs("((ShapedArray(float32[8]),), 'jit(f)')") == ()
