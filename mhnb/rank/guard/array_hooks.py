"""Hooks in JAX that record arrays made from a process's own data."""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mhnb.adapters.jax_arrays import find_shard, host_copy
from mhnb.adapters.numpy_arrays import raw_bytes
from mhnb.rank.guard.hashing import ArrayBytes
from mhnb.rank.guard.host_data import HostDataRecorder
from mhnb.rank.guard.provenance import copy_provenance, is_tagged
from mhnb.rank.jax_private import (
    PMAP_MODULE,
    finish_effects,
    hook_array_constructors,
    list_arrays,
    select_dispatch,
    unwrap_array,
)

_HOST_VALUES = (np.ndarray, np.generic, bool, int, float, complex)

_MOST_FETCHED_NBYTES = 16 * 2**20
"""A larger array is not fetched from a device to be hashed; some pieces of it are, from its beginning to its end."""
_PIECES, _PIECE_NBYTES = 256, 4096

_Function = Callable[..., Any]


def install_array_hooks(recorder: HostDataRecorder) -> None:
    """Install the array hooks; call once, after checking that they fit."""
    hooks = _ArrayHooks(recorder)
    hook_array_constructors(
        shard_args=hooks.wrap_shard_args,
        batched_device_put=hooks.wrap_device_put,
        public={
            "make_array_from_single_device_arrays": hooks.wrap_single_device_arrays,
            "make_array_from_callback": hooks.wrap_from_callback,
        },
        result_handler=hooks.wrap_result_handler,
        reorder_shards=hooks.wrap_reorder_shards,
        rewrap=hooks.wrap_rewrap,
    )


class _ArrayHooks:
    def __init__(self, record: HostDataRecorder) -> None:
        self._recorder = record
        self._thread = threading.local()

    def wrap_shard_args(self, shard: _Function) -> _Function:
        """Wrap `shard_args`, which makes replicas of host values and local arrays."""

        @functools.wraps(shard)
        def shard_args(shardings: Any, layouts: Any, semantics: Any, args: Any, **more: Any) -> Any:
            __tracebackhide__ = True
            if not self._recorder.is_active or self._is_in_shard_args():
                return shard(shardings, layouts, semantics, args, **more)
            self._thread.inside = True
            try:
                made = shard(shardings, layouts, semantics, args, **more)
            finally:
                self._thread.inside = False
            # Usually every argument is a global array already, and stays the same object.
            if any(map(operator.is_not, args, made)):
                self._record_arguments(args, made)
            return made

        return shard_args

    def _record_arguments(self, args: Any, made: Any) -> None:
        for arg, out in zip(args, made, strict=True):
            if isinstance(arg, _HOST_VALUES):
                self._recorder.record_argument(out, arg, functools.partial(_slice_value, arg))
            elif out is not arg and isinstance(arg, jax.Array) and arg.is_fully_addressable:
                plain = unwrap_array(out)
                self._recorder.record_argument(plain, unwrap_array(arg), functools.partial(find_shard, plain))
            elif out is not arg and isinstance(arg, jax.Array) and not is_tagged(unwrap_array(out)):
                copy_provenance(unwrap_array(arg), unwrap_array(out))

    def _record_shards(self, array: Any) -> None:
        """Record an array by the shards that this rank holds."""
        plain = unwrap_array(array)
        self._recorder.record_array(plain, functools.partial(find_shard, plain))

    def wrap_device_put(self, put: _Function) -> _Function:
        """Wrap the copy to devices."""

        @functools.wraps(put)
        def batched_device_put(aval: Any, sharding: Any, xs: Any, devices: Any, *rest: Any, **more: Any) -> Any:
            __tracebackhide__ = True
            made = put(aval, sharding, xs, devices, *rest, **more)
            plain = unwrap_array(made)
            if sys._getframe(1).f_globals.get("__name__") == PMAP_MODULE:
                # Arguments of pmap that are not mapped are each process's own: nothing guarantees that they are equal.
                self._recorder.tag_pmap_argument(plain)
            elif not self._is_in_shard_args():
                self._recorder.record_array(plain, functools.partial(_find_copy, xs, devices))
                self._thread.recorded = plain
            return made

        return batched_device_put

    def wrap_result_handler(self, keep: _Function) -> _Function:
        """Wrap the construction of an array from a laid-out argument."""

        @functools.wraps(keep)
        def result_handler(deferred: Any, laid_out: Any) -> Any:
            __tracebackhide__ = True
            kept = keep(deferred, laid_out)
            self._recorder.record_kept(laid_out, unwrap_array(kept))
            return kept

        return result_handler

    def wrap_reorder_shards(self, turn: _Function) -> _Function:
        """Wrap the reordering of shards: the array's provenance stays the same."""

        # `functools.wraps` requires more of a function than this native one has.
        def reorder_shards(array: Any, *args: Any, **more: Any) -> Any:
            __tracebackhide__ = True
            turned = turn(array, *args, **more)
            copy_provenance(unwrap_array(array), unwrap_array(turned))
            return turned

        return reorder_shards

    def wrap_single_device_arrays(self, join: _Function) -> _Function:
        """Wrap the construction of one array from several."""

        @functools.wraps(join)
        def make_array_from_single_device_arrays(*args: Any, **more: Any) -> Any:
            __tracebackhide__ = True
            made = join(*args, **more)
            self._record_shards(made)
            return made

        return make_array_from_single_device_arrays

    def wrap_rewrap(self, rewrap: _Function) -> _Function:
        """Wrap the rewrapping of buffers under another sharding, which keeps their provenance."""

        # `functools.wraps` requires more of a function than this native one has.
        def rewrap_with_aval_and_sharding(array: Any, *args: Any, **more: Any) -> Any:
            __tracebackhide__ = True
            rewrapped = rewrap(array, *args, **more)
            if is_tagged(array):
                copy_provenance(array, rewrapped)
            elif self._recorder.tag_pmap_argument(rewrapped):
                # The same array rewrapped again has the same provenance.
                copy_provenance(rewrapped, array)
            return rewrapped

        return rewrap_with_aval_and_sharding

    def wrap_from_callback(self, call: _Function) -> _Function:
        """Wrap the construction of an array by a callback.

        Keys, and arrays with a memory layout of their own, do not go through the copy to devices.
        """

        @functools.wraps(call)
        def make_array_from_callback(*args: Any, **more: Any) -> Any:
            __tracebackhide__ = True
            self._thread.recorded = None
            try:
                made = call(*args, **more)
                if self._thread.recorded is not unwrap_array(made):
                    self._record_shards(made)
                return made
            finally:
                self._thread.recorded = None

        return make_array_from_callback

    def _is_in_shard_args(self) -> bool:
        return getattr(self._thread, "inside", False)


def _slice_value(value: Any, _device: Any, index: Any) -> Any:
    return value[index] if isinstance(value, np.ndarray) and value.ndim else value


def _find_copy(xs: Any, devices: Any, device: Any, _index: Any) -> Any:
    return xs[list(devices).index(device)]


def _read_value(value: Any, dtype: Any) -> ArrayBytes:
    if not isinstance(value, jax.Array):
        data = np.asarray(value)
    elif value.nbytes > _MOST_FETCHED_NBYTES and _is_in_device_memory(value):
        return ArrayBytes(raw_bytes(_fetch(_sample_pieces(value))), is_sampled=True)
    elif _is_in_device_memory(value):
        data = _fetch(value)
    else:
        data = host_copy(value)
    data = data if data.dtype == dtype else data.astype(dtype)
    return ArrayBytes(raw_bytes(data), data.dtype)


def _is_in_device_memory(value: jax.Array) -> bool:
    """Return whether an array must be fetched from a device's own memory."""
    (device,) = value.devices()
    return device.platform != "cpu" and value.sharding.memory_kind in (None, "device")


def _fetch(value: jax.Array) -> np.ndarray[Any, Any]:
    # If the user forbids copies from devices, this copy is not one of the program's.
    with jax.transfer_guard("allow"):
        return host_copy(value)


def _sample_pieces(value: jax.Array) -> jax.Array:
    """Cut pieces out of an array, on its device."""
    with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
        pieces: jax.Array = _cut_pieces(value)
        return pieces


@jax.jit
def _cut_pieces(value: jax.Array) -> jax.Array:
    length = max(1, _PIECE_NBYTES // value.dtype.itemsize)
    starts = np.linspace(0, value.size - length, _PIECES).astype(np.int64)
    return jax.vmap(lambda start: jax.lax.dynamic_slice(value.reshape(-1), (start,), (length,)))(starts)


class ProcessJax:
    """This process's JAX, as the record of launches needs it."""

    select_dispatch = staticmethod(select_dispatch)
    finish_effects = staticmethod(finish_effects)
    list_arrays = staticmethod(list_arrays)
    read_value = staticmethod(_read_value)
