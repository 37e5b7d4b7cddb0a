"""Start a cluster or find a running one, attach, restart, and track the active cluster of this process."""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import psutil
from IPython.core.getipython import get_ipython

from mhnb.cluster import Cluster
from mhnb.core.asked.request import check_guard
from mhnb.core.asked.shape import Shape, check_initialize, check_shape
from mhnb.core.asked.startinput import check_start_input
from mhnb.core.explain.conditions import find_condition
from mhnb.core.keep.journal import StartRecord
from mhnb.core.keep.replay import plan_replay
from mhnb.core.preflight.report import PreflightReport
from mhnb.core.reach.environment import note_forced_devices
from mhnb.drive.finishing import await_ends
from mhnb.drive.roll import StartReport, report_look
from mhnb.errors import AlreadyStarted, ClusterError, InvalidRequest, LaunchError, NotStarted
from mhnb.keep.berth import DriverLock, choose_berth, find_berths, find_left, is_driven, list_berths, note_left
from mhnb.keep.journaling import draw_generation, note_generation
from mhnb.keep.replaying import check_replay
from mhnb.keep.replaying import replay as run_replay
from mhnb.launch.allocation import drop_handed, hand_over
from mhnb.launch.journaldir import prune_journals
from mhnb.launch.local import check_platform
from mhnb.startup.asking import check_alike, take_shape, usual_shape
from mhnb.startup.looking import look_before
from mhnb.startup.options import StartOptions, check_folder, take_options
from mhnb.startup.spares import keep_spare, take_over
from mhnb.supply.syncing import sync
from mhnb.system.ports import check_port_free
from mhnb.system.room import check_disk, check_limits, check_loopback, has_memory_limit
from mhnb.system.rundir import check_name, find_named, make_home, prune_run_dirs, usable_home

__all__ = [
    "FRESH",
    "all_clusters",
    "attach",
    "by_name",
    "can_come_back",
    "current",
    "find_running",
    "is_rank_shell",
    "latest",
    "restart",
    "restart_cluster",
    "start",
    "successor",
    "use",
]

_clusters: dict[str, Cluster] = {}
_in_use: list[str] = []
_turns: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
"""By name. If two threads start or restart one name at once, the second finds what the first has started."""

FRESH = "fresh processes: what the ranks held is gone with those before; before any other cell, %mhjax restart --replay brings it back"
"""Note for a start, or a restart without a replay, after which a replay would have something to do."""


def is_rank_shell(shell: Any) -> bool:
    """Whether an IPython shell belongs to a rank, where neither the magics nor another cluster may be used."""
    return type(shell).__module__.startswith("mhnb.rank.")


def current() -> Cluster:
    """Return the cluster that was started last and is not stopped.

    Raises:
        NotStarted: no cluster is running.
    """
    for name in reversed(_in_use):
        if (cluster := _clusters.get(name)) is not None and cluster.state != "stopped":
            return cluster
    yet = "no cluster of this notebook runs any more" if _clusters else "there is no cluster yet"
    back = "%mhjax restart --replay brings back what the last one held; " if _in_use and can_come_back(latest()) else ""
    raise NotStarted(
        f"{yet}; {back}{_say_kept()}%mhjax start (or mhnb.start()) starts 4 hosts x 2 devices on this machine"
    )


def _say_kept() -> str:
    """Describe how to take over a detached cluster; empty if there is none."""
    with suppress(LaunchError):
        if berths := [berth for berth in find_berths(os.environ) if not DriverLock.is_held(berth.run_dir)]:
            return f"%mhjax attach {berths[0].name} takes over the kept one that nobody drives; "
    return ""


def latest() -> Cluster:
    """Return the cluster that was started last, even if it is stopped.

    Raises:
        NotStarted: no cluster was ever started here.
    """
    if not _in_use:
        raise NotStarted("there is no cluster yet; %mhjax start starts 4 hosts x 2 devices on this machine")
    return _clusters[_in_use[-1]]


def by_name(name: str) -> Cluster:
    """Return the cluster of that name.

    Raises:
        NotStarted: no cluster here has that name.
    """
    if name not in _clusters:
        here = ", ".join(cluster.name for cluster in all_clusters()) or "none"
        raise NotStarted(f"there is no cluster {name!r} here; there are {here}{_say_elsewhere(name)}")
    return _clusters[name]


def _say_elsewhere(name: str) -> str:
    """Describe how to reach a cluster that this notebook does not own; empty if this machine has none of that name."""
    with suppress(LaunchError):
        if named := find_named(os.environ, name):
            kept = any(
                name in (b.name, b.full_name) and not DriverLock.is_held(b.run_dir) for b in find_berths(os.environ)
            )
            other = "another notebook drives it, " if any(map(is_driven, named)) else ""
            take = f"%mhjax attach {name} takes it over, " if kept else other
            return f". One of that name runs on this machine: {take}mhnb stop {name} in a shell ends it"
    return ""


def all_clusters() -> list[Cluster]:
    """List the clusters of this process that are not stopped."""
    return [cluster for cluster in _clusters.values() if cluster.state != "stopped"]


def find_running(name: str, shape: Shape, asked: Mapping[str, Any]) -> Cluster | None:
    """Return the running cluster of that name and spec; None if one must be started.

    Args:
        name: the cluster's.
        shape: the requested spec.
        asked: options that were given besides the spec.

    Raises:
        AlreadyStarted: a cluster of that name has another spec, or other options.
    """
    cluster = _clusters.get(name)
    if cluster is None or cluster.state in ("stopped", "dead"):
        return None
    if cluster.shape != shape:
        raise AlreadyStarted(
            f"cluster {name!r} runs with {cluster.shape.describe()}, and {shape.describe()} was asked for"
            f"{' (a start that names no shape asks for that, too)' if shape == usual_shape() else ''}\n"
            f"  %mhjax restart keeps its shape with fresh processes; %mhjax stop ends it, then start again; or --name another",
            name=name,
        )
    check_alike(name, shape, cluster.options, asked)
    return cluster


def start(
    hosts: int | Sequence[str] | None = None,
    devices: int | None = None,
    *,
    name: str = "default",
    ranks_per_host: int | None = None,
    on_progress: Callable[[StartReport], None] | None = None,
    **options: Any,
) -> Cluster:
    """Start ranks, and return when each has taken part in a checked global sum.

    A running cluster of the same name and spec is returned as it is. With `keep`, one whose notebook is gone is taken over.

    Args:
        hosts: how many hosts, simulated by a process each; or the names of machines, reached by ssh; None: what the profile says, 4.
        devices: simulated CPU devices per rank; None: 2 on this machine, and the existing ones on others.
        name: for status, logs and a second cluster beside this one.
        ranks_per_host: processes on each host; None: what the profile says, 1.
        on_progress: called in this thread as ranks progress, and each second; if hosts are checked first, also before a rank exists.
        **options: `init` (False leaves `jax.distributed.initialize()` to a cell), `initialize` (its arguments, by name),
            `profile` (how hosts are reached: its name, or its directory), `ranks` (all of them, instead of hosts),
            fields of StartOptions (start_timeout_s in seconds, keep, guard, fork, spare, address, encrypt, host_timeout_s, sync),
            and settings of the profile.

    Raises:
        InvalidRequest: an invalid count or argument.
        AlreadyStarted: a cluster of that name runs with another spec, or was started with other options.
        LaunchError: the processes did not come up; none is left.
    """
    given = {"devices": devices, "name": name, "ranks_per_host": ranks_per_host, "on_progress": on_progress}
    check_start_input(given | options)
    if is_rank_shell(get_ipython()):
        raise InvalidRequest(
            "start: this process is a rank of a cluster; start another one from the notebook, in a plain cell"
        )
    shape = take_shape(hosts, devices, ranks_per_host, options)
    # Also if it is already running, because a wrong argument must not be ignored silently.
    check_shape(shape, available_nbytes=sys.maxsize)
    check_initialize(shape.initialize, shape.process_count)
    check_guard(options.get("guard", "lockstep"))
    with _turns[check_name(name)], _explained():
        return _start(name, shape, options, on_progress)


@contextmanager
def _explained(
    what: str = "start", otherwise: str = "every process was ended; mend the cause and start again"
) -> Iterator[None]:
    """Raise what this machine refuses as a LaunchError that says what to change on it.

    Args:
        what: the operation that fails.
        otherwise: what to do next if the cause is not known.

    Raises:
        LaunchError: a system call failed, or a thread could not be created.
    """
    try:
        yield
    except LaunchError as error:
        condition = find_condition(str(error), os.environ, has_memory_limit=has_memory_limit())
        if not condition or condition in str(error):
            raise
        raise type(error)(f"{error}\n  {condition}", **error.parts) from error.__cause__
    except (OSError, RuntimeError, MemoryError) as error:
        words = f"{type(error).__name__}: {error}"
        condition = find_condition(words, os.environ)
        if not isinstance(error, OSError) and not condition:
            # Not a refusal by the machine.
            raise
        raise LaunchError(f"the {what} failed in this process, with {words}\n  {condition or otherwise}") from error


def _start(
    name: str, shape: Shape, options: dict[str, Any], on_progress: Callable[[StartReport], None] | None
) -> Cluster:
    await_ends()
    if (running := find_running(name, shape, options)) is not None:
        use(running)
        return running
    settings = take_options(name, shape, options)
    if settings.sync:
        settings = replace(settings, sync=str(check_folder(settings.sync)))
    berths = find_berths(os.environ)
    if settings.keep and (left := find_left(name, shape, berths)) is not None:
        # Its notebook is gone, and the same line is run again.
        check_alike(left.full_name, shape, left.options, options)
        taken = attach(left.full_name, on_progress)
        return taken if taken.state != "dead" else _revive(taken, on_progress)
    _check(shape)
    looked = _look(shape, settings, on_progress)
    gone = _clusters.get(name)
    notes = [*([FRESH] if gone is not None and _has_died(gone, shape) else []), *note_left(name, berths)]
    notes += note_forced_devices(os.environ, shape.devices) if shape.is_local else ()
    if gone is not None:
        gone.stop()
    cluster = Cluster(
        shape, settings, generation=draw_generation(name, environment=os.environ), restarter=restart_cluster
    )
    cluster.looked_in_s = None if looked is None else looked.cost_s
    cluster.notes = (*cluster.notes, *notes)
    return _bring_up(cluster, on_progress, after=_find_past(gone, cluster))


def _look(
    shape: Shape, settings: StartOptions, on_progress: Callable[[StartReport], None] | None
) -> PreflightReport | None:
    tell = on_progress or (lambda _: None)
    looked = look_before(shape, settings, lambda: tell(report_look(shape)))
    if looked is not None:
        tell(report_look(shape, is_over=True))
    return looked


def _find_past(gone: Cluster | None, cluster: Cluster) -> int:
    """Return the generation that a start replaces; 0 if that one was detached and is still in use, or belongs to another journal."""
    if gone is None or gone.left or gone.journal.path != cluster.journal.path:
        return 0
    return gone.generation


def _revive(taken: Cluster, on_progress: Callable[[StartReport], None] | None) -> Cluster:
    """Restart a detached cluster that had lost a rank, because a start was requested."""
    fresh = restart(taken, on_progress)
    fresh.notes = (*fresh.notes, *([FRESH] if can_come_back(taken) else []))
    return fresh


def _has_died(gone: Cluster, shape: Shape) -> bool:
    """Whether a cluster died by itself, and a replay into a fresh one of that spec would have something to do."""
    return gone.state == "dead" and gone.shape == shape and gone.journal.origin == os.getpid() and can_come_back(gone)


def can_come_back(gone: Cluster) -> bool:
    """Whether a restart with a replay would have something to do for a cluster that has ended."""
    if gone.left:
        return False
    try:
        return bool(plan_replay(gone.journal.read()[0], gone.generation).steps)
    except ClusterError:
        # The journal was removed, which is reported when a replay is requested.
        return False


def restart(cluster: Cluster, on_progress: Callable[[StartReport], None] | None = None) -> Cluster:
    """Replace the processes of a cluster: same ranks, no variables, a later generation.

    Raises:
        NotStarted: this notebook has detached from it.
        LaunchError: the processes did not come up.
    """
    with _turns[cluster.name], _explained():
        return _restart(cluster, on_progress)


def restart_cluster(cluster: Cluster, *, replay: bool, to: int | None) -> Cluster:
    """Restart a cluster for `Cluster.restart`, and replay its cells if requested.

    Raises:
        InvalidRequest: the replay cannot be made; nothing was stopped.
        ReplayStopped: a cell did other than before.
    """
    check_replay(successor(cluster), to, replay=replay)
    fresh = restart(cluster)
    if replay:
        run_replay(fresh, to)
    return fresh


def _restart(cluster: Cluster, on_progress: Callable[[StartReport], None] | None) -> Cluster:
    await_ends()
    newest = successor(cluster)
    if newest.left:
        raise NotStarted(f"{newest.reason}, and then %mhjax restart")
    spare, newest.spare = newest.spare, None
    try:
        if spare is None:
            # The allocation of a scheduler, so that the next generation need not queue.
            hand_over(newest.name, newest.launched)
        try:
            cluster.stop()
            newest.stop()
        except BaseException:
            # Nothing else would refer to it.
            newest.spare = spare
            raise
        if spare is not None and (warm := take_over(spare, cluster)) is not None:
            _bring_files(warm)
            return _enter(warm, after=newest.generation)
        origin = newest.journal.origin
        generation = draw_generation(newest.name, environment=os.environ, origin=origin)
        fresh = Cluster(cluster.shape, cluster.options, generation=generation, origin=origin, restarter=restart_cluster)
    finally:
        # If it was not taken.
        drop_handed(newest.name)
    return _bring_up(fresh, on_progress, after=newest.generation)


def successor(cluster: Cluster) -> Cluster:
    """Return the cluster that has the name now; the same one if it was not restarted since."""
    return _clusters.get(cluster.name, cluster)


def attach(name: str | None = None, on_progress: Callable[[StartReport], None] | None = None) -> Cluster:
    """Take over a cluster that was started with `keep` and whose notebook is gone, with its state, journal and guard.

    Args:
        name: of the cluster, as `mhnb list` shows it; None for the only one.
        on_progress: called in this thread as ranks report, and each second.

    Raises:
        NotStarted: no cluster has that name, or several have.
        NotDriver: a notebook owns it.
        LaunchError: a rank did not answer; everything is left as it was. If a rank has died meanwhile, the cluster is dead,
            and a restart with a replay restores what its journal has.
    """
    with _explained("attach", "the ranks are left as they were; mend the cause and attach again"):
        return _attach(name, on_progress)


def _attach(name: str | None, on_progress: Callable[[StartReport], None] | None) -> Cluster:
    await_ends()
    berths, faults = list_berths(os.environ)
    try:
        berth = choose_berth(name, berths, [cluster.name for cluster in all_clusters()])
    except NotStarted as error:
        if not faults:
            raise
        # The requested cluster may be among the records that could not be read.
        raise NotStarted("\n".join([str(error), *faults])) from None
    cluster = Cluster(
        berth.shape,
        berth.options,
        generation=berth.generation,
        origin=berth.origin,
        berth=berth,
        restarter=restart_cluster,
    )
    cluster.wait_ready(on_progress)
    use(cluster)
    return cluster


def _bring_up(cluster: Cluster, on_progress: Callable[[StartReport], None] | None, *, after: int) -> Cluster:
    cluster.wait_ready(on_progress)
    _bring_files(cluster)
    return _enter(cluster, after=after)


def _bring_files(cluster: Cluster) -> None:
    """Copy the folder named in the start to every host, before a cell can import from it.

    Raises:
        ClusterError: a host could not accept it; the cluster is ended.
    """
    if not cluster.options.sync:
        return
    try:
        sync(cluster, cluster.options.sync)
    except BaseException:
        # Also on Ctrl-C: ranks without their files would fail at the first import.
        cluster.stop()
        raise


def _enter(cluster: Cluster, *, after: int) -> Cluster:
    """Make a ready cluster the active one, in place of generation `after` of its journal; 0 for none."""
    cluster.journal.write(StartRecord(cluster.generation, cluster.shape.describe(), cluster.jax_version, after))
    use(cluster)
    keep_spare(cluster)
    return cluster


def use(cluster: Cluster) -> None:
    """Send cells to this cluster from now on."""
    _clusters[cluster.name] = cluster
    note_generation(cluster.name, cluster.generation)
    if cluster.name in _in_use:
        _in_use.remove(cluster.name)
    _in_use.append(cluster.name)


def _check(shape: Shape) -> None:
    """Check that a start can work, before any process is created.

    Raises:
        InvalidRequest: invalid counts or arguments.
        LaunchError: another operating system, a port that is in use, or a machine without resources for a cluster.
    """
    check_platform(sys.platform)
    check_shape(shape, available_nbytes=psutil.virtual_memory().available)
    check_initialize(shape.initialize, shape.process_count)
    for argument in ("coordinator_address", "coordinator_bind_address") if shape.is_local else ():
        if address := shape.initialize.get(argument):
            check_port_free(str(address), name=argument)
    check_loopback()
    check_limits(shape.process_count, (shape.devices or 1) if shape.is_local else 0)
    home = make_home(os.environ)
    with usable_home(os.environ):
        check_disk(home, shape.process_count)
    prune_run_dirs(os.environ)
    prune_journals(os.environ)
