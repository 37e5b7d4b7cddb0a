"""Hints: each known error text gets its hint, and no other text gets one."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from msgspec.structs import replace

from mhnb.core import hints
from mhnb.core.error_site import ArrayFacts, ErrorSite, RefusedMesh, TreeFacts
from mhnb.core.hints import HINTS, TAKE_OUT_SHARDING, TAKE_RESHAPED_SHARDING, UPDATES, Hint, RecognisedError, find_hint
from mhnb.magics.commands import list_names
from tests.support.source import PACKAGE

_UNEQUAL = "<class 'numpy.ndarray'> passed to device_put is not the same on each process."

PROVOKED = {
    # closing over, mixing
    "jax.jit(lambda a: a + by_row)(1.0)": ("ValueError", "argument"),
    "params + half": ("ValueError", "on 4"),
    "jax.jit(abs, in_shardings=whole)(params)": ("ValueError", "in_shardings"),
    "by_row + params": ("ValueError", "whose axes or axis types"),
    "params + jax.device_put(params, rows.with_memory_kind('pinned_host'))": ("ValueError", "with_memory_kind"),
    "gone = params + 1; double(gone); np.asarray(gone)": ("RuntimeError", "donated"),
    "kept = []; jax.jit(lambda v: kept.append(v))(1.0); kept[0] + 1": ("UnexpectedTracerError", "Return the value"),
    # shardings
    "jax.device_put(jnp.ones(6), NamedSharding(explicit, P('x')))": (
        "ValueError",
        "8 does not divide 6: pad dimension 0 to 8",
    ),
    "jax.device_put(np.ones(6), rows)": ("IndivisibleError", "8 does not divide 6"),
    "jax.shard_map(abs, mesh=mesh, in_specs=P('x'), out_specs=P('x'))(np.ones(6))": ("ValueError", "dimension 0 to 8"),
    "jax.shard_map(abs, mesh=square, in_specs=P(None, ('x', 'y')), out_specs=P('x'))(np.ones((2, 9)))": (
        "ValueError",
        "dimension 1 to 16",
    ),
    "jax.jit(lambda: jnp.zeros((2, 9)), out_shardings=NamedSharding(mesh, P(None, 'x')))()": (
        "IndivisibleError",
        "dimension 1 to 16",
    ),
    "jax.jit(abs, in_shardings=rows)(np.ones(6))": ("IndivisibleError", "dimension 0 to 8"),
    "jax.lax.with_sharding_constraint(np.ones(6), rows)": ("IndivisibleError", "dimension 0 to 8"),
    "jax.make_array_from_callback((6,), rows, lambda box: np.ones(6)[box])": ("IndivisibleError", "dimension 0 to 8"),
    "with jax.set_mesh(explicit): jax.jit(lambda a: jax.sharding.reshard(a, P('x')))(np.ones(6))": (
        "ValueError",
        "dimension 0 to 8",
    ),
    "jax.shard_map(lambda a: jax.lax.all_to_all(a, 'x', 0, 0, tiled=True), mesh=mesh, in_specs=P(), out_specs=P('x'))(np.ones(6))": (
        "ValueError",
        "8 does not divide 6: pad the split dimension to 8",
    ),
    "jax.shard_map(lambda a: jax.lax.psum_scatter(a, 'x', tiled=True), mesh=mesh, in_specs=P(), out_specs=P('x'))(np.ones(9))": (
        "ValueError",
        "8 does not divide 9: pad the scattered dimension to 16",
    ),
    "jax.lax.dynamic_slice(by_row, (0, 0), (6, 8))": ("ShardingTypeError", "multiple of 8"),
    "by_row.reshape(2, 4, 8)": ("ShardingTypeError", "out_sharding"),
    "jax.device_put(np.ones(8), NamedSharding(mesh, P('x', None)))": ("ValueError", "more entries"),
    "jax.shard_map(abs, mesh=mesh, in_specs=P('x', None), out_specs=P('x'))(params)": ("ValueError", "more entries"),
    "jax.make_array_from_callback((8,), NamedSharding(mesh, P(None, 'x')), lambda box: np.ones(8)[box])": (
        "IndexError",
        "more entries",
    ),
    "by_column @ by_row": ("ShardingTypeError", "out_sharding"),
    "by_row + by_column": ("ShardingTypeError", "reshard"),
    "with jax.set_mesh(explicit): jnp.concatenate([by_row, by_column])": ("ShardingTypeError", "reshard"),
    "by_row[0]": ("ShardingTypeError", "get(out_sharding"),
    "jax.jit(lambda a: a.at[0].set(1.0))(by_row)": ("ShardingTypeError", "update"),
    "jax.device_put(np.ones(8), P('x'))": ("ValueError", "set_mesh"),
    "jnp.zeros(8, out_sharding=P('x'))": ("ValueError", "set_mesh"),
    "jax.jit(abs, out_shardings=P('x'))(params)": ("RuntimeError", "set_mesh"),
    "jax.shard_map(abs, in_specs=P('x'), out_specs=P('x'))(params)": ("ValueError", "set_mesh"),
    "NamedSharding(mesh, P('z'))": ("ValueError", "it has 'x'"),
    "jax.shard_map(abs, mesh=mesh, in_specs=P('z'), out_specs=P('x'))(params)": ("ValueError", "it has 'x'"),
    "jax.lax.axis_index('zz')": ("NameError", "not inside a jax.shard_map"),
    "jax.jit(lambda a: jax.lax.all_gather(a, 'zz'))(1.0)": ("NameError", "not inside a jax.shard_map"),
    "jax.shard_map(lambda a: jax.lax.psum(a, 'zz'), mesh=mesh, in_specs=P('x'), out_specs=P())(params)": (
        "AssertionError",
        "names a mesh axis",
    ),
    "jax.shard_map(sum, mesh=mesh, in_specs=P('x'), out_specs=P())(params)": (
        "ValueError",
        "each rank continues with its own",
    ),
    "jax.shard_map(jnp.sum, mesh=square, in_specs=P(('x', 'y')), out_specs=P())(params)": (
        "ValueError",
        "equal along ('x', 'y')",
    ),
    "jax.debug.visualize_array_sharding(jnp.float32(3))": ("ValueError", "vars"),
    # names that JAX removed
    "jax.tree_map": ("AttributeError", "jax.tree.map"),
    "from jax.sharding import PositionalSharding": ("ImportError", "NamedSharding"),
    "import jax.experimental.maps": ("ModuleNotFoundError", "jax.shard_map for xmap"),
    "jax.device_put_sharded([1.0], jax.local_devices())": ("AttributeError", "NamedSharding"),
    # starting, memory
    "jax.distributed.initialize()": ("RuntimeError", "--no-init"),
    "jax.config.update('jax_num_cpu_devices', 4)": ("RuntimeError", "remove this line"),
    "jnp.zeros(1 << 44).block_until_ready()": ("JaxRuntimeError", "%mhjax memory"),
}
"""Code that fails in one process of 8 CPU devices: its error, and a word of the hint."""

_PROVOKE = """
import json, sys, traceback, jax
jax.config.update("jax_num_cpu_devices", 8)
import jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
mesh, explicit = (jax.make_mesh((8,), ("x",), axis_types=(kind,)) for kind in (AxisType.Auto, AxisType.Explicit))
square = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
params = jax.device_put(np.arange(8.0), rows)
half = jax.device_put(np.arange(8.0), NamedSharding(Mesh(np.array(jax.devices()[:4]), ("x",)), P("x")))
by_row, by_column = (jax.device_put(np.ones((8, 8)), NamedSharding(explicit, P(*spec))) for spec in ("x", (None, "x")))
double = jax.jit(lambda a: a * 2, donate_argnums=0)
for code in json.loads(sys.argv[1]):
    try:
        exec(code)
    except Exception as error:
        frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
        place = frame.f_globals["__name__"], frame.f_code.co_qualname
        print("@" + json.dumps([code, type(error).__name__, str(error), *place]))
"""


class Provoked(NamedTuple):
    """An error of the installed JAX."""

    ename: str
    evalue: str
    site: ErrorSite


@pytest.fixture(scope="module")
def provoked() -> dict[str, Provoked]:
    """The errors of the installed JAX, by the code that failed."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_TRACEBACK_FILTERING": "off", "XLA_FLAGS": ""}
    command = [sys.executable, "-c", _PROVOKE, json.dumps(list(PROVOKED))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=110)
    errors = [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@")]
    return {code: Provoked(ename, evalue, ErrorSite(*place)) for code, ename, evalue, *place in errors}


@pytest.mark.slow
@pytest.mark.other_python
@pytest.mark.parametrize("code", PROVOKED)
def test_error_of_the_installed_jax_gets_its_hint(provoked: dict[str, Provoked], code: str) -> None:
    """The table recognises the text of the installed JAX. Errors that need several processes: test_pitfalls.py, on ranks."""
    ename, word = PROVOKED[code]
    error = provoked[code]
    assert error.ename == ename
    hint = find_hint(ename, error.evalue, site=error.site, code=code) or ""
    assert word in hint, error.evalue
    assert hint.endswith(".")


KNOWN = [
    ("UsageError", "Line magic function `%mhjax` not found.", "separate"),
    ("UsageError", "Cell magic `%%mhjax` not found.", "separate"),
    ("UsageError", "Cell magic `%%mhajx` not found.", "Did you mean %%mhjax?"),
    # Errors of several processes, as jax 0.10.2 raises them; tests/integration/ranks/test_pitfalls.py provokes most of them on ranks.
    ("RuntimeError", "Fetching value for `jax.Array` that spans non-addressable (non process local)", "replicate each"),
    ("RuntimeError", "Closing over jax.Array that spans non-addressable (non process local)", "argument"),
    ("ValueError", "coordinator_address should be defined.", "arguments"),
    ("JaxRuntimeError", "DEADLINE_EXCEEDED: Deadline Exceeded\nRPC: /CoordinationService/RegisterTask", "coordinator"),
    ("JaxRuntimeError", "ALREADY_EXISTS: Aborted connect attempt as there is a newer incarnation", "process_id"),
    ("JaxRuntimeError", "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):", "died"),
    (
        "JaxRuntimeError",
        (
            "DEADLINE_EXCEEDED: Barrier timed out. Id: save::0. This usually happens because\n# of tasks that reached the barrier: 1/4.\n"
            "The first task at the barrier: 0. Some timed out task names:\n1\n2\n3\n\n\nRPC: /xla.coordination"
        ),
        "Only 1 of 4 ranks reached the barrier 'save' in time; ranks 1-3 did not.",
    ),
    ("JaxRuntimeError", "Gloo context initialization failed: DEADLINE_EXCEEDED: GetKeyValue() timed out", "all ranks"),
    (
        "JaxRuntimeError",
        (
            "UNKNOWN: Gloo context initialization failed: UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: "
            "ipv4:127.0.0.1:21183: Failed to connect to remote host: Connection refused"
        ),
        "shutdown()",
    ),
    ("JaxRuntimeError", "gloo::EnforceNotMet Received data size doesn't match expected size. Is there", "Pad"),
    (
        "JaxRuntimeError",
        (
            "UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
            "[127.0.0.1]:20872"
        ),
        "restart",
    ),
    ("AssertionError", f"{_UNEQUAL} Expected: [0 1]; got: [0].", "seed"),
    ("AssertionError", f"{_UNEQUAL} Expected: [0.1 0.2 0.1 0.2]; got: [0.10000001 0.2].", "float32"),
    ("AssertionError", f"{_UNEQUAL} Expected: [nan 0.2 nan 0.2]; got: [nan 0.2].", "NaN"),
    ("AssertionError", f"{_UNEQUAL} Expected: [0 1 ... 0 1]; got: [0 1 ... 7 8].", "float64"),
    (
        "ValueError",
        "For a cross-host reshard in multi-controller JAX, input and target sharding should have the same set",
        "create it again",
    ),
    (
        "ValueError",
        "device_put's second argument must be a Device or a Sharding which represents addressable devices",
        "holds",
    ),
    (
        "ValueError",
        "When the second argument to `device_put` is a Device, the first argument must be a fully addressable array or",
        "the part that is on this rank",
    ),
    ("ValueError", "Gathering global non-fully-addressable arrays only supports tiled=True", "tiled"),
    ("ValueError", "Passing non-trivial shardings for numpy inputs is not allowed. To fix", "device_put"),
    ("AssertionError", "sync_global_devices name mismatch ('a0'). Expected: [ 468 182]; got: 468.", "same name"),
    # orbax-checkpoint 0.12.8, `orbax.checkpoint.multihost.get_jax_distributed_client`
    ("ValueError", "Distributed system is not available; please initialize it via", "remove that call"),
    (
        "_ArrayMemoryError",
        "Unable to allocate 1.00 PiB for an array with shape (1125899906842624,) and data type int8",
        "host",
    ),
    # GPU and TPU: the texts of jax-cuda12-pjrt 0.10.2 and libtpu 0.0.42.1, for jax 0.10.2
    (
        "JaxRuntimeError",
        "RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 110592, available: 101376, context: [dot]",
        "smaller blocks",
    ),
    (
        "JaxRuntimeError",
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem. Used 16.08M of 16.00M vmem.",
        "smaller blocks",
    ),
    (
        "JaxRuntimeError",
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 35.83G of 31.25G hbm.",
        "no room for this. ",
    ),
    (
        "JaxRuntimeError",
        (
            "INTERNAL: Last NCCL warning(error) log entry (may be unrelated) 'Duplicate GPU detected : rank 1 and rank 0 both on "
            "CUDA device 98000'."
        ),
        "one process per GPU",
    ),
    (
        "ValueError",
        "`jax.make_mesh` does not support multi-slice topologies. Please use",
        "create_hybrid_device_mesh(sizes_",
    ),
    # Python, asyncio and anyio
    ("RuntimeError", "asyncio.run() cannot be called from a running event loop", "already runs in an event loop"),
    ("RuntimeError", "Runner.run() cannot be called from a running event loop", "already runs in an event loop"),
    ("RuntimeError", "Cannot run the event loop while another loop is running", "already runs in an event loop"),
    ("RuntimeError", "This event loop is already running", "already runs in an event loop"),
    ("RuntimeError", "Already running asyncio in this thread", "already runs in an event loop"),
    ("AttributeError", "Can't get attribute 'square' on <module '__main__' (built-in)>", "%%writefile"),
    ("AttributeError", "Can't pickle local object 'f.<locals>.g'", "%%writefile"),
    ("PicklingError", "Can't pickle <class '__main__.C'>: attribute lookup C on __main__ failed", "%%writefile"),
    ("ModuleNotFoundError", "No module named 'einops'", "`%mhjax pip install einops`"),
    ("ModuleNotFoundError", "No module named 'sklearn'", "`%mhjax pip install scikit-learn`"),
    ("ModuleNotFoundError", "No module named 'helpers'", "`%mhjax sync`"),
]


@pytest.mark.parametrize(("ename", "evalue", "word"), KNOWN, ids=[evalue[:30] for _, evalue, _ in KNOWN])
def test_known_error_gets_its_hint(ename: str, evalue: str, word: str) -> None:
    """The hint is the one for that error."""
    hint = find_hint(ename, evalue)
    assert hint is not None
    assert word in hint


@pytest.mark.parametrize(
    ("ename", "evalue"),
    [
        ("AssertionError", ""),
        ("IndexError", "list index out of range"),
        ("NameError", "name 'x' is not defined"),
        ("ValueError", "cannot reshape array of size 64 into shape (7,-1)"),
        ("ValueError", "Contracting dimensions are sharded and it is ambiguous"),
        ("KeyError", "'tree_map'"),
        ("TypeError", "dot_general requires contracting dimensions to have the same shape, got (8,) and (3,)."),
        ("", ""),
    ],
)
def test_other_error_gets_no_hint(ename: str, evalue: str) -> None:
    """An error text that any code may raise gets no hint."""
    assert find_hint(ename, evalue) is None


ITERATED = ("jax._src.array", "ArrayImpl.__iter__")
SPEC_TOO_LONG = ("jax._src.named_sharding", "named_sharding_to_xla_hlo_sharding")
ALLGATHER = ("jax.experimental.multihost_utils", "_handle_array_process_allgather")


@pytest.mark.parametrize(
    ("error", "place", "word"),
    [
        (("AssertionError", ""), ITERATED, "iterate"),
        (("AssertionError", ""), ("jax._src.array", "_iter"), "iterate"),
        (("Abort", ""), ("click.termui", "prompt"), "keyboard"),
        (("AssertionError", ""), ("jax._src.core", "pvary"), "names a mesh axis"),
        (("IndexError", "list index out of range"), SPEC_TOO_LONG, "more entries"),
        (("ValueError", "cannot reshape array of size 3 into shape (2,2)"), ALLGATHER, "same number"),
    ],
)
def test_function_of_jax_selects_the_hint(error: tuple[str, str], place: tuple[str, str], word: str) -> None:
    """A text that any code may raise gets its hint only if the known function of JAX raised it."""
    assert word in (find_hint(*error, site=ErrorSite(*place)) or "")
    assert find_hint(*error, site=ErrorSite("__main__", "<module>")) is None
    assert find_hint(*error, site=ErrorSite(f"{place[0]}_of_mine", place[1])) is None


FETCHED = "Fetching value for `jax.Array` that spans non-addressable"
X = {"x": True}
W = {"w": True}
SUMMED = "dot_general requires contracting dimensions to have the same shape, got (8,) and (3,)."
BROADCAST = "add got incompatible shapes for broadcasting: (3,), (8,)."
SPREAD = ArrayFacts((8,), False, True, False, 8, 1, 1)


@pytest.mark.parametrize(
    ("error", "site", "code", "words"),
    [
        ((FETCHED,), ErrorSite(expression="np.asarray(x)", names=X, top_level=True), "", "`%mhjax pull x`"),
        ((FETCHED,), ErrorSite(expression="np.asarray(w)", names={"w": True}, top_level=True), "", "`%mhjax pull w`"),
        ((FETCHED,), ErrorSite(expression="np.asarray(w)", names=W, arrays={"w": SPREAD}), "", "In that line use w.addressable_shards"),
        ((FETCHED,), ErrorSite(expression="np.asarray(w.T)", names=W, arrays={"w": SPREAD}), "", "(w.T, NamedSharding(w.sharding.mesh"),
        (("Array has been deleted",), ErrorSite(expression="step(w)", names={"w": True}), "", "w was donated"),
        (("Array has been deleted",), ErrorSite(expression="step(w, x)", names=X | {"w": True}), "", "It was donated"),
        (("jax_num_cpu_devices config should be updated before backends are initialized",), ErrorSite(),
         "jax.config.update('jax_num_cpu_devices', 16)", "--devices 16."),
        (("... array axis 1 is partitioned 4 times, but the dimension size is 10 (full",), ErrorSite(), "", "1 to 12,"),
        (("sync_global_devices name mismatch ('here').",), ErrorSite(), "", "'here'"),
        ((SUMMED,), ErrorSite(expression="w @ b", arrays={"w": SPREAD}), "", "a dimension of size 8 in w and 3 in b;"),
        ((BROADCAST,), ErrorSite(expression="b + w", arrays={"w": SPREAD}), "", "b has shape (3,) and w has shape (8,)."),
        (("Length of device assignment 1 is not equal to the size of the mesh 4",),
         ErrorSite(expression="w.at[0].add(1.0)", names=W, arrays={"w": SPREAD}), "y = w.at[0].add(1.0)",
         "w.at[0].add(1.0, out_sharding=w.sharding)"),
        (("Length of device assignment 1 is not equal to the size of the mesh 4",), ErrorSite(), "w.at[0].get()", "pass it"),
    ],
)  # fmt: skip
def test_hint_uses_the_users_names_and_sizes(error: tuple[str], site: ErrorSite, code: str, words: str) -> None:
    """Names, axes and sizes in the hint are the user's if they are known, and placeholders if not."""
    ename = "TypeError" if error[0] in (SUMMED, BROADCAST) else "Error"
    assert words in (find_hint(ename, *error, site=site, code=code) or "")


LEAF = TreeFacts("t['w']", 1, is_uniform=False)


@pytest.mark.parametrize(
    ("site", "says"),
    [
        (ErrorSite(expression="np.asarray(w)", names=W), ""),
        (ErrorSite(expression="np.asarray(w)", names=W, arrays={"w": SPREAD._replace(is_local=True)}), ""),
        (ErrorSite(expression="np.asarray(w)", names=W, arrays={"w": SPREAD._replace(is_on_mesh=False)}), ""),
        (ErrorSite(expression="f(w, x)", names=W | X, arrays={"w": SPREAD, "x": SPREAD}), ""),
        (ErrorSite(expression="w[i]", names=W, arrays={"w": SPREAD}), ""),
        (ErrorSite(expression="get(t)", names={"t": False}), ""),
        (ErrorSite(expression="get(t)", names={"t": False}, trees={"t": LEAF}), ""),
        (
            ErrorSite(expression="get(t)", names={"t": False}, trees={"t": LEAF}, arrays={"t['w']": SPREAD}),
            "(t['w'], N",
        ),
        (
            ErrorSite(
                expression="get(t)",
                names={"t": False},
                trees={"t": LEAF._replace(array_count=2)},
                arrays={"t['w']": SPREAD},
            ),
            "",
        ),
        (
            ErrorSite(
                expression="get(t)",
                names={"t": False},
                trees={"t": LEAF._replace(is_uniform=True)},
                arrays={"t['w']": SPREAD},
            ),
            "(t, NamedSharding(t['w'].sharding.mesh",
        ),
    ],
)
def test_fetch_names_only_what_can_be_replicated(site: ErrorSite, says: str) -> None:
    """The hint names an array or tree only if the rank has seen that one call of `device_put` replicates it."""
    hint = find_hint("RuntimeError", FETCHED, site=site, code=site.expression) or ""
    assert says in hint
    assert ("jax.device_put" in hint) == bool(says)
    assert ".addressable_shards" not in hint.replace("t['w'].addressable_shards", "")


MASK = SPREAD._replace(is_bool=True)
MASKED = {
    "x[mask]": "x[PUT(mask, S)]",
    "x[x > 3]": "x[PUT(x > 3, S)]",
    "x[:, (x > 3) & ~mask]": "x[:, PUT((x > 3) & ~mask, S)]",
    "x[t['m']]": "x[PUT(t['m'], S)]",
    "x.at[x > 3].set(0)": "x.at[PUT(x > 3, S)].set(0)",
    "x.at[mask].add({1: 2}[1], mode='drop')": "x.at[PUT(mask, S)].add({1: 2}[1], mode='drop')",
}


def find_fetch_hint(expression: str, *, is_explicit: bool = False) -> str:
    """Return the hint for a failed fetch in an expression of known arrays."""
    arrays = {"x": SPREAD._replace(is_explicit=is_explicit), "mask": MASK, "t['m']": MASK, "places": SPREAD}
    arrays["own"] = MASK._replace(is_local=True)
    names = dict.fromkeys(arrays, True) | {"i": False, "perm": False, "t": False}
    site = ErrorSite(expression=expression, names=names, arrays=arrays)
    return find_hint("RuntimeError", FETCHED, site=site, code=expression) or ""


@pytest.mark.parametrize("expression", MASKED)
def test_mask_is_replicated_in_the_users_line(expression: str) -> None:
    """A mask that JAX has to fetch is replicated, and the rest of the line stays, so that it can be run."""
    cure = MASKED[expression].replace("PUT", "jax.device_put").replace("S)", "NamedSharding(x.sharding.mesh, P()))")
    hint = find_fetch_hint(expression)
    assert hint.startswith("JAX counts the elements that a mask selects")
    assert hint.endswith(f"on all ranks: {cure}.")
    whole = "jax.device_put(x, NamedSharding(x.sharding.mesh, P()))"
    assert find_fetch_hint(expression, is_explicit=True).endswith(f"on all ranks: {cure.replace('x', whole, 1)}.")


@pytest.mark.parametrize(
    "expression",
    [
        "x[i].item()",
        "x[perm].tolist()",
        "x[places].tolist()",
        "x[x > 3].tolist()",
        "x[places]",
        "x[own]",
        "x[i - 1]",
        "x[i < 3]",
        "x[mask, x > 3]",
        "x.at[i].set(0)",
        "x.at[mask].set(0).tolist()",
        "x.at[mask]",
        "i[mask]",
    ],
)
def test_only_the_index_that_failed_is_a_mask(expression: str) -> None:
    """What fetches is the call after an index, or an index that is no mask of the ranks: the hint does not name a mask."""
    hint = find_fetch_hint(expression)
    assert "mask selects" not in hint
    assert hint.startswith("A rank holds only its own shards of a global array.")


@pytest.mark.parametrize("expression", ["x.at[mask].set(0).tolist()", "np.asarray(x.at[0])"])
def test_updated_part_is_not_called_an_array(expression: str) -> None:
    """`x.at[0]` has no shards and cannot be moved: no cure names it."""
    hint = find_fetch_hint(expression)
    assert "replicate each global array" in hint
    assert ".at[" not in hint


SLICES = "`jax.make_mesh` does not support multi-slice topologies."
DATA_MODEL = (("data", 4), ("model", 4))
EXPLICIT = ("Explicit", "Explicit")
LINE = (
    "Write instead: import jax; from jax.experimental import mesh_utils; mesh = jax.sharding.Mesh("
    "mesh_utils.create_hybrid_device_mesh"
)


@pytest.mark.parametrize(
    ("mesh", "ends"),
    [
        (RefusedMesh(DATA_MODEL, EXPLICIT, (8, 8), 16),
         f"{LINE}((2, 4), (2, 1)), ('data', 'model'), axis_types=(jax.sharding.AxisType.Explicit,) * 2)"),
        (RefusedMesh(DATA_MODEL, ("Auto", "Manual"), (8, 8), 16), "(jax.sharding.AxisType.Auto, jax.sharding.AxisType.Manual,))"),
        (RefusedMesh((("x", 8),), ("Auto",), (4, 4), 16, tuple(range(4, 12))),
         "((4,), (2,), devices=jax.devices()[4:12]), ('x',), axis_types=(jax.sharding.AxisType.Auto,))"),
        (RefusedMesh((("x", 4),), ("Auto",), (2, 2), 8, (0, 2, 4, 6)),
         "devices=jax.devices()[0:7:2]), ('x',), axis_types=(jax.sharding.AxisType.Auto,))"),
        (RefusedMesh((("x", 4),), ("Auto",), (2, 2), 8, (5, 4, 1, 0)),
         "devices=[jax.devices()[at] for at in (5, 4, 1, 0)]), ('x',), axis_types=(jax.sharding.AxisType.Auto,))"),
        (RefusedMesh((("x", 12),), ("Auto",), (8, 4), 16, tuple(range(12))),
         "8 of another. Choose sizes that use all 16 devices, or pass devices= with equally many of each."),
        (RefusedMesh((("x", 12),), ("Auto",), (8, 4), 0), "8 of another. Pass devices= with equally many of each."),
    ],
    ids=["all", "axis types", "a range", "a step", "a list", "a part of a slice", "unequal slices"],
)  # fmt: skip
def test_mesh_over_slices_gets_a_line_with_its_numbers(mesh: RefusedMesh, ends: str) -> None:
    """The line has the sizes, names, types and devices of the refused mesh; a mesh that no line can make gets the reason."""
    assert (find_hint("ValueError", SLICES, site=ErrorSite(mesh=mesh)) or "").endswith(ends)


@pytest.mark.parametrize(
    ("ename", "evalue", "word"),
    [
        ("AttributeError", "module 'jax' has no attribute 'tree_leaves'", "jax.tree.leaves"),
        ("ImportError", "cannot import name 'use_mesh' from 'jax.sharding' (/somewhere.py)", "jax.set_mesh"),
        ("ModuleNotFoundError", "No module named 'jax.experimental.maps'", "jax.shard_map"),
        ("AttributeError", "jax.device_put_replicated is deprecated; use jax.device_put instead.", "jax.device_put"),
        ("AttributeError", "module 'jax' has no attribute 'tree_leafs'", ""),
        ("AttributeError", "module 'mine' has no attribute 'tree_leaves'", ""),
        ("ImportError", "cannot import name 'tree_map' from 'jaxy'", ""),
        ("KeyError", "module 'jax' has no attribute 'tree_leaves'", ""),
    ],
)
def test_moved_names_get_their_successor(ename: str, evalue: str, word: str) -> None:
    """A name that JAX has moved gets its successor, in each way of accessing it; any other name gets no hint."""
    hint = find_hint(ename, evalue)
    assert word in hint if hint else not word


KEY_TIMEOUT = "DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {} and duration: 10m [type.googleapis.com/]"
COLLECTIVE = "Not every rank reached this collective."


@pytest.mark.parametrize(
    ("key", "code", "begins"),
    [
        ("step", "client.blocking_key_value_get('step', 600_000)", "No rank set the key 'step' within 10m."),
        ("my step", "client.blocking_key_value_get_bytes(key, ms)", "No rank set the key 'my step' within 10m."),
        ("cuda:nccl/0", "total = jax.jit(jnp.sum)(x)", COLLECTIVE),
        ("cpu:gloo/0,1/0", "step(params)", COLLECTIVE),
        ("cpu:global_topology/cpu", "jax.devices()", COLLECTIVE),
        ("clique 0 of 2", "step(params)", COLLECTIVE),
    ],
)
def test_only_a_key_of_the_users_code_is_named(key: str, code: str, begins: str) -> None:
    """JAX's collectives wait for keys of their own, which no code of the user's can set."""
    assert (find_hint("JaxRuntimeError", KEY_TIMEOUT.format(key), code=code) or "").startswith(begins)


def test_failure_of_a_hint_is_shown_as_the_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the code of a hint is reported to the user, and ends neither the cell nor the cluster."""

    def fail(_: RecognisedError) -> str:
        raise KeyError("x")

    any_text = re.compile(".*")
    monkeypatch.setattr(hints, "HINTS", (Hint(re.compile("boom"), fail, ename=any_text, raised_in=any_text),))
    assert "KeyError" in (find_hint("UsageError", "boom") or "")
    assert find_hint("UsageError", "other") is None


def test_hints_are_sentences() -> None:
    """A hint ends like a sentence, and is one paragraph."""
    for ename, evalue, _ in KNOWN:
        hint = find_hint(ename, evalue) or ""
        assert hint.endswith(".")
        assert "\n" not in hint


def test_hints_name_existing_commands() -> None:
    """No hint names a command that this version lacks."""
    named = set(re.findall(r"%mhjax (\w+)", (PACKAGE / "core" / "hints.py").read_text()))
    assert {"pull", "restart", "start"} <= named
    assert named <= set(list_names())


MIXED = (
    "Received incompatible devices for jitted computation. Got argument {} of {} with shape float32[{}] and with device ids [{}] "
    "on platform CPU and argument {} of {} with shape float32[{}] and with device ids [{}] on platform CPU"
)
LOCAL, GLOBAL = ArrayFacts((8,), True, True, False, 1, 1, 1), ArrayFacts((8,), False, True, False, 8, 2, 3)
FOUR_DEVICES, REORDERED = (
    ArrayFacts((8,), False, True, False, 4, 4, 4),
    ArrayFacts((8,), False, True, True, 8, 2, 4),
)


@pytest.mark.parametrize(
    ("arguments", "arrays", "code", "words"),
    [
        (("x", "add", "8", "0, 1", "y", "add", "8", "1, 0"), {}, "a + b", "jax.device_put(b, a.sharding)"),
        (("x", "add", "8@x", "0, 1", "y", "add", "8", "1, 0"), {}, "a + b", "jax.device_put(b, a.sharding)"),
        (("x", "add", "8,8", "0, 1", "y", "add", "8", "1, 0"), {}, "a + b", "(b, NamedSharding(a.sharding.mesh, P()))"),
        (("x", "add", "8", "0, 1, 2, 3", "y", "add", "8", "0, 1"), {}, "a + b", "a is on 4 devices and b on 2."),
        (("x", "add", "8", "0, 1, 2", "y", "add", "8", "0, 1"), {"b": LOCAL}, "a + b", "np.asarray(b)"),
        (("x", "add", "8", "0, 1, 2", "y", "add", "8", "3"), {"b": GLOBAL}, "a + b", "a is on 3 devices and b on 1."),
        (("x", "add", "8", "0", "y", "add", "8", "1"), {}, "a + b", "jax.device_put(b, a.sharding)"),
        (("v", "<f>", "8", "0", "w", "<f>", "8", "0, 1"), {"a": LOCAL, "b": GLOBAL}, "f(a, b)", "np.asarray(a)"),
        (
            ("v", "<f>", "8", "0", "w", "<f>", "8", "0, 1"),
            {},
            "f(a, b)",
            "Argument v of <f> is on this rank's own device",
        ),
        (("args[0]", "g", "8", "0, 1", "args[1]", "g", "8", "1, 0"), {}, "g([a, b])", "argument args[1] of g"),
    ],
)
def test_arrays_on_incompatible_devices(
    arguments: tuple[str, ...], arrays: dict[str, ArrayFacts], code: str, words: str
) -> None:
    """For two arrays on incompatible devices, the hint depends on the devices that they are really on."""
    site = ErrorSite(expression=code, names=dict.fromkeys("ab", True), arrays=arrays)
    assert words in (find_hint("ValueError", MIXED.format(*arguments), site=site, code=code) or "")


@pytest.mark.parametrize(
    ("error", "other", "words"),
    [
        ("Mesh for all inputs should be equal.", FOUR_DEVICES, "a is on 8 devices and b on 4."),
        (
            "Mesh for all inputs should be equal.",
            LOCAL,
            "jax.device_put(np.asarray(b), NamedSharding(a.sharding.mesh, P()))",
        ),
        ("Mesh for all inputs should be equal.", REORDERED, "jax.device_put(b, a.sharding)"),
        ("add got incompatible shardings", REORDERED, "jax.device_put(b, a.sharding)"),
        ("add got incompatible shardings", GLOBAL, "jax.reshard(b, a.sharding)"),
        (
            "add got incompatible shardings",
            FOUR_DEVICES,
            "create b again on NamedSharding(a.sharding.mesh, P()) from its host values, with jax.make_array_from_callback",
        ),
    ],
)
def test_explicit_arrays_with_incompatible_devices(error: str, other: ArrayFacts, words: str) -> None:
    """JAX compares axes before devices, so its message about axes may hide that the devices differ."""
    site = ErrorSite(expression="a + b", names=dict.fromkeys("ab", True), arrays={"a": GLOBAL, "b": other})
    ename = "ValueError" if error.startswith("Mesh") else "ShardingTypeError"
    assert words in (find_hint(ename, error, site=site, code="a + b") or "")


@pytest.mark.parametrize(
    ("code", "devices", "words"),
    [
        ("h(make(), x)", ("0", "0, 1"), "move np.asarray of argument v of h to the mesh of argument w of h with jax.device_put"),
        ("h(x, move(y))", ("0, 1", "1, 0"), "move argument w of h to the mesh of argument v of h with jax.device_put on every rank"),
        ("h(make(), local())", ("0", "1"), "move argument w of h to the devices of argument v of h with jax.device_put."),
    ],
)  # fmt: skip
def test_hint_without_names_says_where_to_move_what(code: str, devices: tuple[str, str], words: str) -> None:
    """Words replace the line that cannot be written, and leave out no part of it."""
    text = MIXED.format("v", "h", "8", devices[0], "w", "h", "8", devices[1])
    site = ErrorSite(expression=code, names={"x": True}, arrays={"x": GLOBAL})
    assert words in (find_hint("ValueError", text, site=site, code=code) or "")


IN_SHARDINGS = "Sharding passed to jit does not match the sharding on the respective arg"
NUMPY_INPUT = "Passing non-trivial shardings for numpy inputs is not allowed."
TO_LOCAL = "device_put's second argument must be a Device or a Sharding which represents addressable devices"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (IN_SHARDINGS, "g(x, jax.device_put(y, rows))", "The sharding of an argument differs"),
        (IN_SHARDINGS, "g(x, jax.device_put(y, rows))", "with jax.device_put to the sharding in in_shardings, or leave"),
        (IN_SHARDINGS, "g(x)", "The sharding of x differs"),
        (IN_SHARDINGS, "jax.jit(f, in_shardings=rows)(x)", "jax.device_put(x, rows)"),
        (NUMPY_INPUT, "g(x, jax.device_put(x, rows))", "first: jax.device_put if all"),
        (TO_LOCAL, "jax.device_put(make(), x.sharding)", "The array is on this rank's own devices"),
        (TO_LOCAL, "jax.device_put(make(), t['s'])", "The array is on this rank's own devices"),
        (f"{_UNEQUAL} Expected: [nan 1. nan 1.]; got: [nan 1.].", "jax.device_put(np.array([nan, 1.]), x.sharding)",
         "The value contains NaN"),
    ],
)  # fmt: skip
def test_sharding_of_something_else_is_not_named(error: str, code: str, words: str) -> None:
    """A line in the hint has the array and the sharding that the error is about, or there is no line."""
    names = {"x": True, "y": True, "t": False}
    site = ErrorSite(expression=code, names=names, arrays={"x": SPREAD, "y": SPREAD}, shardings=["rows", "t['s']"])
    hint = find_hint("Error", error, site=site, code=code) or ""
    assert words in hint
    assert "(x.sharding" not in hint
    assert "(y, rows)" not in hint


@pytest.mark.parametrize(
    "code",
    ["jax.device_put(x, device)", "jax.make_array_from_callback(s, rows, lambda box: x[box])", "np.asarray(x)"],
)
def test_rank_without_a_part_of_an_array_gets_no_line_that_reads_it(code: str) -> None:
    """On a rank outside the array's mesh neither a shard nor the value can be read, replicated or not."""
    to_device = (
        "When the second argument to `device_put` is a Device, the first argument must be a fully addressable array"
    )
    for replicated in (True, False):
        facts = SPREAD._replace(is_replicated=replicated, has_shard=False)
        site = ErrorSite(expression=code, names=X, arrays={"x": facts})
        hint = find_hint("Error", FETCHED if "asarray" in code else to_device, site=site, code=code) or ""
        assert "x is on devices of other ranks only" in hint
        assert "create x again on a sharding over all ranks" in hint
        assert ".addressable_shards" not in hint
        assert "np.asarray" not in hint


PMAP_ROWS = "cannot select an axis to squeeze out which has size not equal to one, got shape=(4, 3) and dimensions=(0,)"


def test_only_pmap_gets_the_hint_about_its_rows() -> None:
    """The text of a failed squeeze gets the hint only if the cell called pmap."""
    site = ErrorSite(expression="f(rows)", names={"rows": False}, entry="jax._src.pmap")
    hint = find_hint("ValueError", PMAP_ROWS, site=site, code="f(rows)") or ""
    assert "it got 4 for each" in hint
    assert hint.endswith("[:jax.local_device_count()], rows).")
    assert find_hint("ValueError", PMAP_ROWS, site=replace(site, entry="jax._src.lax.lax"), code="f(rows)") is None


@pytest.mark.parametrize(
    ("ename", "evalue"),
    [
        ("ValueError", "Mesh for all inputs should be equal."),
        ("ShardingTypeError", "add got incompatible shardings"),
        ("ShardingTypeError", "Contracting dimensions are sharded and it is ambiguous"),
        ("ShardingTypeError", "Use `.at[...].get(out_sharding=)` to"),
        ("ShardingTypeError", "Use `.at[...].set/add(out_sharding=)` to"),
        ("ValueError", "Gathering global non-fully-addressable arrays only supports tiled=True"),
        ("AssertionError", f"{_UNEQUAL} Expected: [nan 0.2 nan 0.2]; got: [nan 0.2]."),
        ("AssertionError", f"{_UNEQUAL} Expected: [0.1 0.2 0.1 0.2]; got: [0.10000001 0.2]."),
    ],
)
def test_hint_without_the_users_names_invents_none(ename: str, evalue: str) -> None:
    """Where the rank has not seen the values, the hint has no line with names of its own."""
    hint = find_hint(ename, evalue) or ""
    assert hint.endswith(".")
    assert re.search(r"\b[abx][.,)\[]|\bmesh,|value\)", hint) is None, hint


@pytest.mark.slow
def test_functions_with_out_sharding_accept_it() -> None:
    """Every function and method to which a hint adds `out_sharding` has this parameter in the installed JAX."""
    for name in TAKE_OUT_SHARDING:
        functions = [getattr(module, name) for module in (jnp, jax.lax) if hasattr(module, name)]
        assert functions
        assert all("out_sharding" in inspect.signature(function).parameters for function in functions), name
    for name in TAKE_RESHAPED_SHARDING:
        assert all("out_sharding" in inspect.signature(getattr(of, name)).parameters for of in (jnp, jnp.zeros(1))), (
            name
        )
    for name in UPDATES:
        assert "out_sharding" in inspect.signature(getattr(jnp.zeros(1).at[0], name)).parameters, name


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("ename", "piece"),
    [
        ("TypeError", "requires contracting dimensions to have the same shape, got ("),
        ("TypeError", "got incompatible shapes for broadcasting: ("),
        ("TypeError", "got incompatible shapes for broadcasting: (8,), ("),
        ("ValueError", "maps array axis 1 (of size 2) to mesh "),
    ],
)
@pytest.mark.slow
def test_long_message_is_searched_in_linear_time(ename: str, piece: str) -> None:
    """A pattern that reads to the end of the text from each place where it can begin would take minutes here."""
    assert find_hint(ename, piece * 50_000) is None


@pytest.mark.slow
def test_every_hint_has_a_case(provoked: dict[str, Provoked]) -> None:
    """Every row of the table matches an error of the installed JAX, or a recorded text of this file."""
    texts = [evalue for _, evalue, _ in KNOWN] + [error.evalue for error in provoked.values()]
    texts += [
        "",
        "list index out of range",
        "cannot reshape array of size 3",
        PMAP_ROWS,
        KEY_TIMEOUT,
        SUMMED,
        BROADCAST,
    ]
    unmatched = [cure.pattern.pattern for cure in HINTS if not any(cure.pattern.search(text) for text in texts)]
    assert unmatched == []


def test_only_script_arguments_get_an_index_error_hint() -> None:
    """Only the code shows which list an index error concerns; for any other list there is no hint."""
    hint = find_hint("IndexError", "list index out of range", code="n = int(sys.argv[1])")
    assert hint is not None
    assert "jax.process_index()" in hint
    assert find_hint("IndexError", "list index out of range", code="n = rows[1]") is None


@pytest.mark.parametrize(
    ("code", "awaits"),
    [
        ("asyncio.run(answer())", "`await answer()`"),
        ("x = loop.run_until_complete(answer(1, k=2))", "`await answer(1, k=2)`"),
        ("with asyncio.Runner() as r: print(r.run(answer()))", "`await answer()`"),
        ("for x in asyncio.run(answers()):", "`await answers()`"),
        ("anyio.run(answer, 1)", "`await answer(1)`"),
        ("anyio.run(answer)", "`await answer()`"),
        ("asyncio.run(", "`await` and the coroutine"),
        ("main()", "`await` and the coroutine"),
        ("run(" * 3000, "`await` and the coroutine"),
    ],
)
def test_await_hint_uses_the_users_call(code: str, awaits: str) -> None:
    """The hint contains the line that replaces the call."""
    assert awaits in (find_hint("RuntimeError", "This event loop is already running", code=code) or "")
