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

from mhnb.core.asked.shape import Shape
from mhnb.core.life.gathering import Gathering
from mhnb.core.life.machine import Machine
from mhnb.core.life.roster import Roster
from mhnb.drive.ctrlc import CtrlC
from mhnb.drive.roll import RankInfo, describe_place
from mhnb.errors import LaunchError
from mhnb.keep.berth import Berth, DriverLock
from mhnb.keep.journaling import ClusterJournal
from mhnb.launch.attached import AttachedHost, LeftHosts
from mhnb.launch.base import Host, RehearsedHost
from mhnb.launch.launchers import find_launcher, fit_spec
from mhnb.launch.local import LocalHost
from mhnb.launch.profile import find_profile
from mhnb.link.sockets import SocketLink
from mhnb.startup.looking import Rehearsing, make_look
from mhnb.startup.options import Place, StartOptions, host_spec, hub_spec, local_spec
from mhnb.system.ports import find_free_port
from mhnb.system.processes import GONE
from mhnb.system.rundir import configure_hub, make_run_dir, remove_keys, write_owner

__all__ = [
    "Ground",
    "describe_ground",
    "end_hosts",
    "find_cause",
    "find_ground",
    "find_look_s",
    "find_settings",
    "make_ground",
    "make_machine",
    "open_ground",
    "open_left_link",
    "open_link",
]

_TAKE_OVER_S = 20.0
"""Seconds to wait for ranks that are taken over. A rank that runs a cell answers at its end; one that has not by then is left alone."""
_ENDING_AT_ONCE = 64


@dataclass(slots=True)
class Ground:
    """Resources of one generation of a cluster."""

    run_dir: Path
    key: bytes = field(repr=False)
    link: SocketLink
    machine: Machine
    journal: ClusterJournal
    hosts: list[Host]
    origin: int
    """Id of the process that started the cluster first; part of the names of its directory and its journal."""
    lock: DriverLock | None = None

    def launch(self, shape: Shape, options: StartOptions, cwd: str) -> None:
        """Start every supervisor, and add each to `hosts` at once, so that it can be ended if a later one fails.

        Raises:
            LaunchError: a supervisor could not be started.
        """
        place = Place(self.link.url, self.key, self.machine.generation, cwd, str(self.run_dir))
        launched = _launch_hosts(shape, options, place)
        while True:
            with CtrlC():
                # Ctrl-C takes effect between two hosts: otherwise a process that was just created would have no owner.
                host = next(launched, None)
                self.hosts += [] if host is None else [host]
            if host is None:
                return
            # Now: with `keep` the processes outlive a notebook that is killed during the start, and must be found.
            self.note_owner(shape, options, ())

    def note_owner(self, shape: Shape, options: StartOptions, ranks: Sequence[RankInfo]) -> None:
        """Record which processes run here, and where, so that a shell can list and stop them. `ranks` is empty until they report."""
        pids, where = [rank.pid for rank in ranks] or [None] * shape.process_count, describe_place(shape, ranks)
        write_owner(self.run_dir, options.name, self.hosts[0].pid, pids, keep=options.keep, place=where)

    def take_back(self) -> None:
        """End what was launched before the event loop has started; ranks of another notebook that were being taken over are left."""
        self.close()
        if not self.machine.roster.is_left:
            end_hosts(self.hosts, self.machine.roster)
            remove_keys(self.run_dir)

    def end(self) -> None:
        """Release everything, and remove the keys, because all processes have ended."""
        self.close()
        remove_keys(self.run_dir)

    def close(self) -> None:
        """Close the transport and the journal, and release the owner lock. The event loop closes the transport too, which is harmless."""
        self.link.close()
        self.journal.close()
        if self.lock is not None:
            self.lock.release()


def open_ground(
    shape: Shape,
    options: StartOptions,
    journal: ClusterJournal,
    berth: Berth | None,
    *,
    generation: int,
    now: float,
) -> Ground:
    """Create the resources of a new generation, or adopt those of a detached one."""
    if berth is not None:
        return find_ground(berth, journal, now=now)
    return make_ground(shape, options, journal, generation=generation, now=now)


def make_ground(shape: Shape, options: StartOptions, journal: ClusterJournal, *, generation: int, now: float) -> Ground:
    """Create the resources of a new generation: directory, key, open transport. Its hosts are not launched yet."""
    run_dir = make_run_dir(options.name, generation, environment=os.environ, profile=find_settings(shape))
    key = secrets.token_bytes(32)
    with ExitStack() as undone:
        link = open_link(shape, options, key, run_dir)
        undone.callback(link.close)
        machine = make_machine(shape, options, run_dir, generation=generation, now=now)
        lock = DriverLock(run_dir, options.name) if options.keep else None
        undone.pop_all()
    return Ground(run_dir, key, link, machine, journal, [], journal.origin, lock)


def find_ground(berth: Berth, journal: ClusterJournal, *, now: float) -> Ground:
    """Adopt the resources of a detached cluster; its ranks look for the transport at its previous address.

    Raises:
        NotDriver: another notebook owns the cluster.
    """
    with ExitStack() as undone:
        lock = DriverLock(berth.run_dir, berth.name)
        # After a failure the lock must be free for other notebooks, and for another try.
        undone.callback(lock.release)
        shape, options = berth.shape, replace(berth.options, start_timeout_s=_TAKE_OVER_S)
        machine = make_machine(shape, options, berth.run_dir, generation=berth.generation, now=now)
        machine.roster.leave_to_another(berth.full_name)
        machine.left_records = journal.read()[0]
        link = open_left_link(berth)
        undone.callback(link.close)
        hosts: list[Host] = [_find_left(number, pid, berth) for number, pid in berth.supervisors.items()]
        elsewhere = tuple(share.supervisor for share in shape.shares() if share.supervisor not in berth.supervisors)
        if elsewhere and not shape.is_local:
            hosts.append(LeftHosts(elsewhere))
        ground = Ground(berth.run_dir, berth.key, link, machine, journal, hosts, berth.origin, lock)
        # Now, because the ranks may run a cell of hours, which is awaited.
        ground.note_owner(shape, options, ())
        undone.pop_all()
    return ground


def open_left_link(berth: Berth) -> SocketLink:
    """Open the transport at the address where the detached ranks look for it.

    Raises:
        LaunchError: nothing can listen there now, for instance because another program has that address.
    """
    kind, _, place = berth.url.partition(":")
    if kind == "unix":
        return SocketLink(berth.key, path=Path(place))
    address, _, port = place.rpartition(":")
    try:
        return SocketLink(berth.key, address=address, port=int(port), encrypt=kind == "sealed")
    except OSError as error:
        raise LaunchError(
            f"cluster {berth.name!r} looks for its notebook at {place}, and nothing can listen there now: {error.strerror}\n"
            f"  this machine must have that address, and no other program the port (ss -ltnp 'sport = :{port}')"
        ) from error


def _find_left(number: int, pid: int, berth: Berth) -> AttachedHost:
    try:
        return AttachedHost(number, pid)
    except GONE as error:
        raise LaunchError(
            f"the supervisor of cluster {berth.name!r} (pid {pid}) has ended; mhnb stop {berth.full_name} ends the rest"
        ) from error


def describe_ground(ground: Ground, shape: Shape, options: StartOptions, started_in_s: float) -> Berth:
    """Return the record that another notebook needs to take the cluster over."""
    here = {k: host.pid for host in ground.hosts if not host.is_remote for k in host.supervisors}
    generation = ground.machine.generation
    return Berth(
        ground.run_dir, ground.key, ground.link.url, generation, ground.origin, shape, options, here, started_in_s
    )


def find_settings(shape: Shape) -> Path:
    """Return the directory with the settings of the hub and the engines."""
    return find_profile("local" if shape.profile == "split" else shape.profile)


def open_link(shape: Shape, options: StartOptions, key: bytes, run_dir: Path) -> SocketLink:
    """Open the transport where the hosts look for it: a socket file if all are on this machine, else an address that they reach.

    Raises:
        LaunchError: that address cannot be found, or is not this machine's.
    """
    if shape.is_local:
        return SocketLink(key, path=run_dir / "link")
    address = options.address or find_launcher(shape, options.reach).find_own_address()
    configure_hub(run_dir, address, encrypt=options.encrypt)
    return SocketLink(key, address=address, encrypt=options.encrypt)


def make_machine(shape: Shape, options: StartOptions, run_dir: Path, *, generation: int, now: float) -> Machine:
    """Create the state machine of a generation, with every rank on its host."""
    shares = shape.shares()
    held = [share for share in shares for _ in share.ranks]
    coordinator = shape.initialize.get("coordinator_address")
    several = None if shape.is_local else Gathering([s.supervisor for s in shares], len(shares), coordinator)
    roster = Roster(
        [share.host for share in held],
        [str(run_dir / "log" / f"rank{rank}.log") for rank in range(shape.process_count)],
        None if shape.is_local else [share.supervisor for share in held],
        several,
    )
    return Machine(roster, generation=generation, now=now, start_timeout_s=options.start_timeout_s)


def end_hosts(hosts: Sequence[Host], roster: Roster) -> None:
    """Wait until every supervisor and its ranks have ended, and end them by force if necessary.

    All at once, because those that cannot be reached take seconds each.
    """

    def end(host: Host) -> None:
        host.wait(tuple(pid for k in host.supervisors for pid in roster.pids_of(k)))

    if len(hosts) < 2 or not threading.main_thread().is_alive():
        # Python starts no new thread while it exits.
        for host in hosts:
            end(host)
        return
    try:
        with ThreadPoolExecutor(min(len(hosts), _ENDING_AT_ONCE), "mhnb-end") as pool:
            list(pool.map(end, hosts))
    except RuntimeError:
        # The system allows no further thread (ulimit -u). Ending a host that has ended does nothing.
        for host in hosts:
            end(host)


def _launch_hosts(shape: Shape, options: StartOptions, place: Place) -> Iterator[Host]:
    """Start every supervisor, and yield each as soon as it exists."""
    if shape.is_local:
        spec = local_spec(shape, options, place, os.environ, f"127.0.0.1:{find_free_port()}")
        yield LocalHost(spec, os.environ | spec.environment)
        return
    hub = hub_spec(shape, options, place, os.environ)
    yield LocalHost(hub, os.environ | hub.environment)
    shares = shape.shares()
    specs = [fit_spec(host_spec(shape, options, place, os.environ, s), shape, options.reach) for s in shares]
    launcher = find_launcher(shape, options.reach)
    if isinstance(launcher, Rehearsing):
        launcher.look = make_look(shape, options, place.address)
    yield from launcher.launch(specs, shares, os.environ, Path(place.run_dir))


def find_cause(hosts: Sequence[Host], error: BaseException) -> BaseException:
    """Return the error to raise for a failed start. A refusal by the in-allocation preflight explains more than a missing rank does."""
    refusals = [host.refusal for host in hosts if isinstance(host, RehearsedHost) and host.refusal is not None]
    return refusals[0] if refusals and isinstance(error, LaunchError) else error


def find_look_s(hosts: Sequence[Host], before_s: float | None) -> float | None:
    """Return how long the preflight took: the one in the allocation, else the one before the start; None if there was none."""
    return next((host.looked_in_s for host in hosts if isinstance(host, RehearsedHost)), before_s)
