"""Why a collective exists: what the lowered module states, and "not known" for the rest."""

from __future__ import annotations

import pytest

from mhnb.sharding.hlo_collectives import HloCollective
from mhnb.sharding.hlo_text import SourceLine
from mhnb.sharding.shardy import Explanation, explain_collective, format_shardy_spec
from tests.unit.sharding.texts import CPU, TPU, line_of, lowered, read


def explain(program: str, kind: str) -> list[Explanation]:
    """Explain every collective of a recorded program."""
    return [explain_collective(one, lowered(program, kind)) for one in read(program, kind)]


@pytest.mark.parametrize("kind", CPU)
def test_explicit_axes_state_both_shardings(kind: str) -> None:
    """With explicit axes the types state the shardings: the product's operands and result, and the reshard's before and after."""
    product, reshard = explain("explicit_axes", kind)
    assert (product.before, product.after) == (("P('data', 'model')", "P('model', None)"), "P('data', None)")
    assert (reshard.before, reshard.after) == (("P('data', None)",), "P(None, 'data')")
    assert (
        str(reshard)
        == f"jit(run)/reshard, programs.py:{line_of('return jax.reshard(')}: P('data', None) → P(None, 'data')"
    )
    assert not product.written
    assert not reshard.written


@pytest.mark.parametrize("kind", [*CPU, *TPU])
def test_constraints_state_both_shardings(kind: str) -> None:
    """Between two constraints the shardings before and after are stated."""
    found = explain("reshard", kind)[1]
    assert (found.before, found.after) == (("P('data', 'model')",), "P(None, 'data')")
    assert found.operation == "jit(run)/sharding_constraint"


@pytest.mark.parametrize("kind", CPU)
def test_unstated_sharding_is_not_known(kind: str) -> None:
    """The hidden layer's sharding is the compiler's and not known; the argument's and the result's are stated."""
    (found,) = explain("tensor_parallel", kind)
    assert (found.before, found.after) == ((None, "P('model', None)"), "P('data', None)")
    assert str(found).endswith(": not known, P('model', None) → P('data', None)")
    assert [(one.before, one.after) for one in explain("two_meshes", kind)][:2] == [((), None), ((), None)]


@pytest.mark.parametrize("kind", [*CPU, *TPU])
@pytest.mark.parametrize("program", ["pipeline", "expert_parallel", "sharded_parameters"])
def test_named_collective_is_written_in_the_program(program: str, kind: str) -> None:
    """A collective that the program calls by name is marked as written in the program, also in a loop's function."""
    for found in explain(program, kind):
        assert found.written
        assert str(found).endswith(": written in the program")


@pytest.mark.parametrize("kind", CPU)
def test_collectives_in_loops_and_branches_are_written(kind: str) -> None:
    """A collective with a region of its own in a function, a loop or a branch is marked as written in the program too."""
    assert all(found.written for found in explain("loops", kind))


def test_argument_moved_at_entry_of_shard_map() -> None:
    """The argument whose sharding the shard_map changes is the one that moves; jax 0.12 names only the argument."""
    (found,) = explain("at_entry", CPU[0])
    assert (found.operation, found.before, found.after) == (
        "jit(run)/shard_map",
        ("P('data', 'model')",),
        "P('data', None)",
    )
    (newer,) = explain("at_entry", CPU[1])
    assert (newer.operation, newer.before, newer.after) == ("x", ("P('data', 'model')",), None)


def test_two_moved_arguments_are_not_known() -> None:
    """If two arguments move, the module does not state which one a collective belongs to."""
    (one,) = read("at_entry", CPU[0])
    module = lowered("at_entry", CPU[0]).replace('<@mesh, [{"data"}, {}]>] out', "<@mesh, [{}, {}]>] out")
    assert module != lowered("at_entry", CPU[0])
    assert (explain_collective(one, module).before, explain_collective(one, module).after) == ((), None)


def test_an_argument_that_is_gathered() -> None:
    """The compiled text names the gathered argument: its sharding is stated, but the one after the gather is not."""
    down, up, _ = explain("overlapped", TPU[0])
    assert (down.operation, down.before, down.after) == ("down", ("P('model', 'data')",), None)
    assert (up.operation, up.before, up.after) == ("up", ("P('data', 'model')",), None)
    assert str(up) == "up, line not known: P('data', 'model') → not known"


def test_without_lowered_module_shardings_are_not_known() -> None:
    """Without a lowered module only the operation and the line are known, from the compiled text."""
    one = HloCollective("all-gather", "g", (), (), (), op_name="jit(f)/mul", source=SourceLine("/a/model.py", 3))
    assert explain_collective(one, "") == Explanation("jit(f)/mul", SourceLine("/a/model.py", 3))
    assert str(explain_collective(one, "")) == "jit(f)/mul, model.py:3: not known → not known"
    assert str(explain_collective(HloCollective("all-gather", "g", (), (), ()), "")) == (
        "operation not known, line not known: not known → not known"
    )


@pytest.mark.parametrize("kind", [*CPU, *TPU])
def test_written_collective_is_recognised_by_name(kind: str) -> None:
    """Without a lowered module, as after a launch, a psum is recognised by its name, and other operations are not known."""
    for program in ("pipeline", "expert_parallel", "sharded_parameters"):
        assert all(explain_collective(one, "").written for one in read(program, kind))
    assert not any(explain_collective(one, "").written for one in read("reshard", kind))
    inserted = HloCollective(
        "all-gather", "g", (), (), (), op_name="jit(f)/psum_of_mine/mul", source=SourceLine("a", 1)
    )
    assert not explain_collective(inserted, "").written


@pytest.mark.parametrize("value", ["%arg0", "%0"])
def test_ambiguous_operation_is_not_known(value: str) -> None:
    """If the same operation is twice on a line, side by side or in sequence, neither is chosen."""
    text = """
#loc1 = loc("model.py":3:1)
#loc2 = loc("jit(f)/constraint"(#loc1))
  func.func public @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{"a"}]> : tensor<8xf32> loc(#loc2)
    %1 = sdy.sharding_constraint VALUE <@mesh, [{"b"}]> : tensor<8xf32> loc(#loc2)
"""
    text = text.replace("VALUE", value)
    one = HloCollective("all-gather", "g", (), (), (), op_name="jit(f)/constraint", source=SourceLine("model.py", 3))
    assert explain_collective(one, text).after is None


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("[]", "P()"),
        ("[{}]", "P(None)"),
        ('[{"data"}, {}, {"a", "b"}]', "P('data', None, ('a', 'b'))"),
        ('[{"x":(1)2}]', "P('x':(1)2)"),
        ('[{}], unreduced={"x"}', "P(None), unreduced={'x'}"),
    ],
)
def test_shardy_specs_are_formatted(text: str, spec: str) -> None:
    """Shardy's dimensions are formatted as JAX writes them."""
    assert format_shardy_spec(text) == spec


def test_explanation_after_launch_names_why_command() -> None:
    """After a launch the explanation says that shardings are not kept and names `%mhjax collectives --explain`.

    A collective that is written in the program is recognised anyway.
    """
    launched = Explanation("jit(f)/mul", SourceLine("/a/model.py", 3), is_kept=False)
    assert str(launched) == (
        "jit(f)/mul, model.py:3: the stated shardings are not kept after a launch; "
        "%mhjax collectives --why f(args) shows them"
    )
    assert str(Explanation("psum", None, written=True, is_kept=False)).endswith("written in the program")
