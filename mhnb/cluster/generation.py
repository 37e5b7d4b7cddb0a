"""Resources of one cluster generation: transport, state machine, and supervisor processes (one on this machine, or one per host)."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from mhnb.cluster.attach import ClusterRecord, OwnerLock
from mhnb.cluster.interrupts import SigintHandler
from mhnb.cluster.journal import KERNEL, ClusterJournal
from mhnb.cluster.options import GenerationLocation, StartOptions, host_spec, hub_spec, local_spec
from mhnb.cluster.status import describe_location
from mhnb.core.addresses import Address, parse_address
from mhnb.core.cluster_spec import ClusterSpec
from mhnb.core.state.host_tracking import StartBarrier
from mhnb.core.state.machine import ClusterStateMachine
from mhnb.core.state.rank_registry import RankRegistry
from mhnb.errors import LaunchError
from mhnb.launchers.base import ADDRESS_FIX, Host
from mhnb.launchers.local import AdoptedHost, DetachedHosts, LocalHost
from mhnb.launchers.profiles import Profile
from mhnb.system.processes import PROCESS_ENDED
from mhnb.system.run_dir import configure_hub, make_run_dir, remove_keys, write_run_record
from mhnb.transport.addresses import find_free_port
from mhnb.transport.server import SocketServer
from mhnb.types import RankInfo

_TAKEOVER_TIMEOUT_S = 20.0
"""Seconds to wait for the ranks in an attach. A rank that runs a cell answers at its end; a later answer is not awaited."""
_MAX_PARALLEL_ENDS = 64


@dataclass(slots=True)
class Generation:
    """Resources of one generation of a cluster."""

    run_dir: Path
    key: bytes = field(repr=False)
    transport: SocketServer
    state_machine: ClusterStateMachine
    journal: ClusterJournal
    hosts: list[Host]
    origin_pid: int
    """Id of the process that started the cluster first; part of the names of its directory and its journal."""
    lock: OwnerLock | None = None

    def launch(self, shape: ClusterSpec, options: StartOptions, profile: Profile, cwd: str) -> None:
        """Start every supervisor, and add each to `hosts` at once, so that it can be ended if a later one fails.

        Raises:
            LaunchError: a supervisor could not be started.
        """
        location = GenerationLocation(
            self.transport.url, self.key, self.state_machine.generation, cwd, str(self.run_dir)
        )
        for _ in launch_hosts(shape, options, profile, location, self.hosts):
            # Now: with `keep` the processes outlive a notebook that is killed during the start, and must be found.
            self.record_owner(shape, options, ())

    def record_owner(self, shape: ClusterSpec, options: StartOptions, ranks: Sequence[RankInfo]) -> None:
        """Record which processes run here, and where, so that a shell can list and stop them. `ranks` is empty until they report."""
        pids, where_text = [rank.pid for rank in ranks] or [None] * shape.process_count, describe_location(shape, ranks)
        write_run_record(
            self.run_dir, options.name, self.hosts[0].pid, pids, is_detachable=options.keep, location=where_text
        )

    def abort_start(self) -> None:
        """End what was launched before the event loop has started; the ranks of an attach that failed keep running."""
        self.close()
        if not self.state_machine.registry.is_takeover:
            end_hosts(self.hosts, self.state_machine.registry)
            remove_keys(self.run_dir)

    def close_and_remove_keys(self) -> None:
        """Release everything, and remove the keys, because all processes have ended."""
        self.close()
        remove_keys(self.run_dir)

    def close(self) -> None:
        """Close the transport and the journal, and release the owner lock. The event loop closes the transport too, which is harmless."""
        self.transport.close()
        self.journal.close()
        if self.lock is not None:
            self.lock.release()


def create_generation(
    shape: ClusterSpec, options: StartOptions, profile: Profile, journal: ClusterJournal, *, generation: int, now: float
) -> Generation:
    """Create the resources of a new generation: directory, key, open transport. Its hosts are not launched yet."""
    # With the settings of the hub and the engines.
    run_dir = make_run_dir(options.name, generation, environment=os.environ, profile=profile.folder)
    key = secrets.token_bytes(32)
    with ExitStack() as cleanup:
        transport = open_transport(shape, options, profile, key, run_dir)
        cleanup.callback(transport.close)
        state_machine = create_state_machine(shape, options, run_dir, generation=generation, now=now)
        state_machine.history = journal.records
        lock = OwnerLock(run_dir, options.name) if options.keep else None
        cleanup.pop_all()
    return Generation(run_dir, key, transport, state_machine, journal, [], journal.origin_pid, lock)


def adopt_generation(record: ClusterRecord, journal: ClusterJournal, *, now: float) -> Generation:
    """Adopt the resources of a detached cluster; its ranks look for the transport at its previous address.

    Raises:
        NotDriver: another notebook owns the cluster.
    """
    with ExitStack() as cleanup:
        lock = OwnerLock(record.run_dir, record.name)
        # After a failure the lock must be free for other notebooks, and for another try.
        cleanup.callback(lock.release)
        shape, options = record.shape, replace(record.options, start_timeout_s=_TAKEOVER_TIMEOUT_S)
        state_machine = create_state_machine(shape, options, record.run_dir, generation=record.generation, now=now)
        state_machine.registry.mark_takeover(record.full_name)
        journal.records += journal.read()[0]
        state_machine.history = journal.records
        transport = open_detached_transport(record)
        cleanup.callback(transport.close)
        hosts: list[Host] = [_adopt_supervisor(number, pid, record) for number, pid in record.local_supervisors.items()]
        remote_supervisors = tuple(
            share.supervisor for share in shape.assign_hosts() if share.supervisor not in record.local_supervisors
        )
        if remote_supervisors and not shape.is_local:
            hosts.append(DetachedHosts(remote_supervisors))
        adopted = Generation(
            record.run_dir, record.key, transport, state_machine, journal, hosts, record.origin_pid, lock
        )
        # Now, because the ranks may run a cell of hours, which is awaited.
        adopted.record_owner(shape, options, ())
        cleanup.pop_all()
    return adopted


def open_detached_transport(record: ClusterRecord) -> SocketServer:
    """Open the transport at the address where the detached ranks look for it.

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


def make_cluster_record(
    resources: Generation, shape: ClusterSpec, options: StartOptions, started_in_s: float
) -> ClusterRecord:
    """Return the record that another notebook needs to take the cluster over."""
    local_pids = {k: host.pid for host in resources.hosts if not host.is_remote for k in host.supervisors}
    generation = resources.state_machine.generation
    return ClusterRecord(
        resources.run_dir,
        resources.key,
        resources.transport.url,
        generation,
        resources.origin_pid,
        shape,
        options,
        local_pids,
        started_in_s,
    )


def open_transport(
    shape: ClusterSpec, options: StartOptions, profile: Profile, key: bytes, run_dir: Path
) -> SocketServer:
    """Open the transport where the hosts look for it: a socket file if all are on this machine, else an address that they reach.

    Raises:
        LaunchError: that address cannot be found, or is not this machine's.
    """
    if shape.is_local:
        return SocketServer(key, path=run_dir / "link")
    launcher = profile.settings.create_launcher(shape)
    address = options.address or launcher.find_own_address()
    configure_hub(run_dir, address, encrypt=options.encrypt)
    try:
        return SocketServer(key, address=address, encrypt=options.encrypt)
    except OSError as error:
        # Python adds the address to the system's words.
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise LaunchError(f"mhnb cannot listen at {address} ({why}){ADDRESS_FIX}") from error


def create_state_machine(
    shape: ClusterSpec, options: StartOptions, run_dir: Path, *, generation: int, now: float
) -> ClusterStateMachine:
    """Create the state machine of a generation, with every rank on its host."""
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
        registry, generation=generation, now=now, start_timeout_s=options.start_timeout_s, kernel=KERNEL
    )


def end_hosts(hosts: Sequence[Host], registry: RankRegistry) -> None:
    """Wait until every supervisor and its ranks have ended, and end them by force if necessary.

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


def launch_hosts(
    shape: ClusterSpec, options: StartOptions, profile: Profile, location: GenerationLocation, hosts: list[Host]
) -> Iterator[None]:
    """Start every supervisor, add each to `hosts` as soon as it exists, and yield after each.

    Raises:
        LaunchError: a supervisor could not be started.
    """
    launching = _launch_each(shape, options, profile, location)
    while True:
        with SigintHandler():
            # Ctrl-C takes effect between two hosts: otherwise a process that was just created would have no owner.
            host = next(launching, None)
            hosts += [] if host is None else [host]
        if host is None:
            return
        yield


def _launch_each(
    shape: ClusterSpec, options: StartOptions, profile: Profile, location: GenerationLocation
) -> Iterator[Host]:
    if shape.is_local:
        spec = local_spec(shape, options, location, os.environ, f"127.0.0.1:{find_free_port()}")
        yield LocalHost(spec, os.environ | spec.environment)
        return
    hub = hub_spec(shape, options, location, os.environ)
    yield LocalHost(hub, os.environ | hub.environment)
    shares = shape.assign_hosts()
    specs = [profile.settings.apply_to(host_spec(shape, options, location, os.environ, share)) for share in shares]
    launcher = profile.settings.create_launcher(shape)
    yield from launcher.launch(specs, shares, os.environ, Path(location.run_dir))
