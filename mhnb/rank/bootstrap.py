"""Start JAX in a rank, from its import to a first sum.

Every step is reported as a phase, so that a start that hangs or fails shows where.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from mhnb.core.arguments import format_unknown
from mhnb.core.cluster_spec import SET_BY_MHNB
from mhnb.core.launch.environment import LATE_VARIABLES, StartVariables
from mhnb.core.messages import HostSpec, Message, RunCell
from mhnb.errors import InvalidRequest
from mhnb.rank.execution.debugging import disable_jax_breakpoint
from mhnb.rank.execution.interrupts import InterruptDelivery
from mhnb.rank.flight import identify_clock, make_header
from mhnb.rank.guard.launch_recorder import LaunchRecorder
from mhnb.rank.guard.remote_agreement import connect_agreement, open_interrupt_flag
from mhnb.rank.network_abort import CollectiveSockets
from mhnb.system.flight import flight_path
from mhnb.transport.addresses import wait_for_port

_HEARTBEAT_S = 60
_LISTENER_WAIT_S = 5.0
"""How long a rank looks for the coordinator before JAX does."""
_LOOPBACK = "127.0.0.1"
_TAGGED, _UNRECORDED = RunCell(0, 0, "", "lockstep"), RunCell(0, 0, "", "off")
"""Stand for a cell in which new arrays get tags, and for one in which they are not recorded."""
_SUM_LAUNCHES = 3
"""Launches of the first sum, on each path that a launch can take."""
_SHUTDOWN_NOTE = (
    "mhnb: jax.distributed.shutdown() was ignored: the ranks stay connected until the cluster stops (%mhjax stop)"
)


class Bootstrap:
    """Starts JAX in a rank, and keeps the facts about it.

    Args:
        spec: the host and its cluster.
        rank: this rank.
        progress: records a phase, with facts by name.
        send: sends a message to the notebook.
    """

    def __init__(
        self, spec: HostSpec, rank: int, progress: Callable[..., None], send: Callable[[Message], None]
    ) -> None:
        self._spec, self._rank, self._progress = spec, rank, progress
        self.recorder: LaunchRecorder
        """Made by `run`, once JAX is imported."""
        requests = open_interrupt_flag(spec)
        self.collective_sockets = CollectiveSockets(requests)
        self.interrupts = InterruptDelivery(requests, rank=rank, send=send)
        self.guard: dict[str, Any] = {}
        self._flight_problem = ""
        """Why the rank has no flight recorder; empty if it has one."""
        self._abandoned_count = 0
        self._awaits_init = not spec.init
        """Whether a cell has yet to initialise JAX."""
        self._variables: StartVariables | None = None
        """What the environment was when JAX had started; None until then."""

    def run(self) -> None:
        """Run every phase up to `checked`; without init, only up to `jax`."""
        import jax

        from mhnb.rank import jax_private

        if self._spec.engine_only:
            self.recorder = LaunchRecorder()
            self.guard = {"available": False, "reason": "ipyparallel's client controls the ranks"}
        else:
            self._install_guard()
            jax_private.hook_collectives(self.collective_sockets.record_listeners)
        self._progress("jax", jax=jax.__version__)
        if "jax_check_proxy_envs" in jax.config.values:
            # It warns of every proxy variable, also of those that exempt loopback from the proxy.
            jax.config.update("jax_check_proxy_envs", False)
        jax_private.allow_multi_machine_meshes()
        # By itself gloo listens where this host's name resolves to. On a local cluster that may be nowhere, or the
        # network;
        # on several hosts it may be loopback, where the others would look for it on their own host.
        jax_private.bind_gloo(self._spec.address or _LOOPBACK)
        if not self._spec.engine_only:
            disable_jax_breakpoint(jax)
        jax.distributed.initialize = _restore_sigterm(jax.distributed.initialize)
        arguments = self._arguments(jax.distributed.initialize)
        if self._spec.init:
            _await_coordinator(arguments)
            jax.distributed.initialize(**arguments)
            self._progress("initialised")
            self._check_devices()
            self._check_sum()
            self._begin_variables()
        else:
            jax_private.register_cluster_env(arguments)
        jax.distributed.initialize = _idempotent_initialize(
            jax.distributed.initialize, arguments, jax.distributed.is_initialized
        )
        if self._spec.init:
            # Users who connect the ranks by hand also disconnect them by hand.
            jax.distributed.shutdown = _ignore_shutdown(jax.distributed.shutdown, jax.distributed.is_initialized)

    def _install_guard(self) -> None:
        """Record launches and arrays, and agree with other ranks, from now on."""
        from mhnb.rank import jax_private
        from mhnb.rank.guard.array_hooks import ProcessJax, install_array_hooks

        backend = connect_agreement(self._spec, self._rank)
        self._open_flight()
        self.recorder = LaunchRecorder(ProcessJax(), backend, self.interrupts, process_count=self._spec.process_count)
        self.recorder.gate.signals.install()
        status = jax_private.install(self.recorder)
        self.guard = {"available": status.available, "reason": status.reason}
        self.recorder.is_available = status.available
        if status.available:
            install_array_hooks(self.recorder.host_data)
            jax_private.hook_argument_layout()

    def _open_flight(self) -> None:
        """Record events if possible; otherwise the report says why not."""
        path = flight_path(Path(self._spec.run_dir), self._rank)
        try:
            self.interrupts.flight.open(path, make_header(self._rank, self._spec.generation, self._spec.process_count))
        except OSError as error:
            self._flight_problem = f"{path}: {error}"

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
        _check_names(arguments, inspect.signature(initialize).parameters)
        return arguments

    def _check_devices(self) -> None:
        import jax

        jax.devices()
        found, wanted = jax.local_device_count(), self._spec.devices
        if wanted is not None and found != wanted:
            raise RuntimeError(f"this rank has {found} devices, expected {wanted}: {jax.local_devices()}")
        self._progress("devices")

    def _check_sum(self) -> None:
        """Check that the sum of 0..N-1 over N devices is N(N-1)/2."""
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        count = jax.device_count()
        mesh = Mesh(np.array(jax.devices()), ("all",))
        rows, whole = NamedSharding(mesh, PartitionSpec("all")), NamedSharding(mesh, PartitionSpec())
        numbers = np.arange(count, dtype=np.float32)
        spread = jax.make_array_from_callback((count,), rows, lambda i: numbers[i])
        add = jax.jit(lambda x, factor: factor * x.sum(), out_shardings=whole)
        expected = count * (count - 1) / 2
        results, recorded_counts, records_arguments = [], [], []
        for is_direct in (False, True):
            self.recorder.begin_cell(RunCell(0, 0, "", "parity"))
            self.recorder.select_dispatch("parity", is_direct=is_direct)
            # More than once: JAX's C++ dispatch, or our cache of signatures, would handle the second call.
            results += [float(add(spread, np.float32(1))) for _ in range(_SUM_LAUNCHES)]
            self.recorder.wait_all()
            records_arguments.append(self.recorder.host_data.has_inputs())
            recorded_counts.append(sum(row.count for row in self.recorder.end_cell()[0]))
        self.recorder.select_dispatch("lockstep", is_direct=False)
        self._check_record(recorded_counts)
        if self.guard["available"] and self._spec.process_count > 1:
            unseen = [] if all(records_arguments) else ["arguments of a launch"]
            self.guard["unseen"] = [*unseen, *self._list_unseen(numbers, rows)]
        if any(each != expected for each in results):
            raise RuntimeError(
                f"self-test failed: the sum over {count} devices is {results[-1]:g}, expected {expected:g}."
                " Collectives do not work on this cluster"
            )
        self._progress("checked")

    def _list_unseen(self, numbers: Any, rows: Any) -> list[str]:
        """Return constructors whose arrays the guard fails to see with this JAX.

        `device_put` is not tried: JAX compares its argument on all ranks by a launch of its own. It takes the path of arguments.
        """
        import jax
        import numpy as np

        from mhnb.rank.guard.provenance import is_tagged

        host_data = self.recorder.host_data
        host_data.begin_cell(_TAGGED)
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
        host_data.end_cell()
        host_data.begin_cell(_UNRECORDED)
        return [name for name, array in arrays.items() if not is_tagged(array)]

    def _check_record(self, recorded_counts: Sequence[int]) -> None:
        """Trust the hooks only if they saw every test launch."""
        if (
            self.guard["available"]
            and self._spec.process_count > 1
            and any(each != _SUM_LAUNCHES for each in recorded_counts)
        ):
            counts = " and ".join(map(str, recorded_counts))
            self.guard = {"available": False, "reason": f"the guard recorded {counts} of {_SUM_LAUNCHES} test launches"}

    def changed_facts(self) -> dict[str, Any]:
        """Return the facts that have changed since the last cell.

        These are all facts, once a cell has initialised JAX itself, the number of launches that it abandoned, and the
        variables that it changed too late for JAX.
        """
        abandoned_count = self.recorder.abandoned.count_running()
        changed: dict[str, Any] = {} if abandoned_count == self._abandoned_count else {"left": abandoned_count}
        self._abandoned_count = abandoned_count
        if self._variables is not None:
            changed |= {LATE_VARIABLES: late} if (late := self._variables.take_changes()) else {}
        return changed if not self._awaits_init else changed | self._facts_after_init()

    def _facts_after_init(self) -> dict[str, Any]:
        if not _has_devices():
            return {}
        self._awaits_init = False
        self._begin_variables()
        return self.facts()

    def _begin_variables(self) -> None:
        self._variables = StartVariables(os.environ, devices=self._spec.devices)

    def facts(self) -> dict[str, Any]:
        """Return this rank's facts, fewer before JAX has its devices."""
        if not _has_devices():
            return {
                "guard": self.guard,
                "process_index": None,
                "process_count": self._spec.process_count,
                "devices": [],
            }
        import jax

        devices = [
            [device.process_index, ordinal, device.device_kind] for ordinal, device in enumerate(jax.local_devices())
        ]
        return {
            "guard": self.guard,
            "frees": self.collective_sockets.is_available,
            "left": self.recorder.abandoned.count_running(),
            "clock": identify_clock(),
            "flight": self._flight_problem,
            "process_index": jax.process_index(),
            "process_count": jax.process_count(),
            "devices": devices,
            "platform": jax.local_devices()[0].platform,
        }


def _check_names(given: Iterable[str], parameters: Iterable[str]) -> None:
    """Check that this rank's JAX has each argument of `initialize`.

    Raises:
        InvalidRequest: it has no such argument; the message names the closest one.
    """
    import jax

    known = [name for name in parameters if name not in SET_BY_MHNB]
    for name in given:
        if name not in (*known, *SET_BY_MHNB):
            raise InvalidRequest(
                f"jax.distributed.initialize of jax {jax.__version__}: {format_unknown('argument', name, known)}"
            )


def _has_devices() -> bool:
    """Return whether JAX has its devices.

    Asking for them earlier would initialise the backend, which waits for all ranks: a cell must do that.
    """
    import jax

    from mhnb.rank import jax_private

    return jax.distributed.is_initialized() and jax_private.backend_is_initialized()


def _restore_sigterm(original: Callable[..., None]) -> Callable[..., None]:
    """Restore SIGTERM's handler after `initialize`, so that it ends the rank.

    JAX's preemption service takes the signal, and `reached_preemption_sync_point` needs that service. Without a SIGTERM that it
    sees, the service answers that no host is about to be preempted. Ranks cannot know better.
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


def _idempotent_initialize(
    original: Callable[..., None], in_force: dict[str, Any], is_initialized: Callable[[], bool]
) -> Callable[..., None]:
    """Let a second `initialize` with the same count and id return.

    Most guides and scripts begin with this call. Their other arguments, such as the address, are for another cluster.
    """
    from mhnb.rank import jax_private

    signature = inspect.signature(original)
    connected = in_force

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        nonlocal connected
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError:
            bound = None
        if bound is None:
            # JAX reports it in its own words, and not as an error that was raised while another one was handled.
            return original(*args, **kwargs)
        given = {name: value for name, value in bound.items() if value is not None}
        if is_initialized():
            return _note_second_call(connected, given)
        if not jax_private.backend_is_initialized():
            _await_coordinator(in_force | given)
        original(*args, **kwargs)
        connected = in_force | given
        return None

    return initialize


def _note_second_call(in_force: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Print that a second `initialize` did nothing, and what it ignored.

    Raises:
        RuntimeError: the call has another number of processes, or the number of another rank.
    """
    __tracebackhide__ = True
    differing = [name for name, value in given.items() if in_force.get(name) != value]
    if wrong := [name for name in differing if name in SET_BY_MHNB]:
        current, called = (", ".join(f"{name}={values[name]!r}" for name in wrong) for values in (in_force, given))
        restart = f"\n  Or: %mhjax stop, then %mhjax start -n {given['num_processes']}"
        raise RuntimeError(
            f"jax.distributed is already initialised with {current}, and this call has {called}\n"
            f"  Fix: remove this call{restart if 'num_processes' in wrong else ''}"
        )
    ignored = ", ".join(f"{name}={given[name]!r}" for name in differing)
    print(
        f"mhnb: jax.distributed is already initialised on every rank; nothing to do{f'; ignored: {ignored}' if ignored else ''}",
        file=sys.stderr,
    )


def _ignore_shutdown(original: Callable[..., None], is_initialized: Callable[[], bool]) -> Callable[..., None]:
    """Replace `shutdown` by a note, so that the ranks stay connected.

    Most guides end with this call. It is noted once per cell.
    A forked child gets the same: its connection is its rank's, and JAX hangs when it closes that from the child.
    JAX's own shutdown, by `atexit`, does not use this name.
    """
    reported_cell: int | None = None

    @functools.wraps(original)
    def shutdown(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        nonlocal reported_cell
        if args or kwargs or not is_initialized():
            return original(*args, **kwargs)
        shell = get_ipython()
        cell = 0 if shell is None else shell.execution_count
        if reported_cell != cell:
            reported_cell = cell
            print(_SHUTDOWN_NOTE, file=sys.stderr)
        return None

    return shutdown


def _await_coordinator(arguments: dict[str, Any]) -> None:
    if arguments["process_id"] != 0:
        wait_for_port(str(arguments["coordinator_address"]), _LISTENER_WAIT_S)
