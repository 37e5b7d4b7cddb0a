"""Start JAX in a rank: import, hooks, jax.distributed, devices, and a global sum whose value is known.

Every step is reported as a phase, so that a start that hangs or fails shows where.
"""

from __future__ import annotations

import functools
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from IPython.core.getipython import get_ipython

from mhnb.core.wire.hostspec import HostSpec
from mhnb.rank.cell.keyboard import refuse_jax_breakpoint
from mhnb.rank.guard.agreement import Agreement
from mhnb.rank.guard.launches import LaunchRecorder
from mhnb.rank.guard.localwork import LocalWork
from mhnb.rank.guard.remote_agreement import find_words, take_place
from mhnb.rank.knocking import await_listener
from mhnb.rank.severing import Severing
from mhnb.values import Phase

__all__ = ["Bootstrap", "Progress"]

_HEARTBEAT_S = 60
_LISTENER_S = 5.0
"""How long a rank looks for the coordinator before JAX does."""
_LOOPBACK = "127.0.0.1"
_SUMS = 3
"""Launches of the first sum, on each path that a launch can take."""
_STAYS = (
    "mhnb: jax.distributed.shutdown() has nothing to do: the ranks stay connected until the cluster ends (%mhjax stop)"
)


class Progress(Protocol):
    """Callback that records a phase."""

    def __call__(self, phase: Phase, **facts: Any) -> None:
        """Record that `phase` was reached."""


class Bootstrap:
    """Starts JAX in a rank, and keeps the facts that are known about it then."""

    def __init__(self, spec: HostSpec, rank: int, progress: Progress) -> None:
        self._spec, self._rank, self._progress = spec, rank, progress
        self.recorder = LaunchRecorder()
        self.severing = Severing(find_words(spec))
        self.guard: dict[str, Any] = {}
        self._left = 0
        self._awaits_init = not spec.init
        """Whether a cell has yet to initialise JAX."""

    def run(self) -> None:
        """Run every phase up to `checked`; without init, only up to `jax`."""
        import jax

        from mhnb.rank import jaxhooks, jaxseams

        if (table := take_place(self._spec, self._rank)) is not None:
            self.recorder.gate = Agreement(table)
            self.recorder.gate.signals.install()
        self.recorder.process_count = self._spec.process_count
        if self._spec.engine_only:
            self.guard = {"available": False, "reason": "ipyparallel's client drives the ranks"}
        else:
            status = jaxhooks.install(self.recorder)
            self.guard = {"available": status.available, "reason": status.reason}
            if status.available:
                from mhnb.rank.guard.array_hooks import install_array_hooks

                install_array_hooks(self.recorder)
                jaxhooks.watch_arguments()
            self.recorder.local = LocalWork(jaxseams.list_arrays)
            jaxseams.wrap_collectives(self.severing.watch)
        self._progress("jax", jax=jax.__version__)
        if "jax_check_proxy_envs" in jax.config.values:
            # It warns of every proxy variable, also of those that exempt loopback from the proxy.
            jax.config.update("jax_check_proxy_envs", False)
        jaxseams.allow_meshes_over_machines()
        # By itself gloo listens where this host's name resolves to. On a local cluster that may be nowhere, or the
        # network;
        # on several hosts it may be loopback, where the others would look for it on their own host.
        jaxseams.bind_gloo(self._spec.address or _LOOPBACK)
        if not self._spec.engine_only:
            refuse_jax_breakpoint(jax)
        jax.distributed.initialize = _keep_sigterm(jax.distributed.initialize)
        arguments = self._arguments(jax.distributed.initialize)
        if self._spec.init:
            _await_coordinator(arguments)
            jax.distributed.initialize(**arguments)
            self._progress("initialised")
            self._check_devices()
            self._check_sum()
        else:
            jaxseams.offer_cluster(arguments)
        jax.distributed.initialize = _forgiving_initialize(
            jax.distributed.initialize, arguments, jax.distributed.is_initialized
        )
        if self._spec.init:
            # Users who connect the ranks by hand also disconnect them by hand.
            jax.distributed.shutdown = _idle_shutdown(jax.distributed.shutdown, jax.distributed.is_initialized)

    def _arguments(self, initialize: Callable[..., None]) -> dict[str, Any]:
        address = self._spec.coordinator_address
        arguments: dict[str, Any] = {
            "coordinator_address": address,
            "num_processes": self._spec.process_count,
            "process_id": self._rank,
            # Otherwise JAX tries to detect a cluster whenever one of its four arguments is None.
            "cluster_detection_method": "deactivate",
            # Otherwise the coordinator, which asks for no password, listens on every interface.
            "coordinator_bind_address": address,
            "heartbeat_timeout_seconds": _HEARTBEAT_S,
        }
        arguments |= self._spec.initialize
        known = inspect.signature(initialize).parameters
        if unknown := sorted(set(arguments) - set(known)):
            raise TypeError(
                f"jax.distributed.initialize of this JAX takes no {', '.join(unknown)}; it takes {', '.join(known)}"
            )
        return arguments

    def _check_devices(self) -> None:
        import jax

        jax.devices()
        found, wanted = jax.local_device_count(), self._spec.devices
        if wanted is not None and found != wanted:
            raise RuntimeError(f"{wanted} devices were asked for, and this rank has {found}: {jax.local_devices()}")
        self._progress("devices")

    def _check_sum(self) -> None:
        """Check a sum of 0..N-1 over all N devices, one number on each: N (N - 1) / 2, or the collectives are broken."""
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        count = jax.device_count()
        mesh = Mesh(np.array(jax.devices()), ("all",))
        rows, whole = NamedSharding(mesh, PartitionSpec("all")), NamedSharding(mesh, PartitionSpec())
        numbers = np.arange(count, dtype=np.float32)
        spread = jax.make_array_from_callback((count,), rows, lambda i: numbers[i])
        add = jax.jit(lambda x, factor: factor * x.sum(), out_shardings=whole)
        right = count * (count - 1) / 2
        got, seen, sees_arguments = [], [], []
        for is_direct in (False, True):
            self.recorder.begin_cell(guard="parity")
            if self.recorder.choose_way is not None:
                self.recorder.choose_way("parity", is_direct=is_direct)
            # More than once: JAX's C++ dispatch, or our cache of signatures, would handle the second call.
            got += [float(add(spread, np.float32(1))) for _ in range(_SUMS)]
            self.recorder.wait()
            sees_arguments.append(self.recorder.made is not None and self.recorder.made.has_inputs())
            seen.append(sum(row[4] for row in self.recorder.end_cell()[0]))
        self.recorder.is_direct = False
        if self.recorder.choose_way is not None:
            self.recorder.choose_way("lockstep", is_direct=False)
        self._check_record(seen)
        if self.guard["available"] and self._spec.process_count > 1:
            unseen = [] if all(sees_arguments) else ["arguments of a launch"]
            self.guard["unseen"] = [*unseen, *self._list_unseen(numbers, rows)]
        if any(each != right for each in got):
            raise RuntimeError(
                f"a sum over all {count} devices gave {got[-1]:g}, and {right:g} is right: the collectives do not work"
            )
        self._progress("checked")

    def _list_unseen(self, numbers: Any, rows: Any) -> list[str]:
        """Return the functions whose arrays of host data the guard does not see with this JAX, though it should.

        `device_put` is not tried: JAX compares its argument on all ranks by a launch of its own. It takes the path of arguments.
        """
        import jax
        import numpy as np

        from mhnb.rank.guard.provenance import is_tagged

        made = self.recorder.made
        assert made is not None
        made.begin_cell(active=True, tags=True)
        shape = numbers.shape
        local = [numbers[index] for index in rows.addressable_devices_indices_map(shape).values()]
        pieces = [
            jax.device_put(numbers[index], device)
            for device, index in rows.addressable_devices_indices_map(shape).items()
        ]
        arrays = {
            "make_array_from_callback": jax.make_array_from_callback(shape, rows, lambda i: numbers[i]),
            "make_array_from_process_local_data": jax.make_array_from_process_local_data(
                rows, np.concatenate(local), shape
            ),
            "make_array_from_single_device_arrays": jax.make_array_from_single_device_arrays(shape, rows, pieces),
        }
        made.end_cell()
        made.begin_cell(active=False)
        return [name for name, array in arrays.items() if not is_tagged(array)]

    def _check_record(self, seen: Sequence[int]) -> None:
        """Trust the hooks only if they have seen every launch of the sum, on both paths."""
        if self.guard["available"] and self._spec.process_count > 1 and any(each != _SUMS for each in seen):
            told = " and ".join(map(str, seen))
            self.guard = {"available": False, "reason": f"of {_SUMS} launches each way the record has {told}"}

    def news(self) -> dict[str, Any]:
        """Return the facts that have changed since the last cell.

        These are all facts, once a cell has initialised JAX itself, and the number of launches that it abandoned.
        """
        left = self.recorder.left.count()
        changed = {} if left == self._left else {"left": left}
        self._left = left
        return changed if not self._awaits_init else changed | self._brought_up()

    def _brought_up(self) -> dict[str, Any]:
        import jax

        from mhnb.rank import jaxseams

        # Asking for devices earlier would initialise the backend, which waits for all ranks: the cell must do that.
        if not (jax.distributed.is_initialized() and jaxseams.backend_is_initialized()):
            return {}
        self._awaits_init = False
        return self.facts()

    def facts(self) -> dict[str, Any]:
        """Return the facts of this rank, as JAX itself reports them. Touches the backend only if it is initialised already."""
        import jax

        if not jax.distributed.is_initialized():
            return {
                "guard": self.guard,
                "process_index": None,
                "process_count": self._spec.process_count,
                "devices": [],
            }
        devices = [
            [device.process_index, ordinal, device.device_kind] for ordinal, device in enumerate(jax.local_devices())
        ]
        return {
            "guard": self.guard,
            "frees": self.severing.available,
            "left": self.recorder.left.count(),
            "process_index": jax.process_index(),
            "process_count": jax.process_count(),
            "devices": devices,
            "platform": jax.local_devices()[0].platform,
        }


def _keep_sigterm(original: Callable[..., None]) -> Callable[..., None]:
    """Restore the handler of SIGTERM after `initialize`, so that SIGTERM still ends the rank.

    JAX's preemption service takes the signal, and `reached_preemption_sync_point` needs that service. Without a SIGTERM that it
    sees, the service answers that no host is about to be preempted, which is so as far as ranks can know.
    """

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        before = signal.getsignal(signal.SIGTERM)
        try:
            original(*args, **kwargs)
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)

    return initialize


def _forgiving_initialize(
    original: Callable[..., None], in_force: dict[str, Any], is_initialized: Callable[[], bool]
) -> Callable[..., None]:
    """Make the first line of every guide work: without arguments, or with those in force, it returns with a note."""
    from mhnb.rank import jaxseams

    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError:
            bound = None
        if bound is None:
            # JAX reports it in its own words, and not as an error that was raised while another one was handled.
            return original(*args, **kwargs)
        given = {name: value for name, value in bound.items() if value is not None}
        if is_initialized() and all(in_force.get(name) == value for name, value in given.items()):
            print("mhnb: jax.distributed is initialised already, on every rank; nothing to do", file=sys.stderr)
            return None
        if not (is_initialized() or jaxseams.backend_is_initialized()):
            _await_coordinator(in_force | given)
        return original(*args, **kwargs)

    return initialize


def _idle_shutdown(original: Callable[..., None], is_initialized: Callable[[], bool]) -> Callable[..., None]:
    """Make the last line of every guide work: it returns with a note, once per cell, and the ranks stay connected.

    A forked child gets the same: its connection is its rank's, and JAX hangs when it closes that from the child.
    JAX's own shutdown, by `atexit`, does not use this name.
    """
    told_in: int | None = None

    @functools.wraps(original)
    def shutdown(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        nonlocal told_in
        if args or kwargs or not is_initialized():
            return original(*args, **kwargs)
        shell = get_ipython()
        cell = 0 if shell is None else shell.execution_count
        if told_in != cell:
            told_in = cell
            print(_STAYS, file=sys.stderr)
        return None

    return shutdown


def _await_coordinator(arguments: dict[str, Any]) -> None:
    if arguments["process_id"] != 0:
        await_listener(str(arguments["coordinator_address"]), _LISTENER_S)
