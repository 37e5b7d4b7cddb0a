"""The collectives of real compiled programs, compared with values computed by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mhnb.errors import HloError, UnknownForm
from mhnb.sharding.hlo_collectives import HloCollective, parse_collectives
from tests.unit.sharding.texts import CPU, FOLDER, TPU, hlo, line_of, read

DATA = ((0, 2, 4, 6), (1, 3, 5, 7))
MODEL = ((0, 1), (2, 3), (4, 5), (6, 7))
EVERY = (tuple(range(8)),)
BY_MODEL = ((0, 2, 4, 6, 1, 3, 5, 7),)

Row = tuple[str, int, tuple[tuple[int, ...], ...], int]
"""Operation, bytes that each device contributes, groups, number of runs."""

EXPECTED: dict[str, list[Row]] = {
    # The gradients of b[64] and w[128,64] in one operation.
    "data_parallel": [("all-reduce", 4 * 64 + 4 * 128 * 64, DATA, 1)],
    # Each device has 128/4 rows of the result, 64 wide.
    "tensor_parallel": [("all-reduce", 4 * 32 * 64, MODEL, 1)],
    # 64/4 rows, 32 wide, seven times.
    "pipeline": [("collective-permute", 4 * 16 * 32, DATA, 7)],
    # The same, to the experts and back.
    "expert_parallel": [("all-to-all", 4 * 16 * 32, DATA, 1)] * 2,
    # 64/4 rows of the weight contributed, and a whole gradient of it.
    "sharded_parameters": [("all-gather", 4 * 16 * 64, DATA, 1), ("reduce-scatter", 4 * 64 * 64, DATA, 1)],
    "rings": [
        ("all-reduce", 4 * 16, MODEL, 1),
        ("all-reduce", 4 * 32, DATA, 1),
        ("all-reduce", 4 * 64, EVERY, 1),
        ("all-reduce", 4 * 128, BY_MODEL, 1),
    ],
    "several_at_once": [("all-reduce", 4 * 8 + 4 * 16, DATA, 1), ("all-reduce", 4 * 4, DATA, 1)],
    "loops": [
        ("collective-permute", 4 * 16, DATA, 15),
        ("all-reduce", 4 * 16, MODEL, 5),
        ("all-reduce", 4 * 16, DATA, 1),
        ("all-reduce", 4 * 16, EVERY, 1),
    ],
    "part_of_axis": [("all-reduce", 4 * 16, ((0, 1, 2, 5), (3, 4, 6, 7)), 1)],
    "middle_axis": [
        ("all-reduce", 4 * 16, ((0, 2), (1, 3), (4, 6), (5, 7)), 1),
        ("all-reduce", 4 * 16, ((0, 1, 4, 5), (2, 3, 6, 7)), 1),
    ],
    "explicit_axes": [("all-reduce", 4 * 16 * 64, MODEL, 1), ("all-to-all", 4 * 16 * 64, DATA, 1)],
    # 64/4 rows and 64/2 columns contributed; then 64/4 rows. f32 on CPU for the program's bf16.
    "reshard": [("all-gather", 4 * 16 * 32, MODEL, 1), ("all-to-all", 4 * 16 * 64, DATA, 1)],
    # Each device has 64/4 rows and 32/2 columns of it.
    "at_entry": [("all-gather", 4 * 16 * 16, MODEL, 1)],
    "other_order": [("all-reduce", 4 * 32, DATA, 1), ("all-gather", 4 * 32, MODEL, 1)],
    "two_meshes": [
        ("all-reduce", 4, MODEL, 1),
        ("all-reduce", 4, DATA, 1),
        ("all-reduce", 4, ((0, 1, 2, 3), (4, 5, 6, 7)), 1),
    ],
}


def to_rows(collectives: tuple[HloCollective, ...]) -> list[Row]:
    """Return the values that are computed by hand."""
    return [(one.op, one.nbytes, one.groups, one.times) for one in collectives]


@pytest.mark.parametrize("kind", CPU)
@pytest.mark.parametrize("program", EXPECTED)
def test_collectives_match_hand_computed_values(program: str, kind: str) -> None:
    """Operation, bytes, groups and runs of each recorded program equal the computed ones, in both versions of JAX."""
    assert to_rows(read(program, kind)) == EXPECTED[program]


def test_each_recorded_program_has_expected_values() -> None:
    """Every recorded text has expected values. The results of XLA for TPU have their own tests."""
    recorded = {path.name.partition(".")[0] for path in FOLDER.glob("*.cpu.*.hlo")}
    assert recorded == set(EXPECTED)


def test_recorded_texts_contain_every_spelling() -> None:
    """The recorded texts contain every spelling that the compilers write, although all are parsed to the same values."""
    texts = [path.read_text(encoding="utf-8") for path in FOLDER.glob("*.hlo")]
    for spelling in (
        r"replica_groups=\{\{\d",
        r"replica_groups=\{\}",
        r"replica_groups=\[\d,\d\]<=\[8\],",
        r"replica_groups=\[\d,\d\]<=\[[\d,]+\]T\(",
        r"replica_groups=mesh\['axis_0'",
        r"replica_groups=mesh\['data'",
        r"replica_groups=mesh\[[^]]*\], device_ids=\(\[",
        r"replica_groups=mesh\[[^]]*\], device_ids=\(\d",
        r"\{'\w+':\(2\)2",
        r"source_target_pairs=\{\{",
    ):
        assert any(re.search(spelling, text) for text in texts), spelling


@pytest.mark.parametrize("kind", [*CPU, *TPU])
def test_pairs_keep_their_direction(kind: str) -> None:
    """The pipeline's pairs keep their direction from stage to stage, for both positions along model."""
    (permute,) = read("pipeline", kind)
    assert set(permute.pairs) == {(0, 2), (2, 4), (4, 6), (1, 3), (3, 5), (5, 7)}
    assert permute.nbytes == 4 * 16 * 32


@pytest.mark.parametrize("kind", CPU)
def test_loops_and_branches(kind: str) -> None:
    """The lengths of nested scans multiply, a while loop's length is unknown, and a branch is conditional."""
    permute, inner, loop, branch = read("loops", kind)
    assert [(one.times, one.has_unknown_loop, one.is_conditional) for one in (permute, inner, loop, branch)] == [
        (15, False, False),
        (5, False, False),
        (1, True, False),
        (1, False, True),
    ]


def test_iterations_are_found_where_xla_does_not_state_them() -> None:
    """XLA for TPU does not write down the pipeline's seven iterations; its counter shows them."""
    (permute,) = read("pipeline", TPU[0])
    assert (permute.times, permute.has_unknown_loop) == (7, False)
    assert permute.is_async


@pytest.mark.parametrize("kind", [*CPU, *TPU])
@pytest.mark.parametrize(
    ("program", "place", "code"),
    [
        ("pipeline", 0, 'lax.ppermute(jnp.tanh(x), "data"'),
        ("expert_parallel", 0, "at_expert = lax.all_to_all"),
        ("expert_parallel", 1, "return lax.all_to_all"),
        ("sharded_parameters", 0, "weight = lax.all_gather"),
        ("sharded_parameters", 1, "return piece - lax.psum_scatter"),
    ],
)
def test_source_is_the_program_line(program: str, place: int, code: str, kind: str) -> None:
    """The source is the line of the program from the table of stack frames."""
    source = read(program, kind)[place].source
    assert source is not None
    assert (source.file, source.line) == ("tests/unit/sharding/programs.py", line_of(code))
    assert str(source) == f"programs.py:{line_of(code)}"


def test_source_lines_of_older_texts() -> None:
    """In older texts without the tables the source is read from the metadata."""
    metadata = 'metadata={op_name="jit(f)/psum" source_file="/data/model.py" source_line=18}'
    (one,) = parse_collectives(module(f"all-reduce(%p), replica_groups={{}}, to_apply=%add, {metadata}"))
    assert one.source is not None
    assert str(one.source) == "model.py:18"
    assert one.op_name == "jit(f)/psum"


def test_without_metadata_there_is_no_source() -> None:
    """Without metadata the source is None and the operation's name is empty."""
    (one,) = parse_collectives(module("all-reduce(%p), replica_groups={}, to_apply=%add"))
    assert (one.source, one.op_name) == (None, "")


def test_source_in_a_cell_names_the_cell() -> None:
    """A source line in a notebook cell is named by cell and line."""
    metadata = 'metadata={source_file="<cell 12>" source_line=3}'
    (one,) = parse_collectives(module(f"all-reduce(%p), replica_groups={{}}, to_apply=%add, {metadata}"))
    assert str(one.source) == "cell 12, line 3"


def test_overlapped_tpu_gathers_are_read_once() -> None:
    """A gather that XLA splits into three fusions is one collective, bf16 stays bf16, and all three collectives are found."""
    rows = read("overlapped", TPU[0])
    assert to_rows(rows) == [
        ("all-gather", 2 * 2048 * 256, DATA, 1),
        ("all-gather", 2 * 256 * 2048, DATA, 1),
        ("all-reduce", 2 * 256 * 1024, MODEL, 1),
    ]
    assert hlo("overlapped", TPU[0]).count(" all-gather(") == 4
    assert [one.is_async for one in rows] == [True, False, False]
    assert not any(one.is_widened for one in rows)


@pytest.mark.parametrize("kind", CPU)
def test_cpu_widens_16_bit_floats(kind: str) -> None:
    """Values that are bf16 in the program and f32 in CPU's text are marked as widened; those that are f32 in both are not."""
    assert all(one.is_widened for one in read("reshard", kind))
    assert not any(one.is_widened for one in read("rings", kind))
    assert not any(one.is_widened for one in read("explicit_axes", kind))


def test_promoted_reducer_means_widened() -> None:
    """An all-reduce is widened if its reducer has XLA's name for that."""
    text = module("all-reduce(%p), replica_groups={}, to_apply=%add_promoted").replace("%add (", "%add_promoted (")
    assert parse_collectives(text)[0].is_widened


@pytest.mark.parametrize("kind", ["xla.jax-0.10.2", "xla.jax-0.12.0.1"])
def test_every_form_that_xla_prints(kind: str) -> None:
    """All forms of async pairs, send and recv, ragged and broadcast are each read once."""
    rows = read("spellings", kind)
    assert {(one.op, one.is_async, one.nbytes, sum(shape.nbytes for shape in one.results)) for one in rows[7:]} == {
        ("all-reduce", True, 32, 32),
        ("all-gather", True, 32, 64),
        ("reduce-scatter", True, 32, 16),
        ("all-to-all", True, 32, 32),
        ("collective-permute", True, 32, 32),
        ("collective-broadcast", False, 32, 32),
        ("ragged-all-to-all", False, 32, 32),
        ("send", True, 32, 32),
    }
    assert [one.times for one in rows] == [1] * 15
    assert [one.groups for one in rows[:7]] == [
        EVERY,
        DATA,
        ((0, 1, 4, 5), (2, 3, 6, 7)),
        ((0, 1, 2, 3), (4, 5, 6, 7)),
        ((0, 4, 1, 5), (2, 6, 3, 7)),
        ((0, 2, 1, 3), (4, 6, 5, 7)),
        ((0, 4), (1, 5), (2, 6), (3, 7)),
    ]
    assert rows[-1].pairs == ((0, 1), (1, 2))


TEMPLATE = """HloModule made_up, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
  ROOT %r = {shape} {operation}
}}
"""


def module(operation: str, shape: str = "f32[8]{0}") -> str:
    """Return a small program with one operation."""
    return TEMPLATE.format(operation=operation, shape=shape)


UNKNOWN = {
    "an operation": module("all-shuffle(%p), replica_groups={}"),
    "a collective-": module("collective-swap(%p)"),
    "groups on something else": module("convolve(%p), replica_groups={{0,1}}"),
    "a spelling of groups": module("all-reduce(%p), replica_groups=every_other, to_apply=%add"),
    "an element type": module("all-reduce(%p), replica_groups={}, to_apply=%add").replace("f32[8]", "q7[8]"),
    "an operand from elsewhere": module("all-reduce(%q), replica_groups={}, to_apply=%add"),
    "a send to nobody knows whom": module("send(%p, %p), channel_id=1", "(f32[8]{0}, u32[], token[])"),
    "a start without a result": module("all-gather-start(%p), replica_groups={}", "f32[8]{0}"),
    "slices permuted in place": module("collective-permute(%p, %p), source_target_pairs={{0,1}}, slice_sizes={{8}}"),
    "replicas and partitions": module("all-reduce(%p), replica_groups={{0,1}}, to_apply=%add").replace(
        "num_partitions=8", "replica_count=2, num_partitions=4"
    ),
    "a caller that is not seen": module("all-reduce(%p), replica_groups={}, to_apply=%add").replace(
        "ENTRY %main", "%main"
    )
    + "\nENTRY %top () -> f32[] {\n  ROOT %c = f32[] constant(1)\n}\n",
}


@pytest.mark.parametrize("text", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_unknown_form_is_refused(text: str) -> None:
    """Each unknown form raises an error that names it; nothing is skipped or guessed."""
    with pytest.raises(UnknownForm) as caught:
        parse_collectives(text)
    assert caught.value.form


def test_host_transfer_is_not_a_collective() -> None:
    """A send to the host is not a collective, because it reaches no other device."""
    text = module("send(%p, %p), channel_id=1, is_host_transfer=true", "(f32[8]{0}, u32[], token[])")
    assert parse_collectives(text) == ()


def test_words_in_strings_are_not_operations() -> None:
    """A name or a backend's remark that contains the name of a collective is not an operation."""
    text = module('negate(%p), metadata={op_name="jit(f)/ all-reduce(x), replica_groups={{0}}"}')
    assert parse_collectives(text) == ()


@pytest.mark.parametrize("text", ["", "module @jit_f {}", "HloModule f\n"])
def test_other_text_is_refused(text: str) -> None:
    """A text that is not a compiled program is refused."""
    with pytest.raises(HloError, match="not the text of a"):
        parse_collectives(text)


def test_runs_of_each_call_are_added() -> None:
    """Two calls, one of them in a loop of three iterations, are four runs."""
    body = """
%work (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %sum = f32[8]{0} all-reduce(%x), replica_groups={}, to_apply=%add
}

%body (x.1: f32[8]) -> f32[8] {
  %x.1 = f32[8]{0} parameter(0)
  ROOT %c = f32[8]{0} call(%x.1), to_apply=%work
}

%cond (x.2: f32[8]) -> pred[] {
  %x.2 = f32[8]{0} parameter(0)
  ROOT %t = pred[] constant(true)
}

ENTRY"""
    turns = 'while(%once), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}'
    text = (
        module(turns)
        .replace("ENTRY", body)
        .replace("  ROOT %r", "  %once = f32[8]{0} call(%p), to_apply=%work\n  ROOT %r")
    )
    (one,) = parse_collectives(text)
    assert (one.times, one.has_unknown_loop, one.is_conditional) == (4, False, False)


def test_async_pair_counts_once() -> None:
    """In older texts the start and the end both name the computation, but it counts once."""
    wrapped = """
%wrapped (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %sum = f32[8]{0} all-reduce(%x), replica_groups={}, to_apply=%add
}

ENTRY"""
    text = module("async-done(%s.1), calls=%wrapped").replace("ENTRY", wrapped)
    start = "  %s.1 = ((f32[8]{0}), f32[8]{0}) async-start(%p), calls=%wrapped\n  ROOT %r"
    (one,) = parse_collectives(text.replace("  ROOT %r", start))
    assert (one.times, one.is_async) == (1, True)


def test_loop_without_iterations_has_no_runs() -> None:
    """A computation in a loop without iterations has zero runs and is not an unknown form."""
    body = """
%body (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %sum = f32[8]{0} all-reduce(%x), replica_groups={}, to_apply=%add
}

ENTRY"""
    turns = 'while(%p), condition=%add, body=%body, backend_config={"known_trip_count":{"n":"0"}}'
    (one,) = parse_collectives(module(turns).replace("ENTRY", body))
    assert (one.times, one.has_unknown_loop) == (0, False)


def test_recorded_texts_name_their_jax_version() -> None:
    """The name of each recorded text contains a JAX version."""
    for path in [*FOLDER.rglob("*.hlo"), *FOLDER.rglob("*.mlir")]:
        assert re.fullmatch(r"\w+\.(cpu|gpu|tpu|xla)\.jax-\d+\.\d+\.[\d.]+\.(hlo|mlir)", Path(path).name)


TRANSFER = """HloModule f, num_partitions=2

ENTRY %m (p: bf16[8]) -> bf16[16] {{
  %p = bf16[8]{{0}} parameter(0)
  %t = token[] after-all()
  %s = (bf16[8]{{0}}, u32[], token[]) send(%p, %t), channel_id=2, is_host_transfer=true, frontend_attributes={{{attributes}}}
  %r = (bf16[16]{{0}}, u32[], token[]) recv(%t), channel_id=1, is_host_transfer=true, frontend_attributes={{{attributes}}}
  %sd = token[] send-done(%s), channel_id=2, is_host_transfer=true
  %rd = (bf16[16]{{0}}, token[]) recv-done(%r), channel_id=1, is_host_transfer=true
  %q = bf16[8]{{0}} all-reduce(%p), channel_id=3, replica_groups={{{{0,1}}}}, to_apply=%add
  ROOT %v = bf16[16]{{0}} get-tuple-element(%rd), index=0
}}
"""
# Two slices of two chips, on a mesh whose second axis is over the slices.
ACROSS = (100001, 200001, 100000, 200000)


@pytest.mark.parametrize(
    ("kind", "target", "op", "groups"),
    [
        ("ALL_GATHER", '"{1,2}x{0:1}"', "all-gather", {(2, 3), (0, 1)}),
        ("ALL_REDUCE", "{{100001,200001},{100000,200000}}", "all-reduce", {(0, 1), (2, 3)}),
        ("ONE_TO_ONE", "{{100001->200000},{200000->100001}}", "collective-permute", {(0, 3)}),
    ],
)
def test_transfers_between_slices_are_collectives(
    kind: str, target: str, op: str, groups: set[tuple[int, int]]
) -> None:
    """XLA for TPU compiles one slice; what hosts transfer to other slices is a send whose groups name devices by their id."""
    attributes = (
        f'_xla_host_transfer_rendezvous="g_0",_xla_megascale_target={target},_xla_megascale_transfer_type="{kind}"'
    )
    found, inside = parse_collectives(TRANSFER.format(attributes=attributes), ACROSS)
    assert (found.op, found.nbytes, found.results[0].dims, set(found.groups)) == (op, 16, (16,), groups)
    assert set(inside.groups) == {(0, 2), (1, 3)}


def test_an_unknown_transfer_between_slices_is_refused() -> None:
    """mhnb does not guess what a transfer does."""
    attributes = '_xla_megascale_target="{1,2}x{0:1}",_xla_megascale_transfer_type="SOME"'
    with pytest.raises(UnknownForm, match="SOME"):
        parse_collectives(TRANSFER.format(attributes=attributes), ACROSS)
