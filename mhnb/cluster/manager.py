"""Start, attach, restart and stop clusters; track this process's active one.

Standby ranks are warm ranks that a restart uses instead of waiting for new ones to start. They have no cells and no
variables, and end with their cluster.

A detached cluster on other machines can be stopped in any state, even if hosts are lost or a cell never ends. For an
attach, every rank must answer. For a stop, no rank needs to answer: the supervisors look for a
notebook at the previous address, and are ordered to stop there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import psutil
from IPython.core.getipython import get_ipython

from mhnb.cluster.attach import (
    ClusterRecord,
    OwnerLock,
    describe_detached,
    find_detached,
    has_owner,
    list_cluster_records,
    read_cluster_records,
    select_cluster,
)
from mhnb.cluster.cluster import Cluster, StandbyCluster
from mhnb.cluster.files import sync
from mhnb.cluster.generation import open_detached_transport
from mhnb.cluster.interrupts import wait_for_pending_shutdowns
from mhnb.cluster.journal import next_generation, prune_journals, record_generation
from mhnb.cluster.operations import announce, has_operations, wait_for_operations
from mhnb.cluster.options import (
    START_TIMEOUT_S,
    StartRequest,
    check_argument,
    check_same_options,
    resolve_start,
)
from mhnb.cluster.replay import check_replay
from mhnb.cluster.replay import replay as run_replay
from mhnb.cluster.status import print_notice
from mhnb.core.arguments import format_unknown
from mhnb.core.cell_request import GuardName
from mhnb.core.cluster_spec import ClusterSpec, check_cluster_spec
from mhnb.core.hints import find_start_hint
from mhnb.core.journal import StartRecord
from mhnb.core.launch.environment import note_forced_devices
from mhnb.core.messages import HostUp, StopHost
from mhnb.core.ranks import pluralize
from mhnb.core.replay import ReplayStep, plan_replay
from mhnb.errors import AlreadyStarted, ClusterError, InvalidRequest, LaunchError, NotStarted
from mhnb.launchers.local import AdoptedHost, check_platform
from mhnb.launchers.profiles import load_profile
from mhnb.launchers.slurm import park_allocation, release_parked_allocation
from mhnb.system.capacity import check_disk, check_limits, check_loopback, has_memory_limit
from mhnb.system.processes import PROCESS_ENDED
from mhnb.system.run_dir import (
    find_clusters_named,
    find_cwd,
    make_home,
    remove_keys,
    report_home_errors,
)
from mhnb.transport.addresses import check_port_free
from mhnb.transport.base import supervisor_peer
from mhnb.transport.server import SocketServer
from mhnb.types import RankInfo, StartProgress

_WAIT_STEP_S = 0.2
"""Poll interval while waiting for a thread, in seconds."""


@dataclass(frozen=True, slots=True)
class Standby:
    """Cluster of the next generation, started behind the active one."""

    cluster: Cluster
    environment: dict[str, str]
    """Environment of this process when they were started. Ranks that start now would get another one if it has changed."""
    cwd: str

    start_thread: threading.Thread
    """Waits until they are warm, and ends them if they do not come up."""

    def matches(self, cluster: Cluster) -> bool:
        """Whether it is what a restart of that cluster would start now."""
        is_usable = self.cluster.state in ("starting", "clean")
        parts = ("shape", "options", "profile")
        has_same_options = all(getattr(self.cluster, part) == getattr(cluster, part) for part in parts)
        return is_usable and has_same_options and self.environment == dict(os.environ) and self.cwd == find_cwd()

    def stop(self) -> None:
        """End its processes."""
        self.cluster.stop()


def start_standby(cluster: Cluster) -> None:
    """Begin to start standby ranks, if they were requested; returns at once."""
    if not cluster.options.standby:
        return
    try:
        number = next_generation(cluster.name, environment=os.environ)
        standby_cluster = _make_cluster(_repeat_request(cluster), number)
    except (LaunchError, OSError) as error:
        cluster.notes = (*cluster.notes, f"no standby ranks were started: {error}")
        return
    standby_cluster.on_notice(_print_loss)
    start_thread = threading.Thread(target=_wait_until_ready, args=(standby_cluster,), name="mhnb-reserve", daemon=True)
    cluster.standby = Standby(standby_cluster, dict(os.environ), find_cwd(), start_thread)
    start_thread.start()
    count = cluster.process_count
    cluster.notes = (
        *cluster.notes,
        f"{pluralize(count, 'standby rank')} starting in the background for a quick %mhjax restart",
    )


def _wait_until_ready(standby_cluster: Cluster) -> None:
    try:
        standby_cluster.wait_ready()
    except LaunchError as error:
        # Its processes have ended. A stop by the user before it was ready is not reported to the user.
        _print_loss(str(error))
    except ClusterError:
        # The user stopped it together with the active cluster, so it is not reported.
        return


def _print_loss(text: str) -> None:
    print(f"the standby ranks are lost, and the next restart will start new ranks: {text}", file=sys.stderr)


def promote_standby(
    standby: StandbyCluster, active: Cluster, on_wait: Callable[[], None] | None = None
) -> Cluster | None:
    """Return the standby cluster once it is ready, or None.

    If it does not match a restart of the active cluster, or did not start, it is ended.

    Args:
        standby: the standby cluster, which may still be starting.
        active: the cluster that it replaces.
        on_wait: called in this thread several times a second while it starts.
    """
    cluster = standby.cluster
    began = cluster.journal.now()
    if standby.matches(active):
        try:
            standby.start_thread.join(_WAIT_STEP_S)
            while standby.start_thread.is_alive():
                if on_wait is not None:
                    on_wait()
                standby.start_thread.join(_WAIT_STEP_S)
        except BaseException:
            # Nothing else refers to it any more.
            standby.stop()
            raise
    if cluster.state != "clean" or not standby.matches(active):
        standby.stop()
        return None
    cluster.started_in_s = cluster.journal.now() - began
    cluster.on_notice(print_notice)
    return cluster


# -- start, attach, restart, and the active cluster


_clusters: dict[str, Cluster] = {}
_names_by_use: list[str] = []
_start_locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
"""By name. If two threads start or restart one name at once, the second finds what the first has started."""

STATE_LOST_NOTE = (
    "started new processes; variables from before are lost. To restore them, run `%mhjax restart --replay`"
)
"""Note for a restart without a replay, after which a replay would have something to do."""
_START_STEP = "%mhjax start (4 simulated hosts × 2 CPU devices on this machine)"
"""What to run if no cluster is running."""


def is_rank_shell(shell: Any) -> bool:
    """Whether an IPython shell belongs to a rank."""
    return type(shell).__module__.startswith("mhnb.rank.")


def current() -> Cluster:
    """Return the cluster that was started last and is not stopped.

    Raises:
        NotStarted: no cluster is running.
    """
    for name in reversed(_names_by_use):
        if (cluster := _clusters.get(name)) is not None and cluster.state != "stopped":
            return cluster
    can_replay = bool(_names_by_use) and has_replayable_state(latest())
    raise _not_started(
        *(["%mhjax restart --replay (restores the variables of the last cluster)"] if can_replay else []),
        *_list_attach_steps(),
    )


def _not_started(*steps: str) -> NotStarted:
    """Build the NotStarted error; `steps` are alternatives to a start."""
    first, *others = (*steps, _START_STEP)
    return NotStarted("\n".join(["no cluster is running", f"  Fix: {first}", *(f"  Or: {step}" for step in others)]))


def _list_attach_steps() -> list[str]:
    """Return a command that attaches to a detached cluster, if any."""
    with suppress(LaunchError):
        if records := [each for each in list_cluster_records(os.environ) if not OwnerLock.is_held(each.run_dir)]:
            return [f"%mhjax attach {records[0].name} (a detached cluster on this machine)"]
    return []


def wait_for_current(on_wait: Callable[[str], None]) -> Cluster:
    """Return the current cluster once other threads have started or restarted it.

    Args:
        on_wait: called each second with a line that says for what the caller waits.

    Raises:
        NotStarted: no cluster is running then.
        KeyboardInterrupt: the user interrupted the wait.
    """
    if has_operations():
        running = next((name for name in reversed(_names_by_use) if _clusters[name].state != "stopped"), None)
        wait_for_operations(running, on_wait)
    return current()


def latest() -> Cluster:
    """Return the cluster that was started last, even if it is stopped.

    Raises:
        NotStarted: no cluster was ever started here.
    """
    if not _names_by_use:
        raise _not_started()
    return _clusters[_names_by_use[-1]]


def by_name(name: str) -> Cluster:
    """Return the cluster of that name.

    Raises:
        NotStarted: no cluster here has that name.
    """
    if name not in _clusters:
        known = [cluster.name for cluster in all_clusters()]
        raise NotStarted(_describe_cluster_elsewhere(name) or format_unknown("cluster", name, known))
    return _clusters[name]


def _describe_cluster_elsewhere(name: str) -> str:
    """Describe how to reach a cluster outside this notebook; empty if unknown."""
    with suppress(LaunchError):
        if named := find_clusters_named(os.environ, name):
            is_detached = any(
                name in (b.name, b.full_name) and not OwnerLock.is_held(b.run_dir)
                for b in list_cluster_records(os.environ)
            )
            where = f"cluster {name!r} is running on this machine, but not attached to this notebook"
            stop = f"mhnb stop {name} (in a shell)"
            if is_detached:
                return f"{where}\n  Fix: %mhjax attach {name}\n  Or: {stop}"
            owner = "; another notebook is attached to it" if any(map(has_owner, named)) else ""
            return f"{where}{owner}\n  Fix: {stop}"
    return ""


def all_clusters() -> list[Cluster]:
    """List the clusters of this process that are not stopped."""
    return [cluster for cluster in _clusters.values() if cluster.state != "stopped"]


def find_running(request: StartRequest) -> Cluster | None:
    """Return the running cluster of the requested name and spec, or None.

    A request that names no shape finds a cluster of any shape.

    Raises:
        AlreadyStarted: a cluster of that name has another spec, or other options.
    """
    name, shape = request.options.name, request.shape
    cluster = _clusters.get(name)
    if cluster is None or cluster.state in ("stopped", "dead"):
        return None
    if request.names_shape and cluster.shape != shape:
        raise AlreadyStarted(
            f"cluster {name!r} is already running with {cluster.shape.describe()}; you requested {shape.describe()}\n"
            "  Fix: %mhjax stop, then run this line again\n"
            "  Or: add --name other to run both\n"
            "  Or: %mhjax restart (same shape, fresh processes)",
            name=name,
        )
    if cluster.profile is None:
        cluster.profile = request.profile.with_settings(cluster.options.reach)
    check_same_options(name, cluster.options, cluster.profile, request)
    return cluster


def start(
    hosts: int | Sequence[str] | None = None,
    devices: int | None = None,
    *,
    name: str = "default",
    ranks: int | None = None,
    ranks_per_host: int | None = None,
    profile: str | os.PathLike[str] | None = None,
    init: bool = True,
    initialize: Mapping[str, Any] | None = None,
    start_timeout_s: float = START_TIMEOUT_S,
    keep: bool | None = None,
    standby: bool | None = None,
    guard: GuardName | None = None,
    fork: bool | None = None,
    address: str | None = None,
    encrypt: bool | None = None,
    host_timeout_s: float | None = None,
    sync: str | os.PathLike[str] | None = None,
    connection: str = "",
    on_progress: Callable[[StartProgress], None] | None = None,
    **settings: Any,
) -> Cluster:
    """Start ranks, and return once each has joined a checked global sum.

    A running cluster of the same name and spec is returned as it is. With `keep`, a detached one is attached.
    The options from `keep` to `sync` must then be those of that cluster, except those that are None, which are not compared.

    Args:
        hosts: the number of hosts, each simulated by a process, or the names of machines, reached by ssh; None: from the profile, else 4.
        devices: simulated CPU devices per rank; None: 2 on this machine, and the existing ones on others.
        name: the name of the cluster, for status, logs and a second cluster beside this one.
        ranks: the number of ranks on all hosts together, instead of the number of hosts; None: hosts x ranks_per_host.
        ranks_per_host: the number of ranks on each host; None: from the profile, else 1.
        profile: how hosts are reached: the name of a profile, such as slurm, or its directory; None: ssh if hosts are named, else local.
        init: False leaves `jax.distributed.initialize()` to a cell.
        initialize: arguments of `jax.distributed.initialize` by name, as the ranks' JAX has them; None: no arguments.
        start_timeout_s: limit for the start, in seconds, without the time in a scheduler's queue and for the checks of hosts.
        keep: True keeps the ranks running after this notebook exits; None: False.
        standby: True keeps a second set of ranks ready, for a quick restart; not with `keep`; None: False.
        guard: when launches are compared: `lockstep` before each launch, `parity` after the cell, or `off`; None: lockstep.
        fork: True forks the ranks of a host from one process; False starts a fresh process for each; None: True on Linux.
        address: the address of this machine that hosts on other machines can reach; None: mhnb finds it.
        encrypt: whether traffic between machines is encrypted; None: True.
        host_timeout_s: seconds after which a silent host on another machine counts as lost; None: 20.
        sync: folder of this machine that is copied to every host before a cell can import from it; None: no folder.
        connection: JSON with which an existing ipyparallel hub connects its engines, for ranks that run no cells of mhnb; empty: a new hub.
        on_progress: called in this thread as ranks progress, and each second; if hosts are checked first, also before a rank exists.
        **settings: settings of the profile, by name, such as `user` or `partition`; `mhnb profile show NAME` lists them.

    Raises:
        InvalidRequest: an invalid count or argument.
        AlreadyStarted: a cluster of that name runs with another spec, or was started with other options.
        LaunchError: the processes did not come up; none is left.
    """
    # Before there is another local variable: each argument under its own name.
    arguments = {**locals(), **settings}
    del arguments["settings"], arguments["on_progress"]
    if "spare" in settings:
        # The older name.
        arguments["standby"] = arguments.pop("spare")
    check_argument("on_progress", on_progress)
    if is_rank_shell(get_ipython()):
        raise InvalidRequest(
            "start: this process is a rank of a cluster and cannot start another one; run this in a notebook cell (%%local)"
        )
    # Also if it is already running, because a wrong argument must not be ignored silently.
    request = resolve_start(**arguments)
    return start_requested(request, on_progress)


def start_requested(request: StartRequest, on_progress: Callable[[StartProgress], None] | None = None) -> Cluster:
    """Start what was requested, as `start` does.

    Raises:
        AlreadyStarted: as in `start`.
        LaunchError: as in `start`.
    """
    count = pluralize(request.shape.process_count, "rank")
    with (
        announce(request.options.name, f"the start of {count}"),
        _start_locks[request.options.name],
        _as_launch_errors(),
    ):
        return _start(request, on_progress)


@contextmanager
def _as_launch_errors(
    operation: str = "start", next_step: str = "all processes were stopped; fix the cause and start again"
) -> Iterator[None]:
    """Raise this machine's errors as LaunchError, with what to change there.

    Args:
        operation: the operation that fails.
        next_step: what to do next if the cause is not known.

    Raises:
        LaunchError: a system call failed, or a thread could not be created.
    """
    try:
        yield
    except LaunchError as error:
        condition = find_start_hint(str(error), os.environ, has_memory_limit=has_memory_limit())
        if not condition or condition in str(error):
            raise
        raise type(error)(f"{error}\n  {condition}", **error.parts) from error.__cause__
    except (OSError, RuntimeError, MemoryError) as error:
        words = f"{type(error).__name__}: {error}"
        condition = find_start_hint(words, os.environ)
        if not isinstance(error, OSError) and not condition:
            # Not a refusal by the machine.
            raise
        raise LaunchError(f"the {operation} failed in this process: {words}\n  {condition or next_step}") from error


def _start(request: StartRequest, on_progress: Callable[[StartProgress], None] | None) -> Cluster:
    wait_for_pending_shutdowns()
    if (running := find_running(request)) is not None:
        make_current(running)
        return running
    shape, options = request.shape, request.options
    name = options.name
    records = list_cluster_records(os.environ)
    if options.keep and (detached := find_detached(name, _find_wanted_shape(request, records), records)) is not None:
        # Its notebook has exited, and the user runs the same line again.
        profile = request.profile.with_settings(detached.options.reach)
        check_same_options(detached.full_name, detached.options, profile, request)
        attached = attach(detached.full_name, on_progress)
        attached.profile = profile
        return attached if attached.state != "dead" else _restart_dead(attached, on_progress)
    _check_can_start(shape)
    previous = _clusters.get(name)
    notes = [
        # Once a cell has run, a replay runs only the cells since this start.
        *(
            [f"{STATE_LOST_NOTE} before any other cell"]
            if previous is not None and _has_died_with_state(previous, shape)
            else []
        ),
        *describe_detached(name, records),
    ]
    notes += note_forced_devices(os.environ, shape.devices) if shape.is_local else ()
    if previous is not None:
        previous.stop()
    generation = next_generation(name, environment=os.environ)
    cluster = _make_cluster(request, generation)
    cluster.notes = (*cluster.notes, *notes)
    return _complete_start(cluster, on_progress, replaced=_find_replaced(previous, cluster))


def _make_cluster(source: StartRequest | ClusterRecord, generation: int, origin_pid: int | None = None) -> Cluster:
    return Cluster(
        source,
        generation=generation,
        origin_pid=origin_pid,
        restarter=restart_cluster,
        answer_shell=_answer_shell,
    )


def _answer_shell(cluster: Cluster, name: str, arguments: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    # Imported when a shell asks, because it imports every view: 0.15 s.
    from mhnb.cluster.reports import answer_shell

    return answer_shell(cluster, name, arguments)


def _find_wanted_shape(request: StartRequest, records: Sequence[ClusterRecord]) -> ClusterSpec:
    """Return the requested shape; without one, that of a detached cluster."""
    detached = (each for each in records if each.name == request.options.name and not OwnerLock.is_held(each.run_dir))
    first = None if request.names_shape else next(detached, None)
    return request.shape if first is None else first.shape


def _find_replaced(previous: Cluster | None, cluster: Cluster) -> Cluster | None:
    """Return the previous cluster if it is replaced: not detached, same journal."""
    if previous is None or previous.left or previous.journal.path != cluster.journal.path:
        return None
    return previous


def _restart_dead(attached: Cluster, on_progress: Callable[[StartProgress], None] | None) -> Cluster:
    """Restart an attached cluster that had lost a rank."""
    fresh = restart(attached, on_progress)
    fresh.notes = (*fresh.notes, *([STATE_LOST_NOTE] if has_replayable_state(attached) else []))
    return fresh


def _has_died_with_state(previous: Cluster, shape: ClusterSpec) -> bool:
    """Whether a cluster of that shape died with state for a replay."""
    return (
        previous.state == "dead"
        and previous.shape == shape
        and previous.journal.origin_pid == os.getpid()
        and has_replayable_state(previous)
    )


def has_replayable_state(previous: Cluster) -> bool:
    """Whether a replay would have steps to repeat for an ended cluster."""
    if previous.left:
        return False
    try:
        return bool(plan_replay(previous.journal.read()[0], previous.generation).steps)
    except ClusterError:
        # The journal was removed, which is reported when a replay is requested.
        return False


def restart(cluster: Cluster, on_progress: Callable[[StartProgress], None] | None = None) -> Cluster:
    """Replace a cluster's processes: same ranks, no variables, a later generation.

    Raises:
        NotStarted: this notebook has detached from it.
        LaunchError: the processes did not come up.
    """
    count = pluralize(cluster.process_count, "rank")
    with announce(cluster.name, f"the restart of {count}"), _start_locks[cluster.name], _as_launch_errors():
        previous = current_generation(cluster)
        fresh = _restart(cluster, on_progress)
        fresh.adopt_metrics(previous)
        return fresh


def restart_cluster(
    cluster: Cluster,
    *,
    replay: bool,
    to: int | str | None,
    this_generation: bool,
    on_step: Callable[[ReplayStep], None] | None,
) -> Cluster:
    """Restart a cluster for `Cluster.restart`, and replay its cells if requested.

    Raises:
        InvalidRequest: the replay cannot be made; nothing was stopped.
        ReplayStopped: a cell did other than before.
    """
    last, _ = check_replay(current_generation(cluster), to, replay=replay, this_generation=this_generation)
    if not replay:
        return restart(cluster)
    # A cell of another thread waits for both, because it needs what the replay restores.
    with announce_replay(cluster):
        fresh = restart(cluster)
        run_replay(fresh, last, on_step, this_generation=this_generation)
        return fresh


def announce_replay(cluster: Cluster) -> AbstractContextManager[None]:
    """Make cells of other threads wait for a restart with a replay."""
    return announce(
        cluster.name, f"the restart of {pluralize(cluster.process_count, 'rank')} and the replay of its cells"
    )


def _restart(cluster: Cluster, on_progress: Callable[[StartProgress], None] | None) -> Cluster:
    began = time.monotonic()
    wait_for_pending_shutdowns()
    newest = current_generation(cluster)
    if newest.left:
        raise NotStarted(f"{newest.reason}, then %mhjax restart")
    # Before anything is stopped, because the profile may have become invalid.
    request = _repeat_request(cluster)
    standby, newest.standby = newest.standby, None
    try:
        if standby is None:
            # The allocation of a scheduler, so that the next generation need not queue.
            park_allocation(newest.name, newest.launched)
        try:
            on_wait = _report_wait(cluster, "waiting until the previous ranks have ended", began, on_progress)
            cluster.stop(on_wait=on_wait)
            newest.stop(on_wait=on_wait)
        except BaseException:
            # Nothing else would refer to it.
            newest.standby = standby
            raise
        on_wait = _report_wait(cluster, "waiting until the standby ranks are ready", began, on_progress)
        if standby is not None and (promoted := promote_standby(standby, cluster, on_wait)) is not None:
            _sync_files(promoted)
            return _activate(promoted, newest, is_restart=True)
        origin = newest.journal.origin_pid
        generation = next_generation(newest.name, environment=os.environ, origin_pid=origin)
        fresh = _make_cluster(request, generation, origin)
    finally:
        # If it was not taken.
        release_parked_allocation(newest.name)
    # The time continues from the value that was shown before.
    earlier_s = time.monotonic() - began
    on_start = None if on_progress is None else lambda each: on_progress(_add_time(each, earlier_s))
    return _complete_start(fresh, on_start, replaced=newest, is_restart=True)


def _add_time(progress: StartProgress, earlier_s: float) -> StartProgress:
    return replace(progress, elapsed_s=progress.elapsed_s + earlier_s)


def _report_wait(
    cluster: Cluster, status: str, began: float, on_progress: Callable[[StartProgress], None] | None
) -> Callable[[], None] | None:
    """Return a function that reports what a restart waits for."""
    if on_progress is None:
        return None
    ranks = tuple(RankInfo(rank.rank, rank.host) for rank in cluster.ranks)
    return lambda: on_progress(StartProgress(ranks, time.monotonic() - began, status=status))


def _repeat_request(cluster: Cluster) -> StartRequest:
    """Return a cluster's start request again, loading its profile if necessary."""
    profile = cluster.profile or load_profile(cluster.shape.profile, cluster.options.reach)
    return StartRequest(cluster.shape, cluster.options, profile)


def current_generation(cluster: Cluster) -> Cluster:
    """Return the newest generation of a cluster, which may be itself."""
    return _clusters.get(cluster.name, cluster)


def attach(name: str | None = None, on_progress: Callable[[StartProgress], None] | None = None) -> Cluster:
    """Attach to a detached cluster, with its state, journal and guard.

    Args:
        name: of the cluster, as `mhnb list` shows it; None for the only one.
        on_progress: called in this thread as ranks report, and each second.

    Raises:
        NotStarted: no cluster has that name, or several have.
        NotDriver: a notebook owns it.
        LaunchError: a rank did not answer; everything is left as it was. If a rank has died meanwhile, the cluster is dead,
            and a restart with a replay restores what its journal has.
    """
    with _as_launch_errors("attach", "the ranks were not changed; fix the cause and attach again"):
        return _attach(name, on_progress)


def _attach(name: str | None, on_progress: Callable[[StartProgress], None] | None) -> Cluster:
    wait_for_pending_shutdowns()
    records, faults = read_cluster_records(os.environ)
    try:
        record = select_cluster(name, records, [cluster.name for cluster in all_clusters()])
    except NotStarted as error:
        if not faults:
            raise
        # The requested cluster may be among the records that could not be read.
        raise NotStarted("\n".join([str(error), *faults])) from None
    cluster = _make_cluster(record, record.generation, record.origin_pid)
    cluster.wait_ready(on_progress)
    make_current(cluster)
    return cluster


def _complete_start(
    cluster: Cluster,
    on_progress: Callable[[StartProgress], None] | None,
    *,
    replaced: Cluster | None,
    is_restart: bool = False,
) -> Cluster:
    cluster.wait_ready(on_progress)
    _sync_files(cluster)
    return _activate(cluster, replaced, is_restart=is_restart)


def _sync_files(cluster: Cluster) -> None:
    """Copy the start's `sync` folder to every host, before any cell.

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


def _activate(cluster: Cluster, replaced: Cluster | None, *, is_restart: bool) -> Cluster:
    """Make a ready cluster the active one, continuing the `replaced` one."""
    shape, after = cluster.shape.describe(), 0 if replaced is None else replaced.generation
    cluster.journal.write(StartRecord(cluster.generation, shape, cluster.jax_version, after, is_restart=is_restart))
    if replaced is not None:
        cluster.adopt_history(replaced)
    make_current(cluster)
    start_standby(cluster)
    return cluster


def make_current(cluster: Cluster) -> None:
    """Send cells to this cluster from now on."""
    _clusters[cluster.name] = cluster
    record_generation(cluster.name, cluster.generation)
    if cluster.name in _names_by_use:
        _names_by_use.remove(cluster.name)
    _names_by_use.append(cluster.name)


def _check_can_start(shape: ClusterSpec) -> None:
    """Check that a start can work, before any process is created.

    Raises:
        InvalidRequest: more ranks than this machine has memory for.
        LaunchError: another operating system, a port that is in use, or a machine without resources for a cluster.
    """
    check_platform(sys.platform)
    check_cluster_spec(shape, available_nbytes=psutil.virtual_memory().available)
    for argument in ("coordinator_address", "coordinator_bind_address") if shape.is_local else ():
        if address := shape.initialize.get(argument):
            check_port_free(str(address), name=argument)
    check_loopback()
    check_limits(shape.process_count, (shape.devices or 1) if shape.is_local else 0)
    home = make_home(os.environ)
    with report_home_errors(os.environ):
        check_disk(home, shape.process_count)
    prune_journals(os.environ)


# -- stop a detached cluster on other machines


_WAIT_S = 20.0


def stop_detached(
    record: ClusterRecord, *, wait_s: float = _WAIT_S, clock: Callable[[], float] = time.monotonic
) -> tuple[str, ...]:
    """Stop the cluster; return the hosts that did not stop in time.

    Args:
        record: the record of the cluster.
        wait_s: how long a host may take to connect and to end.
        clock: monotonic clock, in seconds.

    Raises:
        NotDriver: a notebook owns it.
    """
    lock = OwnerLock(record.run_dir, record.name)
    try:
        transport = open_detached_transport(record)
        try:
            missing = _send_stop(transport, record, clock() + wait_s, clock)
        finally:
            transport.close()
        for number, pid in record.local_supervisors.items():
            _wait_until_gone(number, pid)
        remove_keys(record.run_dir)
    finally:
        lock.release()
    return missing


def _send_stop(
    transport: SocketServer, record: ClusterRecord, until: float, clock: Callable[[], float]
) -> tuple[str, ...]:
    """Order connecting supervisors to stop; return the hosts that remain."""
    names = {
        supervisor_peer(share.supervisor): share.host + (f" ({share.machine})" if share.machine else "")
        for share in record.shape.assign_hosts()
    }
    waited_for = {*names, *map(supervisor_peer, record.local_supervisors)}
    while waited_for and (left_s := until - clock()) > 0:
        for message in transport.poll(left_s):
            if isinstance(message, HostUp):
                transport.send(supervisor_peer(message.supervisor), StopHost())
        waited_for -= set(transport.pop_disconnected())
    return tuple(name for peer, name in names.items() if peer in waited_for)


def _wait_until_gone(number: int, pid: int) -> None:
    try:
        AdoptedHost(number, pid).wait(())
    except PROCESS_ENDED:
        return
