"""Private JAX hooks beside launches: how it finds its cluster, makes its collectives, and makes arrays of host data.

With `jaxhooks`, which sees the launches, the only module that knows private names of JAX.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = [
    "allow_multi_machine_meshes",
    "backend_is_initialized",
    "bind_gloo",
    "hook_array_constructors",
    "hook_collectives",
    "list_arrays",
    "missing_constructor_names",
    "register_cluster_env",
]

_Wrapper: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def register_cluster_env(arguments: Mapping[str, Any]) -> None:
    """Make `jax.distributed.initialize()` find its arguments by itself, as it does under Slurm.

    Args:
        arguments: coordinator_address, num_processes and process_id, as `initialize` itself takes them.
    """
    from jax._src.clusters import ClusterEnv

    class MhnbCluster(ClusterEnv):  # type: ignore[misc,unused-ignore]
        name = "mhnb"
        is_env_present = staticmethod(lambda: True)
        get_coordinator_address = staticmethod(lambda *_, **__: arguments["coordinator_address"])
        get_process_count = staticmethod(lambda: arguments["num_processes"])
        get_process_id = staticmethod(lambda: arguments["process_id"])
        get_local_process_id = staticmethod(lambda: None)

    # Ours comes first: otherwise JAX would detect a notebook inside a Slurm job as that job.
    kinds = ClusterEnv._cluster_types
    kinds.insert(0, kinds.pop(kinds.index(MhnbCluster)))


def bind_gloo(address: str) -> None:
    """Make gloo listen on an address of this host, and report it to the other ranks.

    By default it uses what the host's own name resolves to.

    # since jax 0.10.2: make_cpu_client requests the collectives without a hostname, and gloo resolves the host's own name.
    """
    library: Any = importlib.import_module("jaxlib._jax")
    original = library.make_gloo_tcp_collectives
    library.make_gloo_tcp_collectives = functools.partial(original, hostname=address)


def allow_multi_machine_meshes() -> None:
    """Make `jax.make_mesh` create a mesh over CPU devices of several machines, which JAX itself refuses.

    Every other call, and every other refusal, stays JAX's own. So does `slice_index`, which tells machines apart in hybrid meshes.

    # since jax 0.10: CPU devices have a slice_index for each boot id among the ranks, and make_mesh takes one slice only.
    # On CPU neither an argument of `initialize` nor the environment changes that index.
    """
    import jax
    from jax.experimental import mesh_utils

    original = jax.make_mesh
    signature = inspect.signature(original)
    # `axis_shapes` here, and under another name in other versions.
    shape = next(iter(signature.parameters))

    @functools.wraps(original)
    def make_mesh(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return original(*args, **kwargs)
        except ValueError as error:
            given = signature.bind(*args, **kwargs).arguments
            devices = jax.devices() if given.get("devices") is None else list(given["devices"])
            if "multi-slice" not in str(error) or {device.platform for device in devices} != {"cpu"}:
                raise
        sizes = tuple(given[shape])
        # JAX's own mesh of one device has the names and types that JAX would give this one.
        alike = original(**given | {shape: (1,) * len(sizes), "devices": devices[:1]})
        laid = mesh_utils.create_device_mesh(sizes, devices[: math.prod(sizes)])
        return jax.sharding.Mesh(laid, alike.axis_names, axis_types=alike.axis_types)

    jax.make_mesh = make_mesh


def missing_constructor_names() -> list[str]:
    """Return the names that `hook_array_constructors` needs and this JAX does not have."""
    from jax._src import array, dispatch
    from jax._src.interpreters import pxla

    wanted: dict[Any, tuple[str, ...]] = {
        pxla: ("shard_args", "batched_device_put"),
        dispatch: ("_DeferredShardArg",),
        getattr(dispatch, "xc", None): ("reorder_shards",),
        getattr(dispatch, "_DeferredShardArg", None): ("result_handler",),
        array.ArrayImpl: ("_rewrap_with_aval_and_sharding",),
    }
    return [name for module, names in wanted.items() for name in names if not callable(getattr(module, name, None))]


def hook_array_constructors(
    *,
    shard_args: _Wrapper,
    batched_device_put: _Wrapper,
    public: Mapping[str, _Wrapper],
    result_handler: _Wrapper,
    reorder_shards: _Wrapper,
    rewrap: _Wrapper,
) -> None:
    """Wrap the functions that make arrays of a process's own data, or of other arrays without a launch.

    Args:
        shard_args: wraps `shard_args(shardings, layouts, copy_semantics, args)`, which lays out arguments, of jit and device_put too.
        batched_device_put: wraps `batched_device_put(aval, sharding, xs, devices)`, in which `make_array_from_callback` mostly ends.
        public: wrappers of functions that users call, by name.
        result_handler: wraps the method by which `device_put` makes the user's array of what `shard_args` laid out.
        reorder_shards: wraps the function by which `device_put` lays the shards of an array out over its devices in another order.
        rewrap: wraps the method by which `pmap` makes a global array of a rank's own shards, and shards of a global one.
    """
    import jax
    from jax._src import array, dispatch
    from jax._src.interpreters import pxla

    private: Any = pxla
    private.shard_args, private.batched_device_put = (
        shard_args(private.shard_args),
        batched_device_put(private.batched_device_put),
    )
    deferred: Any = dispatch._DeferredShardArg
    deferred.result_handler = result_handler(deferred.result_handler)
    client: Any = vars(dispatch)["xc"]
    client.reorder_shards = reorder_shards(client.reorder_shards)
    implementation: Any = array.ArrayImpl
    implementation._rewrap_with_aval_and_sharding = rewrap(implementation._rewrap_with_aval_and_sharding)
    modules: tuple[Any, ...] = (array, jax)
    for name, wrap in public.items():
        wrapped = wrap(getattr(jax, name))
        for module in modules:
            setattr(module, name, wrapped)


def hook_collectives(wrapper: Callable[[Callable[[], Any]], Any]) -> None:
    """Call the function that makes the CPU's collectives through `wrapper`. If this JAX has none, nothing is called."""
    from jax._src import xla_bridge

    native: Any = getattr(xla_bridge, "_jax", None)
    make = getattr(native, "make_gloo_tcp_collectives", None)
    if make is not None:
        native.make_gloo_tcp_collectives = lambda *args, **kwargs: wrapper(lambda: make(*args, **kwargs))


def list_arrays() -> list[list[Any]]:
    """Return every living array of this process, one list per platform, the newest first. Initialises nothing."""
    if not backend_is_initialized():
        return []
    bridge: Any = sys.modules["jax._src.xla_bridge"]
    try:
        # Half the time of `jax.live_arrays`, as no list is copied; and that function knows one platform only.
        return [backend.live_arrays() for backend in bridge._backends.values()]
    except AttributeError:
        return [sys.modules["jax"].live_arrays()]


def backend_is_initialized() -> bool:
    """Return whether this process has a JAX backend. Imports nothing and initialises nothing."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())
