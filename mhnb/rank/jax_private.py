"""Hooks on private names of JAX. No other module knows such names.

Launches of programs of several ranks are agreed on, recorded, or left to JAX. This module decides which path a launch takes,
and what makes two compiled programs the same program. Other hooks concern how JAX finds its cluster, makes its collectives,
and makes arrays of host data.
The module does not guess: every private name is probed first, and if one does not fit, JAX is left as it was.

A launch takes one of two paths, by a state of JAX's configuration that is part of the key of its C++ caches:

- *Direct*, in cells under `--guard off` and `parity`: JAX's own C++ dispatch. Under parity the function that JAX calls after
  each launch from C++ records it.
- *Gated*, everywhere else: a program with a collective has no C++ fast path. Its call object is a hooked one, which agrees on
  the launch first. `jit`, ahead-of-time `compiled(x)`, `pmap`, eager operations and `device_put` all end there. A program
  without a collective keeps JAX's C++ dispatch; the function that JAX calls after it tags the outputs.

Without the C++ dispatch JAX works out a call's types again, about 7 us per leaf. So gated calls have a cache of their own in
front of that. Its key is the function, the static arguments, and a token for each leaf, which is stored in the leaf's tag.
Programs of one process are not touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import inspect
import itertools
import math
import os
import sys
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mhnb.core.error_site import REFUSED_MESH, RefusedMesh
from mhnb.core.guard.launches import LOCAL_PREFIX, has_collectives
from mhnb.core.guard.programs import CALLS
from mhnb.errors import OrderMismatch
from mhnb.rank.execution.callbacks import CallingProgram
from mhnb.rank.guard.callables import is_per_rank, returns_values
from mhnb.rank.guard.launch_recorder import Launch, LaunchRecorder
from mhnb.rank.guard.programs import (
    CompiledProgram,
    canonicalize_module,
    check_may_launch,
    find_meshes,
    format_program_name,
    optimised_texts,
    ranks_of_devices,
)
from mhnb.rank.guard.provenance import (
    ATTRIBUTE,
    NOT_GUARDED,
    UNTAGGED,
    OutputProvenance,
    Producer,
    Tag,
    for_local,
    read_tags,
    tag_empty,
    tag_outputs,
)
from mhnb.sharding.hlo_collectives import may_communicate
from mhnb.sharding.hlo_text import strip_metadata
from mhnb.sharding.mesh import slice_order, split_over_slices
from mhnb.sharding.shardy import find_donated, find_passthrough_outputs, omit_replicated_arguments

_Follow: TypeAlias = Callable[[Sequence[Any]], None]
_Wrapper: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

ARRAY_CLASSES = (
    ("jaxlib._jax", "ArrayImpl"),
    ("jax._src.prng", "PRNGKeyArray"),
    ("jax._src.random.prng", "PRNGKeyArray"),
)
"""Classes of arrays and of key arrays, in the known JAX versions. jax.Array is not listed: IPython prefers the `__repr__` of
a class to a printer that is registered for its bases. Classes are given by name, so that nothing private is imported and a
removed class is not an error: its arrays are then shown as JAX shows them.
"""
PMAP_MODULE = "jax._src.pmap"
"""The module that lays out pmap's arguments. Under another name, they would be compared as those of any other launch are."""


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
    """Make gloo listen on, and announce, an address of this host.

    By default it uses what the host's own name resolves to.

    # since jax 0.10.2: make_cpu_client requests the collectives without a hostname, and gloo resolves the host's own name.
    """
    library: Any = importlib.import_module("jaxlib._jax")
    original = library.make_gloo_tcp_collectives
    library.make_gloo_tcp_collectives = functools.partial(original, hostname=address)


def allow_multi_machine_meshes() -> None:
    """Let `jax.make_mesh` span CPU devices of several machines, which JAX refuses.

    Every other call, and every other refusal, stays JAX's own. So does `slice_index`, which distinguishes machines in hybrid meshes.
    A refusal of GPU or TPU slices carries the mesh, for its hint.

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
        except (ValueError, AssertionError) as error:
            # since jax 0.10: TPU slices, whose coordinates overlap, end in an assertion.
            if isinstance(error, ValueError) and "multi-slice" not in str(error):
                raise
            given = signature.bind(*args, **kwargs).arguments
            devices = jax.devices() if given.get("devices") is None else list(given["devices"])
            sizes = tuple(given[shape])
            # JAX's own mesh of one device has the names and types that JAX would give this one.
            make_small = functools.partial(original, **given | {shape: (1,) * len(sizes), "devices": devices[:1]})
            chosen = devices[: math.prod(sizes)]
            if isinstance(error, AssertionError) or {device.platform for device in devices} != {"cpu"}:
                with contextlib.suppress(ValueError, AssertionError, NotImplementedError):
                    vars(error)[REFUSED_MESH] = _describe_refused_mesh(sizes, make_small(), chosen)
                raise
        laid, small_mesh = mesh_utils.create_device_mesh(sizes, chosen), make_small()
        return jax.sharding.Mesh(laid, small_mesh.axis_names, axis_types=small_mesh.axis_types)

    jax.make_mesh = make_mesh


def _describe_refused_mesh(sizes: Sequence[int], small_mesh: Any, devices: Sequence[Any]) -> RefusedMesh | None:
    """Describe a mesh for its hint; None for unusual axes or devices.

    Raises:
        ValueError, AssertionError, NotImplementedError: a hybrid mesh is not possible either, as within one slice.
    """
    import jax
    from jax.experimental import mesh_utils

    names, everywhere = small_mesh.axis_names, list(jax.devices())
    if not {type(name) for name in names} <= {str} or not set(devices) <= set(everywhere):
        return None
    by_slice, all_slices = (Counter(device.slice_index for device in each) for each in (devices, everywhere))
    mesh = RefusedMesh(
        tuple(zip(names, sizes, strict=True)),
        tuple(each.name for each in small_mesh.axis_types),
        tuple(by_slice[at] for at in sorted(by_slice)),
        len(everywhere) if len(set(all_slices.values())) == 1 else 0,
        () if set(devices) == set(everywhere) else tuple(map(everywhere.index, devices)),
    )
    factors = split_over_slices(sizes, slice_order(names), len(by_slice))
    if factors is None or len(set(mesh.slices)) > 1:
        return mesh
    inside = [size // factor for size, factor in zip(sizes, factors, strict=True)]
    try:
        mesh_utils.create_hybrid_device_mesh(inside, factors, devices)
    except NotImplementedError:
        # A TPU's own axes do not fit.
        mesh_utils.create_hybrid_device_mesh(inside, factors, devices, allow_split_physical_axes=True)
        return mesh._replace(splits_physical_axes=True)
    return mesh


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
    """Wrap the functions that make arrays without a launch.

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
    """Wrap the function that makes CPU collectives, if JAX has one."""
    from jax._src import xla_bridge

    native: Any = getattr(xla_bridge, "_jax", None)
    make = getattr(native, "make_gloo_tcp_collectives", None)
    if make is not None:
        native.make_gloo_tcp_collectives = lambda *args, **kwargs: wrapper(lambda: make(*args, **kwargs))


def start_profiler(give_way: Callable[[], None]) -> tuple[Callable[[], bytes], Callable[[], None]]:
    """Start a profile that gives way when other code starts one.

    XLA has one profile at a time, and everything in JAX that starts one makes a session of this class.

    Args:
        give_way: called before other code starts a profile.

    Returns:
        The function that stops it and returns an XSpace; and the function after which `give_way` is not called any more.
        If another profile is under way, the first one raises.
    """
    import jax.profiler
    from jax._src.lib import _profiler

    options = jax.profiler.ProfileOptions()
    # Events of every Python call would slow the cell down, and hide the others.
    options.python_tracer_level = 0
    make: Any = _profiler.ProfilerSession
    session = make(options)

    @functools.wraps(make, updated=())
    def make_another(*args: Any, **kwargs: Any) -> Any:
        give_way()
        return make(*args, **kwargs)

    def restore() -> None:
        if _profiler.ProfilerSession is make_another:
            _profiler.ProfilerSession = make

    _profiler.ProfilerSession = make_another
    return session.stop, restore


def list_arrays() -> list[list[Any]]:
    """Return live arrays by platform, newest first; never initialise a backend."""
    if not backend_is_initialized():
        return []
    bridge: Any = sys.modules["jax._src.xla_bridge"]
    try:
        # Half the time of `jax.live_arrays`, as no list is copied; and that function knows one platform only.
        return [backend.live_arrays() for backend in bridge._backends.values()]
    except AttributeError:
        return [sys.modules["jax"].live_arrays()]


def backend_is_initialized() -> bool:
    """Return whether this process has a JAX backend, without initialising one."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())


def list_buffers(array: Any) -> list[tuple[Any, int | None, int]]:
    """Return device, address and bytes of an array's local buffers, without waiting.

    The address is None if the buffer is empty, or if its array is still computed, because on some platforms asking would wait.
    """
    try:
        # `addressable_shards` would keep a reference to each buffer in the user's array.
        parts = list(array._arrays)
    except AttributeError:
        parts = [shard.data for shard in array.addressable_shards]
    buffers = []
    for part in parts:
        (device,) = part.sharding.device_set
        nbytes = part.size * part.dtype.itemsize
        address = None
        with contextlib.suppress(RuntimeError):
            # It raises if what should have computed the array has failed.
            address = part.unsafe_buffer_pointer() if nbytes and part.is_ready() else None
        buffers.append((device, address, nbytes))
    return buffers


# -- hooks for the launches of multi-process programs


_IndexPairs = list[tuple[int, int]]
_MAX_CALLBACK_CHARS = 300
"""Most characters that a message shows of a program's callbacks."""


class _Current(threading.local):
    """State of one thread."""

    module: Any = None
    arguments: Any = MappingProxyType({})
    """Module and arguments of the compilation in progress."""
    launched: Launch | None = None
    """The launch in progress."""
    is_caching: bool = False
    """Whether the call in progress has a new signature."""
    inputs: Sequence[Any] = ()
    """The inputs of that call's launch."""
    laid_out_pairs: list[tuple[Any, Any]] | None = None
    """Arguments of a launch from C++, each with the array that it was laid out as."""
    uncached: tuple[Any, Any, Any] | None = None
    """A call that was not in the cache of signatures: its parameters, its key, and the table for that key."""


_current = _Current()


@dataclass(frozen=True, slots=True)
class HookStatus:
    """Whether launches are recorded; if not, the reason."""

    available: bool
    reason: str = ""


@dataclass(slots=True)
class _Program:
    """A compiled multi-process program."""

    fingerprint: str
    name: str
    participants: tuple[int, ...]
    compiled: CompiledProgram | None = None
    passed_through: tuple[tuple[int, int], ...] = ()
    """Each output that is an argument passed through, with the index of that argument."""
    donated: tuple[int, ...] | None = ()
    """Arguments that a launch donates; None if that is unknown."""
    empty: tuple[int, ...] = ()
    """Arguments without an element."""
    may_crash: bool = False
    """On CPU with several devices in a process, C++ ends the process if an argument was donated before."""
    callbacks: str = ""
    """Descriptions of the host callbacks that return values to it: its outputs may differ by rank. Empty without one."""
    is_per_rank: bool = False
    """Whether the user declared that those values belong to their rank."""
    producers: dict[int | None, Producer] = field(default_factory=dict)
    """The latest producer of its outputs, by line of the cell."""
    is_collective: bool = field(init=False)
    """Whether it communicates."""
    fingerprint_number: int = field(init=False)
    """Its fingerprint as a number."""

    def __post_init__(self) -> None:
        self.is_collective = has_collectives(self.fingerprint)
        self.fingerprint_number = int(self.fingerprint.removeprefix(LOCAL_PREFIX), 16)

    @property
    def producer_name(self) -> str:
        """Its name as that of what made an array, with its callbacks."""
        return f"{self.name}{CALLS}{self.callbacks:.{_MAX_CALLBACK_CHARS}}" if self.callbacks else self.name

    @property
    def is_gated(self) -> bool:
        """Whether C++ must not launch it while the ranks agree on launches."""
        return self.is_collective or self.may_crash


_recorder: LaunchRecorder | None = None
_signature_cache: _SignatureCache
_EMPTY: Mapping[int, Any] = MappingProxyType({})


def install(recorder: LaunchRecorder) -> HookStatus:
    """Record every launch of a multi-process program in `recorder`.

    Must be called before user code: a program compiled ahead of time before that is not seen.
    Initialises no backend. Another call replaces the recorder.
    """
    global _recorder  # noqa: PLW0603 - JAX is hooked once in a process, and its hooks use one recorder
    if _recorder is None:
        try:
            reason = _probe()
        except Exception as error:  # noqa: BLE001 - private code may raise anything, which becomes the reason
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            return HookStatus(False, reason)
        _hook()
    _recorder = recorder
    return HookStatus(True)


def current_recorder() -> LaunchRecorder | None:
    """Return the recorder of launches; None if the hooks do not fit."""
    return _recorder


def read_name_and_devices(compiled: Any) -> tuple[str, list[Any]]:
    """Return name and device assignment of a result of `lower(...).compile()`."""
    unloaded = compiled._executable._unloaded_executable
    return unloaded.name, list(unloaded.device_list)


def finish_effects() -> None:
    """Wait for prints and callbacks from inside compiled programs, if any."""
    if _recorder is None:
        return
    import jax
    from jax._src import dispatch

    try:
        jax.effects_barrier()
    except Exception:
        # since jax 0.10.2: a failed effect is raised again at the end of every later cell; 0.12 forgets it by itself.
        dispatch.runtime_tokens.clear()
        raise


def _probe() -> str | None:
    """Return why the hooks do not fit this JAX, or None."""
    import jax
    from jax._src import array, dispatch
    from jax._src.interpreters import pxla

    missing = [*_missing_names(pxla), *_missing_path_names()]
    if not array.ArrayImpl.__dictoffset__:
        # The tag of an array is an attribute of it.
        missing.append("ArrayImpl.__dict__")
    if not hasattr(array.ArrayImpl, "_sharding"):
        missing.append("ArrayImpl._sharding")
    missing += missing_constructor_names()
    if not callable(getattr(dispatch.runtime_tokens, "clear", None)):
        missing.append("runtime_tokens.clear")
    if missing:
        return f"jax {jax.__version__} has no {', '.join(missing)}"
    return None


def _missing_path_names() -> list[str]:
    """Return the names that the launch paths need and JAX lacks."""
    from jax._src import api, config, core, dispatch, pjit, tree_util
    from jax._src.interpreters import pxla

    wanted: dict[str, tuple[Any, list[str] | None]] = {
        "_infer_params": (pjit, ["fun", "ji", "args", "kwargs"]),
        "_run_python_pjit": (pjit, ["p", "args_flat", "fun", "args", "kwargs"]),
        "_get_fastpath_data": (pjit, None),
        "get_ctx_mesh": (pjit, ["use_resource_env"]),
        "jit_evict_fn": (pjit, ["self"]),
        "cc_shard_arg": (pxla, ["x", "sharding", "layout"]),
        "_nan_check_posthook": (api, None),
        "trace_state_clean": (core, []),
        "needs_check_special": (dispatch, []),
    }
    missing = [name for name, (owner, _) in wanted.items() if not callable(getattr(owner, name, None))]
    missing += [
        f"{name}({', '.join(parameters)})"
        for name, (owner, parameters) in wanted.items()
        if name not in missing and parameters is not None and _parameters(getattr(owner, name)) != parameters
    ]
    if [*_parameters(pxla.MeshExecutable.create_cpp_call)] != ["self", "params"]:
        missing.append("MeshExecutable.create_cpp_call(params)")
    if "out_avals" not in getattr(pxla.MeshExecutableFastpathData, "_fields", ()):
        missing.append("MeshExecutableFastpathData.out_avals")
    if not hasattr(api._post_hook_state, "set_global"):
        missing.append("_post_hook_state.set_global")
    if not hasattr(config.debug_nans, "_add_hooks") or not hasattr(config, "config_ext"):
        missing.append("config._add_hooks")
    if not hasattr(tree_util, "tracing_registry"):
        missing.append("tree_util.tracing_registry")
    return missing


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _missing_names(pxla: Any) -> list[str]:
    unloaded = pxla.UnloadedMeshExecutable
    fields = {
        "UnloadedMeshExecutable": {field.name for field in dataclasses.fields(unloaded)},
        "MeshExecutable": set(pxla.MeshExecutable.__slots__),
        "ExecuteReplicated": set(pxla.ExecuteReplicated.__slots__),
    }
    missing = [
        f"{name}.{field}" for name, wanted in _FIELDS.items() for field in wanted.split() if field not in fields[name]
    ]
    parameters = list(inspect.signature(unloaded.from_hlo).parameters)
    if parameters[:2] != ["name", "hlo"] or not {"host_callbacks", "keepalive"} <= set(parameters):
        missing.append("UnloadedMeshExecutable.from_hlo(name, hlo, host_callbacks, keepalive)")
    if list(inspect.signature(unloaded.load).parameters) != ["self"]:
        missing.append("UnloadedMeshExecutable.load()")
    if not any("ExecuteReplicated" in name for name in missing):
        missing += _missing_launch_steps(pxla)
    if not isinstance(pxla.MeshExecutable.unsafe_call, property):
        missing.append("MeshExecutable.unsafe_call")
    return missing


_FIELDS = {
    "UnloadedMeshExecutable": "device_list input_avals input_shardings keepalive name ordered_effects output_avals "
    "output_shardings xla_executable",
    "MeshExecutable": "_unsafe_call build_unsafe_call",
    "ExecuteReplicated": "in_handler kept_var_idx mut ordered_effects out_handler xla_executable",
}
"""Attributes that mhnb reads and sets, by private class."""


class _ProbedExecutable:
    """Stands in for an executable and its parts, and records calls."""

    def __init__(self) -> None:
        self.inputs: list[object] = []
        self.handlers: list[object] = []
        self.outputs = [object()]

    def execute_sharded(self, inputs: Sequence[object]) -> _ProbedExecutable:
        self.inputs = list(inputs)
        return self

    def consume_with_handlers(self, handlers: Sequence[object]) -> list[object]:
        self.handlers = list(handlers)
        return self.outputs

    def pre_wrap(self, _check: object) -> _ProbedExecutable:
        """Called if JAX checks outputs for NaN."""
        return self


def _missing_launch_steps(pxla: Any) -> list[str]:
    """Launch through JAX's own call object; return steps that do not fit.

    What is launched only notes the calls. A program would need a backend, which must not be there before `jax.distributed` is
    initialised, and 33 ms of each rank's start, where this takes 0.1 ms. The sum that ends a start is a program: it counts only if
    the hooks have recorded each of its launches.
    """
    probed, argument = _ProbedExecutable(), object()
    call = pxla.ExecuteReplicated.__new__(pxla.ExecuteReplicated)
    for name in set(pxla.ExecuteReplicated.__slots__) - {"__weakref__"}:
        setattr(call, name, None)
    call.xla_executable, call.in_handler, call.kept_var_idx, call.ordered_effects = probed, list, {0}, []
    call.out_handler = types.SimpleNamespace(handlers=[probed])
    outputs = call(argument)
    steps = {
        "execute_sharded(inputs)": probed.inputs == [argument],
        "consume_with_handlers(handlers)": probed.handlers == [probed],
        "these outputs": list(outputs) == probed.outputs,
    }
    return [f"ExecuteReplicated that launches with {step}" for step, is_made in steps.items() if not is_made]


def _hook() -> None:
    import jax
    from jax._src import source_info_util, traceback_util
    from jax._src.interpreters import pxla

    unloaded: Any = pxla.UnloadedMeshExecutable
    unloaded.from_hlo = staticmethod(_hook_compile(unloaded.from_hlo))
    unloaded.load = _hook_load(unloaded.load, _make_hooked_call_class())
    _hook_dispatch()
    # This makes the class of jitted functions use our method that clears a cache.
    jax.jit(_hook)
    # Programs compiled so far are not hooked. Nothing is lost: each compiles again when it is next called.
    jax.clear_caches()
    # JAX then filters our frames from tracebacks as it does its own, and takes none of them for the line of a call.
    for module in (traceback_util, source_info_util):
        exclude = getattr(module, "register_exclusion", None)
        if exclude is not None:
            exclude(__file__)


def _hook_compile(from_hlo: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap compilation, to keep the lowered module until its executable is loaded."""

    @functools.wraps(from_hlo)
    def compile_recorded(name: str, hlo: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        # A compilation may begin another one.
        around = _current.module, _current.arguments
        _current.module, _current.arguments = hlo, kwargs
        is_shared = len({device.process_index for device in kwargs.get("device_list") or ()}) > 1
        if is_shared:
            _remove_identity_converts(hlo)
        if called := kwargs.get("host_callbacks"):
            watched = [_watch_callback(each, name, is_shared=is_shared) for each in called]
            kwargs = kwargs | {"host_callbacks": watched}
        try:
            return from_hlo(name, hlo, *args, **kwargs)
        finally:
            _current.module, _current.arguments = around

    return compile_recorded


def _remove_identity_converts(module: Any) -> None:
    """Remove conversions to the same type, which JAX writes for weak types.

    They do nothing, but without this a rank that passes 2.0 has another program than one that passes np.float32(2).
    """
    from jax._src.lib.mlir import ir  # type: ignore[attr-defined,unused-ignore]

    found: list[Any] = []

    def visit(operation: Any) -> Any:
        if operation.operation.name == "stablehlo.convert" and operation.operands[0].type == operation.results[0].type:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for operation in found:
        if not len(operation.attributes):
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()


def _watch_callback(callback: Any, program: str, *, is_shared: bool) -> Any:
    """Wrap a host callback, unless it is not a function (TPU)."""
    if _recorder is None or not isinstance(callback, types.FunctionType):
        return callback
    return _recorder.callbacks.wrap(callback, CallingProgram(program, is_shared))


def _hook_load(load: Callable[[Any], Any], recorded: type[Any]) -> Callable[[Any], Any]:
    """Wrap loading: a multi-process executable gets a `Recorded` call object.

    A rank without a device of the program has no part in it: no rank waits for this one, so it calls the program as JAX does.
    """
    import jax

    @functools.wraps(load)
    def load_recorded(unloaded: Any) -> Any:
        __tracebackhide__ = True
        executable = load(unloaded)
        _record_compilation(unloaded)
        participants = tuple(sorted({device.process_index for device in unloaded.device_list}))
        if len(participants) > 1 and jax.process_index() in participants:
            program = _describe(unloaded, participants)
            executable.build_unsafe_call = functools.partial(
                _build_hooked, executable.build_unsafe_call, program, recorded
            )
        return executable

    return load_recorded


def _record_compilation(unloaded: Any) -> None:
    if _recorder is not None:
        _recorder.flight.record("compilation", _recorder.seq, _recorder.find_line(), format_program_name(unloaded))


def _describe(unloaded: Any, participants: tuple[int, ...]) -> _Program:
    carried = _find_carried(unloaded)
    text, devices = _module_text(unloaded, is_loaded=carried is not None), list(unloaded.device_list)
    module = carried or _summarize(text)
    if carried is None and _current.module is not None:
        unloaded.keepalive = [*(unloaded.keepalive or ()), tuple(module)]
    ranks = ranks_of_devices(devices)
    compiled = CompiledProgram(unloaded.name, ranks, devices[0].platform, module.meshes, unloaded.xla_executable)
    fingerprint = _fingerprint(unloaded, module.digest)
    if _recorder is not None and not (carried and fingerprint in _described):
        _described.add(fingerprint)
        _recorder.describe_program(fingerprint, "\n".join([_device_text(unloaded), text, _option_text()]))
    # Tokens come before all others.
    avals = [None] * len(unloaded.ordered_effects) + [*unloaded.input_avals]
    empty = tuple(place for place, aval in enumerate(avals) if aval is not None and 0 in aval.shape)
    # since jaxlib 0.10.2: with one device in a process, and through Python, a donated argument is an error like any other.
    may_crash = devices[0].platform == "cpu" and len(devices) > len(participants)
    returning = [each for each in _current.arguments.get("host_callbacks") or () if returns_values(each)]
    described = text.splitlines()[-len(returning) :] if returning else ()
    return _Program(
        fingerprint,
        format_program_name(unloaded),
        participants,
        compiled,
        module.passed_through,
        module.donated,
        empty,
        may_crash,
        callbacks=", ".join(line.partition(": ")[2] for line in described),
        is_per_rank=any(map(is_per_rank, returning)),
    )


_described: set[str] = set()
"""Fingerprints of the programs whose text was published. That of a loaded executable is only XLA's, so it replaces none."""


class _Module(NamedTuple):
    """What mhnb reads from a lowered module.

    An executable carries it as a plain tuple among the objects that it keeps alive, which JAX serialises with it. So an executable
    that is loaded has the fingerprint of those that other ranks compile.
    """

    mark: str
    digest: str
    """Hash of its text and of the compiler options."""
    meshes: str
    passed_through: tuple[tuple[int, int], ...]
    donated: tuple[int, ...] | None


_CARRIED_MARK = "mhnb: the module of this executable"


def _find_carried(unloaded: Any) -> _Module | None:
    """Return a loaded executable's module, or None if it carries none."""
    found = (each for each in unloaded.keepalive or () if type(each) is tuple and each[:1] == (_CARRIED_MARK,))
    return next((_Module(*each) for each in found if len(each) == len(_Module._fields)), None)


def _summarize(text: str) -> _Module:
    compared = f"{omit_replicated_arguments(text)}\0{_option_text()}"
    digest = hashlib.blake2b(compared.encode(), digest_size=16).hexdigest()
    return _Module(_CARRIED_MARK, digest, find_meshes(text), find_passthrough_outputs(text), find_donated(text))


def _build_hooked(build: Callable[[], Any], program: _Program, recorded: Callable[[Any, _Program], Any]) -> Any:
    call = build()
    # Find which output goes into a mutable array, and which is an argument. Tokens come before all others.
    first = len(call.ordered_effects)
    places = enumerate(call.mut.out_mut if call.mut else ())
    written = [(output, first + place) for output, place in places if place is not None]
    passed = [(output - first, place) for output, place in program.passed_through if output >= first]
    call.xla_executable = _HookedExecutable(call.xla_executable, program, written, passed)
    return recorded(call, program)


def _make_hooked_call_class() -> type[Any]:
    """Create the call class, an `ExecuteReplicated` because C++ accepts nothing else."""
    from jax._src.interpreters import pxla

    class Recorded(pxla.ExecuteReplicated):  # type: ignore[misc,unused-ignore]
        """Agrees on each launch that is not direct."""

        __slots__ = ("program",)

        def __init__(self, call: Any, program: _Program) -> None:
            self.program = program
            for name in pxla.ExecuteReplicated.__slots__:
                if name != "__weakref__" and hasattr(call, name):
                    setattr(self, name, getattr(call, name))

        def __call__(self, *args: Any) -> Any:
            __tracebackhide__ = True
            return _launch_and_settle(super().__call__, *args)

        def launch_laid_out(self, inputs: Sequence[Any], signatures: Sequence[int | None]) -> Any:
            """Launch with arguments that are already laid out as the program requires."""
            __tracebackhide__ = True
            return _launch_and_settle(self._launch_laid_out, inputs, signatures)

        def _launch_laid_out(self, inputs: Sequence[Any], signatures: Sequence[int | None]) -> Any:
            __tracebackhide__ = True
            results = self.xla_executable.execute_sharded(inputs)
            return results.consume_with_handlers(self.out_handler.handlers, signatures=signatures)

    return Recorded


def _break_dispatch(error: BaseException) -> None:
    if _current.launched is not None:
        _current.launched.fail_dispatch(error)


def _launch_and_settle(launch: Callable[..., Any], *args: Any) -> Any:
    """Make a launch, then settle what had to wait for it."""
    __tracebackhide__ = True
    recorder = _recorder
    assert recorder is not None
    gate = recorder.gate
    # A signal handler or a finalizer may call a program in the middle of another launch, which that call must not
    # settle.
    nested = gate.is_in_launch()
    around, _current.launched = _current.launched, None
    has_failed = True
    try:
        results = launch(*args)
        has_failed = False
    except BaseException as error:
        _break_dispatch(error)
        raise
    finally:
        # Otherwise the arrays that it made would live until the next launch.
        _current.launched = around if nested else None
        if not nested:
            gate.deliver_deferred(has_failed=has_failed)
    return results


# -- the two launch paths


@dataclass(slots=True)
class _LaunchPath:
    """The path that launches take at present."""

    guard: str = "lockstep"
    is_direct: bool = False
    """Whether JAX's own C++ dispatch launches every program."""
    state: Any = None
    """JAX's configuration state for the path."""
    has_cpp_programs: bool = False
    """Whether C++ has received a program of several ranks: before that, nothing has to be done after a call."""

    @property
    def is_unguarded(self) -> bool:
        """Whether launches are not even recorded."""
        return self.is_direct and self.guard == "off"


_launch_path = _LaunchPath()
_jax: Any = types.SimpleNamespace(array_type=None)
"""Parts of JAX that each launch needs; set once JAX is hooked."""


@dataclass(slots=True)
class _CppProgram:
    """A program launched by C++, identified by its first output's sharding."""

    program: _Program
    compiled: Any
    """A weak reference to the `CompiledProgram`: an array must not keep its program alive."""
    constants: Sequence[Any]
    """Weak references to arrays that the program receives before its arguments."""
    kept_indices: tuple[int, ...] | None
    """Indices of the constants and arguments that the program takes; None for all."""
    avals: Sequence[Any]
    """Shape and type of each that it takes."""
    signatures: tuple[int | None, ...] | None = None
    """Tokens of the outputs, once there are outputs."""


_CPP_PROGRAM = "_mhnb_origin"
"""Attribute of a sharding: an `_CppProgram`."""


def select_dispatch(guard: str, *, is_direct: bool) -> bool:
    """Select the launch path of a cell: direct by JAX, or gated.

    Returns:
        Whether it does; False if the hooks do not fit, because then no launch is recorded either way.
    """
    if _recorder is None:
        return False
    _launch_path.guard, _launch_path.is_direct = guard, is_direct
    _recorder.defer_interrupts_in((_jax.after_call.__code__, _checked_after_call.__code__) if is_direct else ())
    # Entries of a failed call would stay.
    _current.laid_out_pairs = None
    # Only in the cell's own thread: launches of other threads are recorded first, as the cell may end while one is
    # stuck.
    _launch_path.state.set_local("direct" if is_direct else _jax.config.config_ext.unset)
    _set_after_call()
    return is_direct


def _hook_dispatch() -> None:
    global _signature_cache  # noqa: PLW0603 - as `_recorder`
    from jax._src import api, array, config, pjit, tree_util
    from jax._src.interpreters import pxla
    from jax._src.lib import jax_jit

    private: Any = pjit
    _jax.config, _jax.check_nan, _jax.post_hook = config, api._nan_check_posthook, api._post_hook_state
    _jax.array_type, _jax.tree_leaves = array.ArrayImpl, tree_util.tree_leaves
    _jax.parse_arguments, _jax.tracing_registry = jax_jit.parse_arguments, tree_util.tracing_registry
    _jax.after_call = _make_after_call()
    _launch_path.state = config.config_ext.Config("mhnb_way", None, include_in_jit_key=True)
    private._get_fastpath_data = _hook_fastpath(private._get_fastpath_data)
    _signature_cache = _SignatureCache(private._infer_params, private._run_python_pjit)
    private._infer_params, private._run_python_pjit = _signature_cache.infer, _signature_cache.run
    private.jit_evict_fn = _clear_with(private.jit_evict_fn, _signature_cache)
    executable: Any = pxla.MeshExecutable
    executable.create_cpp_call = _hook_cpp_call(executable.create_cpp_call)
    for state in (config.debug_nans, config.debug_infs):
        state._add_hooks(lambda _: _set_after_call(), lambda _: _set_after_call_here())
    # Code that ran here before has left a setting of this thread's own.
    _set_after_call_here()
    os.register_at_fork(after_in_child=_refuse_in_child)


def _refuse_in_child() -> None:
    """Refuse a forked child's launches, because it is not a rank."""
    select_dispatch(_launch_path.guard, is_direct=False)


def _hook_fastpath(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function that prepares C++ dispatch after a program's first call."""

    @functools.wraps(original)
    def get_fastpath_data(executable: Any, *args: Any, **kwargs: Any) -> Any:
        program = getattr(getattr(executable, "unsafe_call", None), "program", None)
        if program is None:
            return original(executable, *args, **kwargs)
        # Another thread may have begun this call while launches took another path, and C++ would keep it under that
        # path.
        if program.is_gated and not (_launch_path.is_direct and threading.current_thread() is threading.main_thread()):
            return None
        data = original(executable, *args, **kwargs)
        return data if data is None else _mark_first_output(data, program, executable.in_avals)

    return get_fastpath_data


def _mark_first_output(data: Any, program: _Program, avals: Sequence[Any]) -> Any:
    """Mark the first output's sharding to identify the program C++ launched."""
    if not data.out_shardings:
        return data
    first, *others = data.out_shardings
    marked = first.with_memory_kind(first.memory_kind)
    if not _launch_path.has_cpp_programs:
        _launch_path.has_cpp_programs = True
        _set_after_call()
    bits = list(data.kept_var_bitvec)
    kept = None if all(bits) else tuple(place for place, is_kept in enumerate(bits) if is_kept)
    compiled = weakref.ref(program.compiled) if program.compiled is not None else None
    constants = tuple(map(weakref.ref, data.const_args))
    light = dataclasses.replace(program, compiled=None)
    setattr(marked, _CPP_PROGRAM, _CppProgram(light, compiled, constants, kept, tuple(avals)))
    return data._replace(out_shardings=[marked, *others], kept_var_bitvec=bits)


def _hook_cpp_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the creation of C++ calls for programs compiled ahead of time."""
    from jax._src import stages

    @functools.wraps(original)
    def create_cpp_call(self: Any, params: Any) -> Any:
        direct = original(self, params)
        if direct is None or getattr(self.unsafe_call, "program", None) is None:
            return direct

        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            return (
                direct(*args, **kwargs)
                if _launch_path.is_unguarded
                else stages.Compiled.call(params, *args, **kwargs)[0]
            )

        return call

    return create_cpp_call


# -- after a call from C++


def _set_after_call() -> None:
    """Make JAX call this path's function after launches, beside its NaN check."""
    config = _jax.config
    checks = config._read("jax_debug_nans") or config._read("jax_debug_infs")
    ours = _jax.after_call if _launch_path.has_cpp_programs and not _launch_path.is_unguarded else None
    own = _jax.check_nan if checks else None
    _jax.post_hook.set_global(_checked_after_call if ours and own else ours or own)


def _set_after_call_here() -> None:
    """Do the same for this thread, which has its own NaN setting."""
    config = _jax.config
    checks = config.debug_nans.get_local() is True or config.debug_infs.get_local() is True
    _jax.post_hook.set_local(_checked_after_call if checks else config.config_ext.unset)


def _checked_after_call(function: Any, args: Any, kwargs: Any, out: Any) -> None:
    if not _launch_path.is_unguarded:
        _jax.after_call(function, args, kwargs, out)
    _jax.check_nan(function, args, kwargs, out)


def _make_after_call() -> Callable[[Any, Any, Any, Any], None]:
    array_type, tree_leaves = _jax.array_type, _jax.tree_leaves

    def after_call(function: Any, args: Any, kwargs: Any, out: Any) -> None:
        __tracebackhide__ = True
        try:
            handle(function, args, kwargs, out)
        finally:
            if _launch_path.is_direct and _recorder is not None:
                _recorder.gate.deliver_after_record()

    def handle(function: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Handle a launch by C++: tag its outputs, or record it."""
        __tracebackhide__ = True
        # Most calls are of programs of this process alone, and end at the first check.
        if type(out) is array_type:
            first, outputs = out, [out]
        else:
            outputs = tree_leaves(out)
            first = unwrap_array(outputs[0]) if outputs else None
            if type(first) is not array_type:
                # A tracer, or not an array at all.
                return
        origin: _CppProgram | None = getattr(first._sharding, _CPP_PROGRAM, None)
        if origin is not None and _recorder is not None:
            _handle_cpp_launch(origin, outputs, (function, args, kwargs))

    return after_call


def _handle_cpp_launch(cpp_program: _CppProgram, outputs: list[Any], call: tuple[Any, Any, Any]) -> None:
    laid_out, _current.laid_out_pairs = _current.laid_out_pairs, None
    # It ran, and no rank waits for it; but a request between cells must not receive its outputs.
    check_may_launch(cpp_program.program.name)
    if cpp_program.program.is_collective and not _launch_path.is_direct:
        # A thread of a cell under off or parity began it, and that cell ended meanwhile.
        return
    laid_out_by_id = {id(given): plain for given, plain in laid_out or ()}
    inputs = [laid_out_by_id.get(id(each), each) for each in _list_inputs(cpp_program, *call)]
    if _launch_path.is_direct or len(inputs) != 1 or not _tag_single(cpp_program, inputs[0], outputs):
        outputs = [unwrap_array(output) for output in outputs]
        if not _launch_path.is_direct:
            _tag_outputs(cpp_program, inputs, outputs)
            return
        if cpp_program.program.is_collective:
            _record_launch(cpp_program, inputs, outputs)
        _follow_boxes(inputs, outputs, cpp_program)


def _tag_single(cpp_program: _CppProgram, argument: Any, outputs: list[Any]) -> bool:
    """Tag a one-array program's outputs; return False if more is needed."""
    tag: Tag = getattr(argument, ATTRIBUTE, UNTAGGED)
    recorder, signatures, program = _recorder, cpp_program.signatures, cpp_program.program
    assert recorder is not None
    if tag[1] is None or signatures is None or program.passed_through or program.empty:
        return False
    if recorder.host_data.has_arrays_to_check():
        return False
    tag_outputs(outputs, _make_local_provenance(recorder, program, (tag,)), signatures=signatures)
    return True


def _follow_boxes(inputs: list[Any], outputs: list[Any], cpp_program: _CppProgram) -> None:
    assert _recorder is not None
    if not cpp_program.program.is_collective and (follow := _recorder.host_data.track_inputs(inputs)):
        follow(outputs)


def _list_inputs(cpp_program: _CppProgram, function: Any, args: Any, kwargs: Any) -> list[Any]:
    """List a C++ launch's inputs, in the order of its Python path."""
    if len(args) == 1 and type(args[0]) is _jax.array_type and not (kwargs or cpp_program.constants):
        return list(args) if cpp_program.kept_indices is None or cpp_program.kept_indices else []
    info = getattr(function, "_jit_info", None)
    if info is None or not (info.static_argnums or info.static_argnames):
        leaves = _jax.tree_leaves((args, kwargs or {}))
    else:
        names, values = tuple(kwargs or ()), tuple((kwargs or {}).values())
        _, leaves = _jax.parse_arguments(
            args, values, names, info.static_argnums, info.static_argnames, _jax.tracing_registry
        )
    inputs = [*(constant() for constant in cpp_program.constants), *leaves]
    if cpp_program.kept_indices is not None:
        inputs = [inputs[place] for place in cpp_program.kept_indices]
    return inputs


def _tag_outputs(cpp_program: _CppProgram, arguments: list[Any], outputs: list[Any]) -> None:
    assert _recorder is not None
    program, array_type = cpp_program.program, _jax.array_type
    inputs = [each if type(each) is array_type else unwrap_array(each) for each in arguments]
    tag_empty(inputs, program.empty)
    _recorder.host_data.hash_inputs(inputs, donated=None)
    tags = read_tags(inputs)
    if any(tag[1] is None for tag in tags):
        # Keys of this process alone: the program treats them as the same on every rank.
        tags = _recorder.host_data.tags_of(
            inputs, [getattr(each, "aval", a) for each, a in zip(inputs, cpp_program.avals, strict=True)]
        )
    provenance = _make_local_provenance(_recorder, program, tags)
    if cpp_program.signatures is None:
        cpp_program.signatures = tuple(map(_signature_cache.make_token, outputs))
    passed = {at: inputs[n] for at, n in program.passed_through} if program.passed_through else _EMPTY
    tag_outputs(outputs, provenance, passed_through=passed, signatures=cpp_program.signatures)
    _follow_boxes(inputs, outputs, cpp_program)


def _record_launch(cpp_program: _CppProgram, laid_out: list[Any], outputs: list[Any]) -> None:
    assert _recorder is not None
    program, line = cpp_program.program, _recorder.find_line()
    _recorder.host_data.record_inputs(program, line, laid_out, is_agreed=False)
    compiled = None if cpp_program.compiled is None else cpp_program.compiled()
    _recorder.record_launch(
        program.fingerprint, program.name, program.participants, line, outputs=outputs, program=compiled
    )


def hook_argument_layout() -> None:
    """Record how launches from C++ lay out their arguments.

    Must be called after everything else that lays out arrays is hooked.
    """
    from jax._src.interpreters import pxla

    private: Any = pxla
    original, caller_code = private.shard_args, pxla.cc_shard_arg.__code__

    @functools.wraps(original)
    def shard_args(shardings: Any, layouts: Any, semantics: Any, args: Any, **more: Any) -> Any:
        __tracebackhide__ = True
        made = original(shardings, layouts, semantics, args, **more)
        if sys._getframe(1).f_code is caller_code and made[0] is not args[0] and not _launch_path.is_unguarded:
            plain = unwrap_array(made[0])
            if not plain.sharding.is_fully_addressable:
                pairs = _current.laid_out_pairs = _current.laid_out_pairs or []
                pairs.append((args[0], plain))
        return made

    private.shard_args = shard_args


# -- the cache of signatures


@dataclass(frozen=True, slots=True)
class _CachedCall:
    """A call whose program is known from its signature."""

    call: Any
    """A `Recorded`."""
    constants: tuple[Any, ...]
    """Arrays that the program receives before its arguments."""
    kept_indices: tuple[int, ...] | None
    """Indices of the constants and arguments that it takes; None for all."""
    relaid: tuple[int, ...]
    """Those of them that are laid out again for each launch."""
    signatures: tuple[int | None, ...]
    """Tokens of the outputs; None for keys."""


class _SignatureCache:
    """Cache of gated calls, by function, static arguments and leaf types.

    JAX's own `_infer_params` works those out again at each call that does not come from C++.
    """

    def __init__(self, infer: Callable[..., Any], run: Callable[..., Any]) -> None:
        from jax._src import array, core, dispatch, pjit, tree_util, util
        from jax._src.lib import jax_jit

        self._tokens: dict[Any, int] = {}
        self._numbers = itertools.count(1)
        self._is_clean, self._checks = core.trace_state_clean, dispatch.needs_check_special
        self._parse, self._registry = jax_jit.parse_arguments, tree_util.tracing_registry
        self._find_mesh = pjit.get_ctx_mesh
        self._unflatten, self._array_type = tree_util.tree_unflatten, array.ArrayImpl
        # As weak on the function as JAX's own cache, and cleared with it: objects that a function holds are not kept
        # alive by it.
        self._table: Any = util.weakref_lru_cache(_make_table)
        self.infer, self.run = self._wrap_infer(infer), self._wrap_run(run)

        class KnownParams(pjit.PjitParams):  # type: ignore[misc,unused-ignore]
            known: _CachedCall

        self._params_class = KnownParams

    def clear(self) -> None:
        """Forget every call."""
        self._table.cache_clear()

    def _wrap_infer(self, infer: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(infer)
        def infer_params(fun: Any, ji: Any, args: Any, kwargs: Any) -> Any:
            __tracebackhide__ = True
            _current.uncached = None
            if _launch_path.is_direct or not self._is_clean() or ji.use_resource_env:
                return infer(fun, ji, args, kwargs)
            static, leaves = self._parse(
                args, tuple(kwargs.values()), tuple(kwargs), ji.static_argnums, ji.static_argnames, self._registry
            )
            signature = self._make_signature(leaves)
            if signature is None:
                return infer(fun, ji, args, kwargs)
            try:
                table = self._table(fun, ji)
            except TypeError:
                # A function that does not support weak references.
                return infer(fun, ji, args, kwargs)
            # The function and its options, which identify the table, do not include the mesh of `jax.set_mesh`.
            key = (static, signature, self._find_mesh(False))
            known = table.get(key)
            if known is not None:
                return known, leaves
            params, flat = infer(fun, ji, args, kwargs)
            _current.uncached = params, key, table
            return params, flat

        return infer_params

    def _wrap_run(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def run_python_pjit(p: Any, args_flat: Any, fun: Any, args: Any, kwargs: Any) -> Any:
            __tracebackhide__ = True
            known: _CachedCall | None = getattr(p, "known", None)
            if known is not None and not self._checks():
                given = [*known.constants, *args_flat]
                inputs = given if known.kept_indices is None else [given[place] for place in known.kept_indices]
                # XLA for CPU ends the process on a deleted array, and on other platforms refuses it after the ranks
                # have agreed.
                arrays = inputs if not known.relaid else [each for each in inputs if type(each) is self._array_type]
                if not any(map(self._array_type.is_deleted, arrays)):
                    return self._run_cached(p, args_flat, inputs)
            missed, _current.uncached = _current.uncached, None
            if missed is None or missed[0] is not p:
                return run(p, args_flat, fun, args, kwargs)
            _current.is_caching = True
            try:
                result = run(p, args_flat, fun, args, kwargs)
                self._add(p, missed, args_flat, result)
                return result
            finally:
                _current.is_caching, _current.inputs = False, ()

        return run_python_pjit

    def _make_signature(self, leaves: Sequence[Any]) -> tuple[int, ...] | None:
        signature: list[Any] = [getattr(leaf, ATTRIBUTE, UNTAGGED)[2] for leaf in leaves]
        for place, known in enumerate(signature):
            if known is None:
                token = signature[place] = self.make_token(leaves[place])
                if token is None:
                    return None
        return tuple(signature)

    def make_token(self, leaf: Any) -> int | None:
        """Return a token of a leaf's type and sharding; None if unknown."""
        kind = type(leaf)
        if kind in _PLAIN_NUMBERS:
            return self._intern(kind)
        if isinstance(leaf, np.ndarray | np.generic):
            return self._intern((kind, leaf.dtype, leaf.shape))
        sharding = getattr(leaf, "sharding", None)
        if sharding is None or not hasattr(leaf, "aval"):
            return None
        description = (kind, leaf.aval, sharding, getattr(leaf, "committed", None))
        if sharding.is_fully_addressable:
            # It is laid out again for each launch, whatever its memory layout.
            return self._intern(description)
        token = self._intern((*description, getattr(getattr(leaf, "format", None), "layout", None)))
        if unwrap_array(leaf) is leaf:
            value, producer, _ = getattr(leaf, ATTRIBUTE, UNTAGGED)
            setattr(leaf, ATTRIBUTE, (value, producer, token))
        return token

    def _intern(self, what: Any) -> int:
        return self._tokens.setdefault(what, next(self._numbers))

    def _add(self, params: Any, missed: tuple[Any, Any, Any], leaves: Sequence[Any], result: Any) -> None:
        """Add a plain call of a gated program to the cache."""
        _, flat, _, _, _, executable, profiler, constants = result
        call: Any = getattr(executable, "unsafe_call", None)
        inputs = _current.inputs
        program: _Program | None = getattr(call, "program", None)
        if program is None or not program.is_gated or profiler is not None or params.consts:
            return
        if call.ordered_effects or call.has_unordered_effects or call.has_host_callbacks or call.mut:
            return
        kept = sorted(call.kept_var_idx)
        if len(inputs) != len(kept):
            return
        given = [*constants, *leaves]
        taken = [given[place] for place in kept]
        relaid = tuple(at for at, (leaf, laid) in enumerate(zip(taken, inputs, strict=True)) if laid is not leaf)
        # A key has another token than the plain array behind it, and that array carries the tag.
        signatures = tuple(self.make_token(output) if unwrap_array(output) is output else None for output in flat)
        known = self._params_class(*params)
        all_kept = len(kept) == len(given)
        known.known = _CachedCall(call, tuple(constants), None if all_kept else tuple(kept), relaid, signatures)
        _, key, table = missed
        if len(table) >= _MAX_SIGNATURES:
            table.clear()
        table[key] = known

    def _run_cached(self, params: Any, leaves: Sequence[Any], inputs: list[Any]) -> Any:
        __tracebackhide__ = True
        known: _CachedCall = params.known
        call = known.call
        if known.relaid:
            _lay_out(call, known.relaid, inputs)
        outputs = call.launch_laid_out(inputs, known.signatures)
        out = self._unflatten(params.out_tree, outputs)
        return out, outputs, params.out_tree, leaves, params.params["jaxpr"], None, None, ()


def _make_table(_function: Any, _info: Any) -> dict[Any, Any]:
    """Create a function's table of JAX parameters with `_CachedCall`, by signature."""
    return {}


_MAX_SIGNATURES = 512
"""Most known calls of one function. If there are more, all are forgotten, because each keeps its program alive."""

_PLAIN_NUMBERS = (bool, int, float, complex)


def _lay_out(call: Any, places: Sequence[int], inputs: list[Any]) -> None:
    """Lay out some of a call's arguments as its program requires."""
    from jax._src.interpreters import pxla
    from jax._src.lib import xla_client  # type: ignore[attr-defined,unused-ignore]

    handler = call.in_handler
    laid_out = pxla.shard_args(
        [handler.in_shardings[place] for place in places],
        [handler.in_layouts[place] for place in places],
        [xla_client.ArrayCopySemantics.REUSE_INPUT] * len(places),
        [inputs[place] for place in places],
    )
    for place, each in zip(places, laid_out, strict=True):
        inputs[place] = each


def _clear_with(original: Callable[..., Any], signatures: _SignatureCache) -> Callable[..., Any]:
    """Wrap a jitted function's cache clearing, so that signatures are cleared too."""

    @functools.wraps(original)
    def clear_cache(self: Any) -> None:
        original(self)
        signatures.clear()

    return clear_cache


class _HookedExecutable:
    """Agrees on a launch and records it exactly when it is made.

    That is after the arguments were laid out, which may launch others.
    """

    __slots__ = ("_executable", "_passed_through", "_program", "_written")

    def __init__(self, executable: Any, program: _Program, written: _IndexPairs, passed: _IndexPairs) -> None:
        self._executable, self._program = executable, program
        self._written, self._passed_through = written, passed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)

    def execute_sharded(self, inputs: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        recorder, program = _recorder, self._program
        assert recorder is not None
        if _launch_path.is_unguarded:
            for _, place in self._written:
                # The tag of its earlier content is no longer valid.
                vars(inputs[place]).pop(ATTRIBUTE, None)
            return self._executable.execute_sharded(inputs, **kwargs)
        if _current.is_caching:
            _current.inputs = inputs
        if not program.is_collective:
            return self._launch_local(inputs, kwargs)
        check_may_launch(program.name)
        _check_not_donated_twice(program, inputs)
        lines, gate = recorder.find_lines(), recorder.gate
        line = lines[0] if lines else None
        nested = gate.is_in_launch()
        try:
            recorder.abandoned.check(program.name, program.participants)
            tag_empty(inputs, program.empty)
            recorder.host_data.hash_inputs(inputs, donated=program.donated)
            provenance = gate.acquire(program.fingerprint, program.name, program.participants, lines, inputs)
            return self._launch(inputs, kwargs, line, provenance)
        except OrderMismatch as error:
            if threading.current_thread() is threading.main_thread():
                recorder.mismatches.note_raised(error, program.name, line)
            else:
                # The gate has recorded its own refusals while the cell still waited for this thread; the first one
                # counts.
                gate.record_thread_failure(error)
            raise
        finally:
            if not nested:
                gate.release()

    def _launch(self, inputs: Any, kwargs: Any, line: int | None, provenance: OutputProvenance) -> _HookedResults:
        __tracebackhide__ = True
        recorder, program = _recorder, self._program
        assert recorder is not None
        participants, compiled = program.participants, program.compiled
        recorder.host_data.record_inputs(
            program, line, inputs, is_agreed=provenance.is_agreed, uncompared_mask=provenance.uncompared_mask
        )
        launched = recorder.record_launch(
            program.fingerprint, program.name, participants, line, outputs=None, program=compiled
        )
        launched.is_agreed = provenance.is_agreed
        _current.launched = launched
        try:
            results = self._executable.execute_sharded(inputs, **kwargs)
            follow = self._follow_callbacks(line, None) if program.callbacks else None
            return _HookedResults(results, self._make_tagger(inputs, provenance), launched, follow)
        except Exception:
            # The runtime refused it (for example, a deleted argument) before anything ran: it was not a launch.
            recorder.withdraw(launched)
            _current.launched = None
            raise

    def _launch_local(self, inputs: Any, kwargs: Any) -> _HookedResults:
        """Launch a program without a collective, and tag outputs by inputs."""
        __tracebackhide__ = True
        recorder, program = _recorder, self._program
        assert recorder is not None
        check_may_launch(program.name)
        _check_not_donated_twice(program, inputs)
        tag_empty(inputs, program.empty)
        recorder.host_data.hash_inputs(inputs, donated=None)
        provenance = _make_local_provenance(recorder, program, read_tags(inputs))
        results = self._executable.execute_sharded(inputs, **kwargs)
        follow = recorder.host_data.track_inputs(inputs)
        if program.callbacks:
            follow = self._follow_callbacks(recorder.find_line(), follow)
        return _HookedResults(results, self._make_tagger(inputs, provenance), None, follow)

    def _follow_callbacks(self, line: int | None, follow: _Follow | None) -> _Follow | None:
        """Return a function that compares outputs computed with host callbacks' values."""
        recorder, program = _recorder, self._program
        assert recorder is not None
        if program.is_per_rank:
            recorder.gate.record_per_rank(line)
            return follow
        passed = {place for place, _ in self._passed_through}

        def compare(outputs: Sequence[Any]) -> None:
            from mhnb.adapters.jax_arrays import find_shard

            if follow is not None:
                follow(outputs)
            computed = [output for place, output in enumerate(outputs) if place not in passed]
            recorder.host_data.record_outputs(computed, program.producer_name, line, find_shard)

        return compare

    def _make_tagger(self, inputs: Sequence[Any], provenance: OutputProvenance) -> Callable[..., None]:
        if not (self._written or self._passed_through):
            return functools.partial(tag_outputs, provenance=provenance)
        written, passed = ({at: inputs[n] for at, n in places} for places in (self._written, self._passed_through))
        return functools.partial(tag_outputs, provenance=provenance, written_arrays=written, passed_through=passed)


def _make_local_provenance(recorder: LaunchRecorder, program: _Program, tags: Sequence[Tag]) -> OutputProvenance:
    """Return the provenance of the outputs of a program without a collective."""
    if recorder.guard != "lockstep":
        return NOT_GUARDED
    seq, line = recorder.seq, recorder.find_line()
    producer = program.producers.get(line)
    if producer is None or producer.seq != seq:
        producer = program.producers[line] = Producer(program.producer_name, seq, line)
    return for_local(program.fingerprint_number, tags, producer)


def _check_not_donated_twice(program: _Program, inputs: Sequence[Any]) -> None:
    """Check that no donated array is passed twice: JAX ends in SIGSEGV.

    Raises:
        ValueError: an array is donated and passed a second time.
    """
    if not program.donated or len({*map(id, inputs)}) == len(inputs):
        return
    first = {id(inputs[place]): place for place in reversed(program.donated) if place < len(inputs)}
    for place, argument in enumerate(inputs):
        donated = first.get(id(argument), place)
        if donated != place:
            one, other = sorted((donated + 1, place + 1))
            raise ValueError(
                f"{program.name} was not launched: argument {donated + 1} is donated, and the same array is passed twice in this call\n"
                f"  It is argument {one} and argument {other}, counted over all leaves. A donated array can be passed only once.\n"
                "  Pass a copy of it (y.copy()) as the other argument, or do not donate it."
            )


class _HookedResults:
    """Passes a launch's arrays to its record when JAX makes them."""

    __slots__ = ("_follow", "_launched", "_results", "_tag")

    def __init__(
        self,
        results: Any,
        tag: Callable[..., None],
        launched: Launch | None,
        follow: _Follow | None = None,
    ) -> None:
        self._results, self._launched, self._tag, self._follow = results, launched, tag, follow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def consume_with_handlers(
        self, handlers: Sequence[Any], signatures: Sequence[int | None] = (), **kwargs: Any
    ) -> Any:
        __tracebackhide__ = True
        outputs = self._results.consume_with_handlers(handlers, **kwargs)
        # A program with ordered effects consumes its tokens first, with an incomplete list of handlers.
        if kwargs.get("strict", True):
            array_type = _jax.array_type
            plain = [output if type(output) is array_type else unwrap_array(output) for output in outputs]
            if self._launched is not None:
                self._launched.end_dispatch(plain)
            self._tag(plain, signatures=signatures or None)
            if self._follow is not None:
                self._follow(plain)
        return outputs


def unwrap_array(value: Any) -> Any:
    """Return the plain array behind one of an extended type, like keys.

    An extended type cannot report whether it is ready. Any other value is returned unchanged.
    """
    while not hasattr(value, "is_ready"):
        inner = getattr(value, "_base_array", None)
        inner = getattr(value, "_data", None) if inner is None else inner
        if inner is None or isinstance(value, np.ndarray | np.generic):
            return value
        value = inner
    return value


def _fingerprint(unloaded: Any, module_digest: str) -> str:
    """Return a hash of the module without locations, the devices and options.

    The module contains shardings, donations, and the identity of its host callbacks. If there is a module, neither XLA's
    optimised text nor `executable.fingerprint` would do: the text may differ per host, and the fingerprint changes with the line
    of the call.

    XLA chooses the sharding of an argument that has none, such as a NumPy array. If it replicates that, the program is the same as
    for a copy on every device. If it does not, the collectives may differ.
    """
    parts = [module_digest, _device_text(unloaded)]
    may_communicate = _may_communicate(unloaded.xla_executable)
    if may_communicate:
        parts += [str(getattr(each, "is_fully_replicated", None)) for each in unloaded.input_shardings]
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
    return digest if may_communicate else LOCAL_PREFIX + digest


def _device_text(unloaded: Any) -> str:
    devices, local = list(unloaded.device_list), list(unloaded.xla_executable.local_devices())
    text = f"devices {','.join(str(device.id) for device in devices)}"
    own = [device for device in devices if device in local]
    # An executable can be loaded for this rank's devices in another order than the one that it was compiled for.
    return text if own == local else f"{text}, own ones in order {[own.index(each) for each in local if each in own]}"


def _option_text() -> str:
    options = getattr(_current, "arguments", {}).get("compiler_options_kvs", ())
    return f"compiler options {sorted(map(str, options))}"


def _module_text(unloaded: Any, *, is_loaded: bool) -> str:
    module = None if is_loaded else getattr(_current, "module", None)
    if module is not None:
        text = str(module.operation.get_asm(enable_debug_info=False, assume_verified=True))
        given = getattr(_current, "arguments", {})
        return canonicalize_module(text, given.get("host_callbacks") or (), given.get("keepalive") or ())
    # An executable that was serialised comes without its module. Its name and types are not enough: a sum and a maximum
    # have the same. So XLA's optimised text is used, though that may differ between machines of different kinds.
    facts = (unloaded.name, unloaded.input_avals, unloaded.input_shardings, unloaded.output_avals)
    made = map(strip_metadata, optimised_texts(unloaded.xla_executable, with_constants=True) or ())
    head = "loaded executable" if is_loaded else "loaded executable, serialised without mhnb"
    return "\0".join([f"{head}: {(*facts, unloaded.output_shardings)!r}", *made])


def _may_communicate(xla_executable: Any) -> bool:
    # Only XLA knows: its partitioner inserts most collectives after lowering. Whether there are any does not depend
    # on the host, though the rest of this text may.
    texts = optimised_texts(xla_executable)
    return texts is None or any(map(may_communicate, texts))
