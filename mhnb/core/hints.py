"""What to do about errors that everyone meets in multi-process JAX, found by their text.

It decides from the exception's name and words alone; it refuses to guess where the words are anyone's
(`AssertionError` without text, `list index out of range`): a wrong hint is worse than none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["find_hint"]


@dataclass(frozen=True, slots=True)
class _Hint:
    pattern: str
    """Searched in the error's text. The texts are those of jax 0.10.2 and 0.12.0, and of users' reports."""
    cure: str
    ename: str = ""
    """A regular expression for the exception's whole name; empty for any."""


_HINTS = (
    # -- fetching, closing over, mixing
    _Hint(
        r"Fetching value for `?jax\.Array`? that spans non-addressable",
        "A rank holds only its own shards of a global array. `%mhjax pull x` brings it to the notebook; on the ranks "
        "use x.addressable_shards, or on all of them replicate it first: "
        "jax.device_put(x, NamedSharding(mesh, P())).",
    ),
    _Hint(
        r"Closing over jax\.Array that spans non-addressable"
        r"|Length of device assignment \d+ is not equal to the size of the mesh",
        "A global array cannot be captured by a compiled function: pass it as an argument.",
    ),
    _Hint(
        r"Received incompatible devices for jitted computation",
        "One argument lives on this rank's device alone, the other on the mesh: put both on the mesh, with "
        "jax.device_put(a, NamedSharding(mesh, P())) on every rank.",
    ),
    _Hint(
        r"Passing non-trivial shardings for numpy inputs is not allowed",
        "Put the NumPy array on the mesh first: jax.device_put(a, sharding) where all ranks hold the same, "
        "jax.make_array_from_process_local_data(sharding, part) where each holds its part.",
    ),
    _Hint(
        r"passed to device_put is not the same on each process",
        "device_put onto a global sharding needs the same value on every rank: use the same seed everywhere, or "
        "jax.make_array_from_process_local_data(sharding, part) for parts that differ.",
    ),
    _Hint(
        r"Array has been deleted",
        "It was donated to a compiled function (donate_argnums), which reused its memory: go on with its result.",
    ),
    # -- shardings
    _Hint(
        r"implies that array axis \d+ is partitioned \d+ times",
        "The mesh axis does not divide that dimension: pad the array, or shard another dimension.",
    ),
    _Hint(
        r"is only valid for values of rank at least \d+, but was applied to a value of rank",
        "The PartitionSpec names more dimensions than the array has: leave the last entries out.",
    ),
    _Hint(
        r"Contracting dimensions are sharded and it is ambiguous",
        "The summed dimension is sharded on both sides: say what comes out, "
        "jnp.matmul(a, b, out_sharding=P(...)); P() costs an all-reduce.",
        "ShardingTypeError",
    ),
    _Hint(
        r"produces an illegally sharded result|got incompatible shardings",
        "With Explicit axes both operands need layouts that agree: jax.sharding.reshard(b, a.sharding), or a mesh with "
        "axis_types=(AxisType.Auto, ...), where the compiler chooses.",
        "ShardingTypeError",
    ),
    _Hint(
        r"Use `\.at\[\.\.\.\]\.get\(out_sharding=\)`",
        "Indexing a sharded dimension needs the result's layout: x.at[i].get(out_sharding=P(...)). jax.make_mesh makes "
        "Explicit axes unless told otherwise.",
    ),
    _Hint(
        r"when you are not under a mesh context|Please set a mesh via `jax\.set_mesh`"
        r"|requires a non-empty mesh in context",
        "A bare PartitionSpec needs a mesh: jax.set_mesh(mesh) on every rank, or NamedSharding(mesh, spec).",
    ),
    _Hint(
        r"Resource axis: .* is not found in mesh",
        "The PartitionSpec names an axis that the mesh does not have: mesh.axis_names lists them.",
    ),
    _Hint(
        r"Found an unbound axis name",
        "Collectives such as psum know axis names only inside jax.shard_map over a mesh with that axis.",
    ),
    _Hint(
        r"`?visualize_sharding`? only works for shapes with 1 and 2 dimensions",
        "`%mhjax layout x` draws any number of dimensions.",
    ),
    # -- helpers of JAX
    _Hint(
        r"Gathering global non-fully-addressable arrays only supports tiled=True",
        "process_allgather(x, tiled=True).",
    ),
    _Hint(
        r"sync_global_devices name mismatch",
        "The ranks came to different sync points. Ranks that should wait for each other must give the same name.",
    ),
    # -- starting
    _Hint(
        r"jax\.distributed\.initialize\(\) must be called before any JAX",
        "mhnb has initialised it already, on every rank: leave the call out. For another shape: "
        "%mhjax restart, with the new -n and --devices.",
    ),
    _Hint(
        r"coordinator_address should be defined",
        "Under mhnb leave the call out; elsewhere give all three arguments.",
    ),
    _Hint(
        r"config should be updated before backends are initialized",
        "The devices are made when a rank starts: %mhjax start --devices N.",
    ),
    _Hint(
        r"DEADLINE_EXCEEDED.*RegisterTask|RegisterTask.*DEADLINE_EXCEEDED",
        "A rank did not reach the coordinator: a wrong address, a closed port, or a rank that never started. "
        "%mhjax doctor.",
    ),
    _Hint(
        r"Aborted connect attempt|newer incarnation",
        "Two processes came with the same process_id: each rank needs its own.",
    ),
    _Hint(
        r"Duplicate GPU detected",
        "Two ranks share a GPU: start one process per GPU.",
    ),
    # -- one rank without the others
    _Hint(
        r"Gloo context initialization failed|GetKeyValue\(\) timed out|may be stuck",
        "Not every rank came to this collective. x[0], x.sum() and float(...) of a global array are collectives too: "
        "compute on all ranks, print on one.",
    ),
    _Hint(
        r"Received data size doesn't match expected size",
        "The ranks met with arrays of different sizes, or in different collectives: pad to an agreed size.",
    ),
    _Hint(
        r"Gloo \S+ failed|Application timeout caused pair closure|Connection closed by peer",
        "A collective broke off because a rank did not come or is gone. The first rank to fail is the cause; "
        "then %mhjax restart.",
    ),
    _Hint(
        r"tasks are unhealthy|stopped sending heartbeats|Failed to send RPC to coordination service",
        "A rank died. The first to die is the cause: its signal and last lines tell more.",
    ),
    # -- names that are gone
    _Hint(
        r"module 'jax' has no attribute 'tree_(?:map|leaves|flatten|unflatten)'",
        "It moved: jax.tree.map and its like.",
    ),
    _Hint(r"'PositionalSharding'", "It is gone: jax.sharding.NamedSharding(mesh, PartitionSpec(...))."),
    _Hint(r"module 'jax\.sharding' has no attribute 'use_mesh'", "It became jax.set_mesh."),
    _Hint(
        r"device_put_sharded|device_put_replicated",
        "It is gone: jax.device_put(x, NamedSharding(mesh, spec)).",
        "AttributeError",
    ),
    _Hint(r"No module named 'jax\.experimental\.(?:maps|pjit)'", "xmap and pjit are gone: jax.shard_map and jax.jit."),
)

_COMPILED = tuple((re.compile(hint.pattern, re.DOTALL), re.compile(hint.ename), hint) for hint in _HINTS)


def find_hint(ename: str, evalue: str) -> str | None:
    """Find the cure for a known error; None for any other.

    >>> find_hint("RuntimeError", "Array has been deleted with shape=float32[8].").split(":")[1]
    ' go on with its result.'
    """
    for pattern, names, hint in _COMPILED:
        if pattern.search(evalue) and (not hint.ename or names.fullmatch(ename)):
            return hint.cure
    return None
