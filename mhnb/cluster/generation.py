"""Resources of one cluster generation: transport, state machine and supervisors."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from mhnb.cluster.attach import ClusterRecord, OwnerLock
from mhnb.cluster.interrupts import SigintHandler
from mhnb.cluster.journal import KERNEL
from mhnb.cluster.options import StartOptions, StartRequest
from mhnb.cluster.status import describe_location
from mhnb.core.addresses import Address, parse_address
from mhnb.core.cluster_spec import ClusterSpec, HostAssignment
from mhnb.core.launch.environment import NotebookEnvironment, rank_environment
from mhnb.core.messages import HostSpec
from mhnb.core.state.host_tracking import HOST_TIMEOUT_FACTOR, StartBarrier
from mhnb.core.state.machine import ClusterStateMachine
from mhnb.core.state.rank_registry import RankRegistry
from mhnb.errors import LaunchError
from mhnb.launchers.base import ADDRESS_FIX, Host
from mhnb.launchers.local import AdoptedHost, DetachedHosts, LocalHost
from mhnb.launchers.profiles import Profile
from mhnb.system.processes import PROCESS_ENDED
from mhnb.system.run_dir import configure_hub, find_cwd, make_run_dir, remove_keys, write_run_record
from mhnb.transport.addresses import find_free_port
from mhnb.transport.server import SocketServer
from mhnb.types import RankInfo

_TAKEOVER_TIMEOUT_S = 20.0
"""Seconds to wait for the ranks in an attach. A rank that runs a cell answers at its end; a later answer is not awaited."""
_MAX_PARALLEL_ENDS = 64


@dataclass(slots=True)
class Generation:
    """Resources of one generation of a cluster."""

    shape: ClusterSpec
    options: StartOptions
    run_dir: Path
    key: bytes = field(repr=False)
    transport: SocketServer
    state_machine: ClusterStateMachine
    hosts: list[Host] = field(default_factory=list)
    lock: OwnerLock | None = None

    def launch(self, profile: Profile) -> None:
        """Start every supervisor.

        Raises:
            LaunchError: a supervisor could not be started.
        """
        for _ in self.launch_hosts(profile):
            # Now: with `keep` the processes outlive a notebook that is killed during the start, and must be found.
            self.record_owner(())

    def launch_hosts(self, profile: Profile) -> Iterator[None]:
        """Start supervisors; add each to `hosts` at once, for cleanup, and yield.

        Raises:
            LaunchError: a supervisor could not be started.
        """
        launching = _launch_each(self, profile)
        while True:
            with SigintHandler():
                # Ctrl-C takes effect between two hosts: otherwise a process that was just created would have no owner.
                host = next(launching, None)
                self.hosts += [] if host is None else [host]
            if host is None:
                return
            yield

    def record_owner(self, ranks: Sequence[RankInfo]) -> None:
        """Record the processes for shells; `ranks` is empty until the ranks report."""
        pids, location = (
            [rank.pid for rank in ranks] or [None] * self.shape.process_count,
            describe_location(self.shape, ranks),
        )
        write_run_record(
            self.run_dir,
            self.options.name,
            self.hosts[0].pid,
            pids,
            is_detachable=self.options.keep,
            location=location,
        )

    def make_record(self, origin_pid: int, started_in_s: float) -> ClusterRecord:
        """Return the record that another notebook needs to take the cluster over."""
        local_pids = {k: host.pid for host in self.hosts if not host.is_remote for k in host.supervisors}
        return ClusterRecord(
            self.run_dir,
            self.key,
            self.transport.url,
            self.state_machine.generation,
            origin_pid,
            self.shape,
            self.options,
            local_pids,
            started_in_s,
        )

    def abort_start(self) -> None:
        """End what was launched before the event loop started, except adopted ranks."""
        self.close()
        if not self.state_machine.registry.is_takeover:
            end_hosts(self.hosts, self.state_machine.registry)
            remove_keys(self.run_dir)

    def close_and_remove_keys(self) -> None:
        """Release everything, and remove the keys, because all processes have ended."""
        self.close()
        remove_keys(self.run_dir)

    def close(self) -> None:
        """Close the transport, if still open, and release the owner lock."""
        self.transport.close()
        if self.lock is not None:
            self.lock.release()


def create_generation(request: StartRequest, *, generation: int, now: float) -> Generation:
    """Create the resources of a new generation, without launching its hosts."""
    shape, options = request.shape, request.options
    # With the settings of the hub and the engines.
    run_dir = make_run_dir(options.name, generation, environment=os.environ, profile=request.profile.folder)
    key = secrets.token_bytes(32)
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, run_dir, ignore_errors=True)
        transport = _open_transport(request, key, run_dir)
        cleanup.callback(transport.close)
        state_machine = _create_state_machine(shape, options, run_dir, generation=generation, now=now)
        lock = OwnerLock(run_dir, options.name) if options.keep else None
        cleanup.pop_all()
    return Generation(shape, options, run_dir, key, transport, state_machine, lock=lock)


def adopt_generation(record: ClusterRecord, *, now: float) -> Generation:
    """Adopt a detached cluster; open the transport where its ranks expect it.

    Raises:
        NotDriver: another notebook owns the cluster.
    """
    with ExitStack() as cleanup:
        lock = OwnerLock(record.run_dir, record.name)
        # After a failure the lock must be free for other notebooks, and for another try.
        cleanup.callback(lock.release)
        shape, options = record.shape, replace(record.options, start_timeout_s=_TAKEOVER_TIMEOUT_S)
        state_machine = _create_state_machine(shape, options, record.run_dir, generation=record.generation, now=now)
        state_machine.registry.mark_takeover(record.full_name)
        transport = open_detached_transport(record)
        cleanup.callback(transport.close)
        hosts: list[Host] = [_adopt_supervisor(number, pid, record) for number, pid in record.local_supervisors.items()]
        remote_supervisors = tuple(
            share.supervisor for share in shape.assign_hosts() if share.supervisor not in record.local_supervisors
        )
        if remote_supervisors and not shape.is_local:
            hosts.append(DetachedHosts(remote_supervisors))
        adopted = Generation(shape, record.options, record.run_dir, record.key, transport, state_machine, hosts, lock)
        # Now, because the ranks may run a cell of hours, which is awaited.
        adopted.record_owner(())
        cleanup.pop_all()
    return adopted


def open_detached_transport(record: ClusterRecord) -> SocketServer:
    """Open the transport at the address that the detached ranks expect.

    Raises:
        LaunchError: nothing can listen there now, for instance because another program has that address.
    """
    address = parse_address(record.url)
    if address.kind == "unix":
        return SocketServer(record.key, path=Path(address.path))
    try:
        return SocketServer(record.key, address=address.host, port=address.port, encrypt=address.kind == "sealed")
    except OSError as error:
        place = Address(address.host, address.port)
        raise LaunchError(
            f"cluster {record.name!r} expects its notebook at {place}, but mhnb cannot listen there: {error.strerror}\n"
            f"  Fix: give this machine that address and free the port; ss -ltnp 'sport = :{address.port}' shows what uses it"
        ) from error


def _adopt_supervisor(number: int, pid: int, record: ClusterRecord) -> AdoptedHost:
    try:
        return AdoptedHost(number, pid)
    except PROCESS_ENDED as error:
        raise LaunchError(
            f"the supervisor of cluster {record.name!r} (pid {pid}) has ended\n"
            f"  Fix: mhnb stop {record.full_name}, which ends what is left of it"
        ) from error


def _open_transport(request: StartRequest, key: bytes, run_dir: Path) -> SocketServer:
    """Open the transport: a socket file locally, else a reachable address.

    Raises:
        LaunchError: that address cannot be found, or is not this machine's.
    """
    shape, options = request.shape, request.options
    if shape.is_local:
        return SocketServer(key, path=run_dir / "link")
    launcher = request.profile.settings.create_launcher(shape)
    address = options.address or launcher.find_own_address()
    configure_hub(run_dir, address, encrypt=options.encrypt)
    try:
        return SocketServer(key, address=address, encrypt=options.encrypt)
    except OSError as error:
        # Python adds the address to the system's words.
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise LaunchError(f"mhnb cannot listen at {address} ({why}){ADDRESS_FIX}") from error


def _create_state_machine(
    shape: ClusterSpec, options: StartOptions, run_dir: Path, *, generation: int, now: float
) -> ClusterStateMachine:
    """Create a generation's state machine, with every rank on its host."""
    shares = shape.assign_hosts()
    share_by_rank = [share for share in shares for _ in share.ranks]
    coordinator = shape.initialize.get("coordinator_address")
    start_barrier = None if shape.is_local else StartBarrier([s.supervisor for s in shares], len(shares), coordinator)
    registry = RankRegistry(
        [share.host for share in share_by_rank],
        [str(run_dir / "log" / f"rank{rank}.log") for rank in range(shape.process_count)],
        None if shape.is_local else [share.supervisor for share in share_by_rank],
        start_barrier,
    )
    return ClusterStateMachine(
        registry,
        generation=generation,
        now=now,
        start_timeout_s=options.start_timeout_s,
        kernel=KERNEL,
        environment=NotebookEnvironment(os.environ, shape.is_local, shape.devices),
    )


def end_hosts(hosts: Sequence[Host], registry: RankRegistry) -> None:
    """Wait until all supervisors and ranks have ended, by force if necessary.

    All at once, because those that cannot be reached take seconds each.
    """

    def end(host: Host) -> None:
        host.wait(tuple(pid for k in host.supervisors for pid in registry.pids_of(k)))

    if len(hosts) < 2 or not threading.main_thread().is_alive():
        # Python starts no new thread while it exits.
        for host in hosts:
            end(host)
        return
    try:
        with ThreadPoolExecutor(min(len(hosts), _MAX_PARALLEL_ENDS), "mhnb-end") as pool:
            list(pool.map(end, hosts))
    except RuntimeError:
        # The system allows no further thread (ulimit -u). Ending a host that has ended does nothing.
        for host in hosts:
            end(host)


def _launch_each(resources: Generation, profile: Profile) -> Iterator[Host]:
    shape = resources.shape
    if shape.is_local:
        spec = local_spec(resources, f"127.0.0.1:{find_free_port()}")
        yield LocalHost(spec, os.environ | spec.environment)
        return
    hub = _hub_spec(resources)
    yield LocalHost(hub, os.environ | hub.environment)
    shares = shape.assign_hosts()
    specs = [profile.settings.apply_to(_host_spec(resources, share)) for share in shares]
    yield from profile.settings.create_launcher(shape).launch(specs, shares, os.environ, resources.run_dir)


# -- what each supervisor is to start


def _base_spec(resources: Generation) -> HostSpec:
    """Return the part of the spec that all supervisors share."""
    shape, options = resources.shape, resources.options
    initialize = dict(shape.initialize)
    for given in ("num_processes", "cluster_detection_method", "coordinator_address"):
        initialize.pop(given, None)
    return HostSpec(
        link_url=resources.transport.url,
        key=resources.key.hex(),
        supervisor=0,
        generation=resources.state_machine.generation,
        process_count=shape.process_count,
        ranks=list(range(shape.process_count)),
        devices=shape.devices,
        coordinator_address="",
        initialize=initialize,
        environment=rank_environment(os.environ, devices=shape.devices, simulated=shape.devices is not None),
        cwd=find_cwd(),
        run_dir=str(resources.run_dir),
        ranks_per_host=shape.ranks_per_host,
        init=shape.init,
        starts_hub=not options.connection,
        has_shared_board=not options.connection,
        engine_only=bool(options.connection),
        is_detachable=options.keep,
        fork=options.fork,
    )


def local_spec(resources: Generation, coordinator: str) -> HostSpec:
    """Return the spec for the only supervisor of a local cluster.

    Args:
        coordinator: `address:port` for JAX's coordinator, unless the user has named one.
    """
    shape = resources.shape
    return structs.replace(
        _base_spec(resources),
        coordinator_address=shape.initialize.get("coordinator_address") or coordinator,
        # One rank with all GPUs of a machine leaves nothing to share out.
        share_gpus=not shape.is_simulated and shape.process_count > 1,
        connection=resources.options.connection,
    )


def _host_spec(resources: Generation, share: HostAssignment) -> HostSpec:
    """Return one host's spec, whose ranks start once all hosts are up."""
    return structs.replace(
        _base_spec(resources),
        supervisor=share.supervisor,
        ranks=list(share.ranks),
        run_dir="",
        starts_hub=False,
        has_shared_board=False,
        staged_start=True,
        creates_cwd=bool(resources.options.sync),
        host_timeout_s=HOST_TIMEOUT_FACTOR * resources.options.host_timeout_s,
    )


def _hub_spec(resources: Generation) -> HostSpec:
    """Return the spec for the local supervisor that starts only the hub."""
    options = resources.options
    return structs.replace(
        _base_spec(resources),
        supervisor=len(resources.shape.assign_hosts()),
        ranks=[],
        has_shared_board=False,
        staged_start=True,
        connection=options.connection,
        # Without `keep` it is a child process of the notebook, and needs no clock to detect the notebook's end.
        host_timeout_s=HOST_TIMEOUT_FACTOR * options.host_timeout_s if options.keep else 0.0,
    )
