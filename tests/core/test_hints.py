"""Hints: each known text finds its cure, and no other text finds one."""

from __future__ import annotations

import pytest

from mhnb.core.hints import find_hint

KNOWN = [
    # Texts that jax 0.10.2 raised; tests/rank/test_jaxhooks.py provokes them again on the installed version.
    ("RuntimeError", "Fetching value for `jax.Array` that spans non-addressable (non process local)", "pull"),
    ("RuntimeError", "Closing over jax.Array that spans non-addressable (non process local)", "argument"),
    ("ValueError", "Length of device assignment 1 is not equal to the size of the mesh 4 of aval f32[8@x]", "argument"),
    ("RuntimeError", "jax.distributed.initialize() must be called before any JAX calls that might", "already"),
    ("ValueError", "coordinator_address should be defined.", "arguments"),
    ("JaxRuntimeError", "DEADLINE_EXCEEDED: Deadline Exceeded\nRPC: /CoordinationService/RegisterTask", "doctor"),
    ("JaxRuntimeError", "ALREADY_EXISTS: Aborted connect attempt as there is a newer incarnation", "process_id"),
    ("JaxRuntimeError", "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats)", "died"),
    ("JaxRuntimeError", "Gloo context initialization failed: DEADLINE_EXCEEDED: GetKeyValue() timed out", "all ranks"),
    ("JaxRuntimeError", "gloo::EnforceNotMet Received data size doesn't match expected size. Is there", "pad"),
    ("JaxRuntimeError", "UNKNOWN: Gloo all-reduce failed: Application timeout caused pair closure", "restart"),
    ("AssertionError", "<class 'numpy.ndarray'> passed to device_put is not the same on each process.", "seed"),
    ("ValueError", "Received incompatible devices for jitted computation. Got argument a", "mesh"),
    ("IndivisibleError", "implies that array axis 0 is partitioned 4 times, but the dimension size is 6", "pad"),
    ("ShardingTypeError", "Contracting dimensions are sharded and it is ambiguous how", "out_sharding"),
    ("ShardingTypeError", "inputs: f32[4,4@x], f32[4@x,4] produces an illegally sharded result", "reshard"),
    ("ShardingTypeError", "Use `.at[...].get(out_sharding=)` to provide output PartitionSpec", "get(out_sharding"),
    ("ValueError", "Please set a mesh via `jax.set_mesh` if a PartitionSpec is passed to device_put", "set_mesh"),
    ("ValueError", "Resource axis: z of P('z',) is not found in mesh: ('x',).", "axis_names"),
    ("NameError", "Found an unbound axis name: zz. To fix this, please call psum under `jax.shard_map`.", "shard_map"),
    ("ValueError", "Gathering global non-fully-addressable arrays only supports tiled=True", "tiled"),
    ("ValueError", "Passing non-trivial shardings for numpy inputs is not allowed. To fix", "device_put"),
    ("ValueError", "is only valid for values of rank at least 2, but was applied to a value of rank 1.", "last"),
    ("AttributeError", "module 'jax' has no attribute 'tree_map'", "jax.tree.map"),
    ("ImportError", "cannot import name 'PositionalSharding' from 'jax.sharding'", "NamedSharding"),
    ("AttributeError", "jax.device_put_sharded is deprecated; use jax.device_put instead.", "NamedSharding"),
    ("ValueError", "`visualize_sharding` only works for shapes with 1 and 2 dimensions.", "layout"),
    ("RuntimeError", "Array has been deleted with shape=float32[8].", "donated"),
    ("AssertionError", "sync_global_devices name mismatch ('a0'). Expected: [ 468 182]; got: 468.", "same name"),
    ("RuntimeError", "jax_num_cpu_devices config should be updated before backends are initialized", "--devices"),
    ("JaxRuntimeError", "INTERNAL: NCCL: Duplicate GPU detected : rank 1 and rank 0", "one process per GPU"),
]


@pytest.mark.parametrize(("ename", "evalue", "word"), KNOWN, ids=[evalue[:30] for _, evalue, _ in KNOWN])
def test_a_known_error_finds_its_cure(ename: str, evalue: str, word: str) -> None:
    """The text of a known error finds a hint, and it is the one for that error."""
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
        ("", ""),
    ],
)
def test_any_other_error_finds_none(ename: str, evalue: str) -> None:
    """An error whose words could be anyone's gets no hint."""
    assert find_hint(ename, evalue) is None


def test_hints_are_sentences() -> None:
    """A hint ends as a sentence does, and is one paragraph."""
    for ename, evalue, _ in KNOWN:
        hint = find_hint(ename, evalue) or ""
        assert hint.endswith(".")
        assert "\n" not in hint
