"""Operations and bytes of real compiled programs, compared with formulas and with XLA's own count."""

from __future__ import annotations

import json
import random
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mhnb.errors import UnknownForm
from mhnb.sharding.hlo_cost import Cost, count_cost
from tests.unit.sharding.texts import FOLDER, TPU, hlo

COST = FOLDER / "cost"
XLA: dict[str, dict[str, float]] = json.loads((COST / "xla.json").read_text(encoding="utf-8"))
MIB = 2**20
TOKENS, PARAMETERS, BLOCKS = 512, 2 * 256 * 1024, 6

FLOPS = {
    "matmul": 2 * 512 * 1024 * 2048,
    # Forward, the gradient of the weights, and the gradient of the inputs.
    "mlp": 6 * PARAMETERS * TOKENS,
    # Two products per head, of 256 queries, 256 keys and 64 features.
    "attention": 4 * 4 * 8 * 256 * 256 * 64,
    "scan": BLOCKS * 2 * PARAMETERS * TOKENS,
    "nested": 3 * 5 * 2 * 256**3,
    # 16 x 16 positions of 3 x 3. The last row and column of positions reach one beyond the picture.
    "convolution": 2 * 8 * 64 * 128 * (16 * 3 - 1) ** 2,
    # Forward and two gradients, 30 x 30 positions of 3 x 3.
    "convolution_gradient": 3 * 2 * 8 * 64 * 128 * (30 * 3) ** 2,
    "batched": 12 * 2 * 128 * 256 * 64,
    "integers": 2 * 512 * 1024 * 2048,
    # The longer branch, and one iteration of a loop of unknown length.
    "branches": 2 * 2 * 512**3,
    "unknown_loop": 2 * 512**3,
}
# cuDNN multiplies by the padding too: its input is padded before.
FLOPS_OF_FILE = {"convolution.gpu": 2 * 8 * 64 * 128 * (16 * 3) ** 2}

NAMES = sorted(path.stem for path in COST.glob("*.hlo"))
NOT_AS_XLA = ("scan", "rows_of_table", "rows_added_to_table")
"""XLA counts a loop once, and the whole of a table that a fusion gathers or changes some rows of."""


def read(name: str) -> str:
    """Return a recorded text."""
    (path,) = COST.glob(f"{name}.jax-*.hlo")
    return path.read_text(encoding="utf-8")


def program_of(name: str) -> str:
    """Return the program that a text was compiled from."""
    return re.sub(r"_4$|_library$", "", name.partition(".")[0])


def entry(*lines: str, tables: str = "") -> str:
    """Return a program of a few instructions."""
    return "HloModule f\n\n" + tables + "ENTRY %main () -> f32[] {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


@pytest.mark.parametrize("name", NAMES)
def test_flops_match_the_formula(name: str) -> None:
    """Every recorded program has the operations of its formula, divided by its devices."""
    short = name.partition(".jax")[0]
    expected = FLOPS_OF_FILE.get(short, FLOPS.get(program_of(name), 0))
    assert count_cost(read(short)).flops == expected // (4 if "_4." in name else 1)


@pytest.mark.parametrize("name", [name for name in NAMES if ".cpu" in name and program_of(name) not in NOT_AS_XLA])
def test_bytes_match_xla_on_cpu(name: str) -> None:
    """The bytes are XLA's own, within a hundredth."""
    assert count_cost(read(name.partition(".jax")[0])).nbytes == pytest.approx(XLA[name]["bytes accessed"], rel=0.01)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Arguments and results; what is between them stays on the chip. XLA's own figures are 1 to 7 times as high: they
        # include memory on the chip, and tiles that a product reads again.
        ("matmul.tpu", 2 * (512 * 1024 + 1024 * 2048 + 512 * 2048)),
        ("attention.tpu", 4 * MIB),
        ("elementwise.tpu", 7 * 4 * MIB),
    ],
)
def test_memory_on_the_chip_is_not_counted(name: str, expected: int) -> None:
    """On TPU only main memory counts: arguments are read once, and results written once."""
    assert count_cost(read(name)).nbytes == expected


def test_elementwise_bytes_match_xla_on_tpu() -> None:
    """Where nothing is tiled, XLA's count for TPU is the same."""
    (name,) = [name for name in XLA if name.startswith("elementwise.tpu")]
    assert count_cost(read("elementwise.tpu")).nbytes == XLA[name]["bytes accessed"]


@pytest.mark.parametrize("kind", ["cpu", "gpu", "tpu"])
def test_a_loop_costs_its_iterations(kind: str) -> None:
    """Operations and bytes grow by one body and one condition per iteration."""
    text = read(f"scan.{kind}")
    if kind == "tpu":
        (limit,) = set(re.findall(r"s32\[\]\{:T\(128\)\} constant\(6\)", text))
        texts = [text.replace(limit, limit.replace("6", str(trips))) for trips in (0, 1, 6)]
    else:
        texts = [text.replace('"n":"6"', f'"n":"{trips}"') for trips in (0, 1, 6)]
    none, one, six = map(count_cost, texts)
    assert six.nbytes - none.nbytes == 6 * (one.nbytes - none.nbytes) > 0
    assert (none.flops, six.flops) == (0, 6 * one.flops)
    assert not six.has_unknown_loop


def test_a_loop_of_unknown_length_counts_once() -> None:
    """The result says so."""
    assert count_cost(read("unknown_loop.cpu")).has_unknown_loop


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slice_of_table.cpu", 2 * 8 * 256 * 4),
        ("update_of_table.cpu", 2 * 8 * 256 * 4),
        ("update_of_table.tpu", 2 * 8 * 256 * 4),
        # The indices, the rows that are read, and the result.
        ("rows_of_table.cpu", 512 * 4 + 2 * 512 * 256 * 4),
        # The indices in two forms, the rows to add, the rows before and after.
        ("rows_added_to_table.cpu", 3 * 512 * 4 + 3 * 512 * 256 * 4),
    ],
)
def test_parts_of_an_array_cost_their_own_bytes(name: str, expected: int) -> None:
    """A slice, a gather and an update in place do not count the table of 31 MiB."""
    assert expected <= count_cost(read(name)).nbytes <= expected + 4096


def test_overlapped_collectives_count_once() -> None:
    """XLA for TPU writes a gather out in each fusion that it overlaps with."""
    assert count_cost(hlo("overlapped", TPU[0])).flops == 2 * 2 * 1024 * 1024 * 4096 // 8
    # As if all of it were in main memory: a prefetch and a copy, two gathers, two products, and an all-reduce.
    text = re.sub(r"S\(\d\)", "", hlo("overlapped", TPU[0]))
    mib = (0.5 + 0.5) + (1 + 1) + 2 * (1 + 4) + (0.5 + 4 + 1) + (1 + 4 + 0.5) + (0.5 + 0.5)
    assert count_cost(text).nbytes == pytest.approx(mib * MIB, rel=1e-5)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*pu.*.hlo")), ids=lambda path: path.stem)
def test_other_recorded_programs_are_read(path: Path) -> None:
    """Every recorded text of a compiler has a cost."""
    assert count_cost(path.read_text(encoding="utf-8")).nbytes > 0


def test_products_of_libraries_are_counted() -> None:
    """A product in cuBLAS costs the same as one that Triton compiles; its workspace is not traffic."""
    assert count_cost(read("matmul_library.gpu")) == count_cost(read("matmul.gpu"))
    assert "__cublas$lt$matmul" in read("matmul_library.gpu")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("matmul.tpu", "bf16"), ("matmul.cpu", "f32"), ("integers.gpu", "s8"), ("batched.tpu", "f32")],
)
def test_flops_are_by_type(name: str, dtype: str) -> None:
    """The type is the one in the compiled program: XLA for CPU widens bf16."""
    assert set(count_cost(read(name)).flops_by_dtype) == {dtype}


def test_unknown_kernels_are_named() -> None:
    """An attention kernel's operands and results are traffic; its operations are not known, so it is listed."""
    text = entry(
        "%q = bf16[128,64]{1,0} parameter(0)",
        '%a = bf16[128,64]{1,0} custom-call(%q, %q), custom_call_target="tpu_custom_call"',
        'ROOT %b = (bf16[128,64]{1,0}, u8[1024]{0}) custom-call(%a), custom_call_target="__cudnn$fmhaSoftmax"',
    )
    kernels = ("__cudnn$fmhaSoftmax", "tpu_custom_call")
    assert count_cost(text) == Cost(nbytes=5 * 128 * 64 * 2, uncounted=kernels)


def test_collectives_cost_operands_and_results() -> None:
    """Start operations repeat their operands in the result; these count once."""
    text = entry(
        "%x = f32[256]{0} parameter(0)",
        "%s = (f32[256]{0}, f32[1024]{0}) all-gather-start(%x), replica_groups={{0,1,2,3}}, dimensions={0}",
        "ROOT %d = f32[1024]{0} all-gather-done(%s)",
    )
    assert count_cost(text).nbytes == 4 * (256 + 1024)


def test_host_memory_is_not_counted() -> None:
    """A copy to the host reads the device's memory once."""
    text = entry("%x = f32[256]{0} parameter(0)", "ROOT %y = f32[256]{0:S(5)} copy(%x)")
    assert count_cost(text).nbytes == 4 * 256


LOOP = """%body (s: (s32[], s32[], f32[8])) -> (s32[], s32[], f32[8]) {
  %s = (s32[], s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=1
  %x = f32[8] get-tuple-element(%s), index=2
  %step = s32[] constant(STEP)
  %next = s32[] add(%i, %step)
  %d = f32[] dot(%x, %x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT %t = (s32[], s32[], f32[8]) tuple(%next, LIMIT, %x)
}

%condition (s: (s32[], s32[], f32[8])) -> pred[] {
  %s = (s32[], s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] get-tuple-element(%s), index=1
  ROOT %c = pred[] compare(%i, %n), direction=LT
}

"""
ENTRY = (
    "%x = f32[8] parameter(0)",
    "%zero = s32[] constant(2)",
    "%n = s32[] constant(9)",
    "%state = (s32[], s32[], f32[8]) tuple(%zero, %n, %x)",
    "ROOT %w = (s32[], s32[], f32[8]) while(%state), condition=%condition, body=%body",
)


@pytest.mark.parametrize(("step", "trips"), [(1, 7), (2, 4), (7, 1), (100, 1)])
def test_iterations_are_found_from_the_counter(step: int, trips: int) -> None:
    """From 2 to below 9: XLA for TPU does not write the number down."""
    cost = count_cost(entry(*ENTRY, tables=LOOP.replace("STEP", str(step)).replace("LIMIT", "%n")))
    assert (cost.flops, cost.has_unknown_loop) == (trips * 16, False)


@pytest.mark.parametrize(
    ("step", "limit", "state"),
    [("1", "%next", "2"), ("0", "%n", "2"), ("-1", "%n", "2"), ("1", "%n", "parameter")],
    ids=["the limit changes", "no step", "down", "the start is an argument"],
)
def test_iterations_are_not_guessed(step: str, limit: str, state: str) -> None:
    """A limit, a step or a start that is not a constant leaves the length unknown."""
    lines = [line.replace("constant(2)", "parameter(1)") if state == "parameter" else line for line in ENTRY]
    cost = count_cost(entry(*lines, tables=LOOP.replace("STEP", step).replace("LIMIT", limit)))
    assert (cost.flops, cost.has_unknown_loop) == (16, True)


def draw_window(numbers: random.Random) -> tuple[dict[str, int], int]:
    """Return a random window and the size of its output."""
    while True:
        window = {
            "input": numbers.randint(1, 9),
            "size": numbers.randint(1, 6),
            "stride": numbers.randint(1, 4),
            "low": numbers.randint(-2, 5),
            "high": numbers.randint(-2, 5),
            "lhs_dilate": numbers.randint(1, 4),
            "rhs_dilate": numbers.randint(1, 3),
        }
        padded = window["low"] + (window["input"] - 1) * window["lhs_dilate"] + 1 + window["high"]
        out = (padded - (window["size"] - 1) * window["rhs_dilate"] - 1) // window["stride"] + 1
        if out > 0:
            return window, out


def count_by_hand(window: dict[str, int], out: int) -> int:
    """Count the pairs of output and kernel positions that read an element."""
    places = [
        position * window["stride"] + step * window["rhs_dilate"] - window["low"]
        for position, step in product(range(out), range(window["size"]))
    ]
    last = (window["input"] - 1) * window["lhs_dilate"]
    return sum(0 <= place <= last and place % window["lhs_dilate"] == 0 for place in places)


@pytest.mark.parametrize("seed", range(40))
def test_convolutions_count_positions_that_read_an_element(seed: int) -> None:
    """Padding, strides and dilations (also those that XLA for TPU writes batched products with) count as by hand."""
    numbers = random.Random(seed)  # noqa: S311  # not for secrets
    (first, rows), (second, columns) = draw_window(numbers), draw_window(numbers)
    pairs: dict[str, Any] = {key: (first[key], second[key]) for key in first}
    fields = " ".join("{}={}x{}".format(key, *pairs[key]) for key in ("size", "stride", "lhs_dilate", "rhs_dilate"))
    text = entry(
        "%x = bf16[3,{},{},4] parameter(0)".format(*pairs["input"]),
        "%k = bf16[{},{},2,10] parameter(1)".format(*pairs["size"]),
        f"ROOT %y = bf16[3,{rows},{columns},10] convolution(%x, %k), window={{{fields} "
        f"pad={first['low']}_{first['high']}x{second['low']}_{second['high']}}}, "
        "dim_labels=b01f_01io->b01f, feature_group_count=2",
    )
    assert count_cost(text).flops == 2 * 3 * 2 * 10 * count_by_hand(first, rows) * count_by_hand(second, columns)


@pytest.mark.parametrize("line", ["dot(%x, %x)", "convolution(%x, %x)", "fusion(%x), kind=kLoop, calls=%gone"])
def test_unknown_forms_are_refused(line: str) -> None:
    """A product without its dimensions, or a fusion without its computation, is an error."""
    with pytest.raises(UnknownForm):
        count_cost(entry("%x = f32[8,8] parameter(0)", f"ROOT %y = f32[8,8] {line}"))


def test_complex_products_are_four_real_ones() -> None:
    """Peaks of chips count real products."""
    text = "HloModule f\n\nENTRY %m (p: c64[8,4]) -> c64[8,8] {\n  %p = c64[8,4]{1,0} parameter(0)\n"
    text += "  ROOT %r = c64[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n}\n"
    assert count_cost(text).flops == 4 * 2 * 8 * 8 * 4
