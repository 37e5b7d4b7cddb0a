"""Start a cluster, or find that it is there already; and know the one in use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from mhnb.cluster import Cluster, StartOptions
from mhnb.core.journal import StartRecord
from mhnb.core.shape import Shape, check_initialize, check_shape, count_hosts
from mhnb.errors import AlreadyStarted, InvalidRequest, NotStarted
from mhnb.launch.journaldir import prune_journals
from mhnb.launch.local import check_platform
from mhnb.launch.ports import check_port_free
from mhnb.launch.rundir import prune_run_dirs
from mhnb.roll import StartReport
from mhnb.spares import keep_spare, take_over

__all__ = ["all_clusters", "by_name", "current", "find_running", "latest", "restart", "start"]

_clusters: dict[str, Cluster] = {}
_in_use: list[str] = []


def current() -> Cluster:
    """Return the cluster that was started last and is not stopped.

    Raises:
        NotStarted: there is none.
    """
    for name in reversed(_in_use):
        if (cluster := _clusters.get(name)) is not None and cluster.state != "stopped":
            return cluster
    raise NotStarted(
        "there is no cluster yet; %mhjax start (or mhnb.start()) starts 4 hosts x 2 devices on this machine"
    )


def latest() -> Cluster:
    """Return the cluster that was started last, also when it is stopped.

    Raises:
        NotStarted: none was ever started here.
    """
    if not _in_use:
        raise NotStarted("there is no cluster yet; %mhjax start starts 4 hosts x 2 devices on this machine")
    return _clusters[_in_use[-1]]


def by_name(name: str) -> Cluster:
    """Return the cluster of that name.

    Raises:
        NotStarted: there is none of that name here.
    """
    if name not in _clusters:
        raise NotStarted(f"there is no cluster {name!r} here; there are {', '.join(_clusters) or 'none'}")
    return _clusters[name]


def all_clusters() -> list[Cluster]:
    """List the clusters of this process that are not stopped."""
    return [cluster for cluster in _clusters.values() if cluster.state != "stopped"]


def find_running(name: str, shape: Shape) -> Cluster | None:
    """Return the cluster of that name and shape if it can go on; None if one must be started.

    Raises:
        AlreadyStarted: there is one of that name and another shape.
    """
    cluster = _clusters.get(name)
    if cluster is None or cluster.state in ("stopped", "dead"):
        return None
    if cluster.shape != shape:
        raise AlreadyStarted(
            f"cluster {name!r} runs with {cluster.shape.describe()}, and {shape.describe()} was asked for\n"
            f"  %mhjax restart keeps its shape with fresh processes; %mhjax stop ends it, then start again; or --name another",
            name=name,
        )
    return cluster


def start(
    hosts: int | Sequence[str] = 4,
    devices: int = 2,
    *,
    name: str = "default",
    init: bool = True,
    initialize: Mapping[str, Any] | None = None,
    on_progress: Callable[[StartReport], None] | None = None,
    **options: Any,
) -> Cluster:
    """Start ranks on this machine and return when each has taken part in a checked global sum.

    A cluster of the same name and shape that runs is returned as it is.

    Args:
        hosts: simulated hosts, a process each.
        devices: CPU devices per host.
        name: for status, logs and a second cluster beside this one.
        init: False leaves `jax.distributed.initialize()` to a cell.
        initialize: arguments of `jax.distributed.initialize`, by name.
        on_progress: called in this thread as ranks come further.
        **options: fields of StartOptions: start_timeout_s (seconds), keep, guard, fork, spare.

    Raises:
        InvalidRequest: a count or argument that cannot be.
        AlreadyStarted: one of that name runs with another shape.
        LaunchError: the processes did not come up; none is left.
    """
    shape = Shape(count_hosts(hosts), devices, init, dict(initialize or {}))
    if (running := find_running(name, shape)) is not None:
        _use(running)
        return running
    _check(shape)
    if (gone := _clusters.get(name)) is not None:
        gone.stop()
    try:
        settings = StartOptions(name=name, **options)
    except TypeError as error:
        raise InvalidRequest(f"start: {error}; options are start_timeout_s, keep, guard, fork, spare") from error
    if settings.keep and settings.spare:
        raise InvalidRequest("--keep and --spare do not go together: ranks in reserve end with this notebook")
    if settings.spare and (
        fixed := sorted({"coordinator_address", "coordinator_bind_address"} & set(shape.initialize))
    ):
        raise InvalidRequest(
            f"--spare and {fixed[0]}={shape.initialize[fixed[0]]!r} do not go together: ranks in reserve need an address of their own"
        )
    generation = 1 if gone is None else gone.generation + 1
    return _bring_up(Cluster(shape, settings, generation=generation), on_progress)


def restart(cluster: Cluster, on_progress: Callable[[StartReport], None] | None = None) -> Cluster:
    """Give a cluster fresh processes: same ranks, no variables, one generation on."""
    # One that was restarted before: its successor has the name and the folder.
    newest = _clusters.get(cluster.name, cluster)
    spare, newest.spare = newest.spare, None
    try:
        cluster.stop()
        newest.stop()
    except BaseException:
        # Nobody else would know of it.
        newest.spare = spare
        raise
    if spare is not None and (warm := take_over(spare, cluster)) is not None:
        return _enter(warm)
    generation = max(cluster.generation, newest.generation) + 1
    return _bring_up(Cluster(cluster.shape, cluster.options, generation=generation), on_progress)


def _bring_up(cluster: Cluster, on_progress: Callable[[StartReport], None] | None) -> Cluster:
    cluster.wait_ready(on_progress)
    return _enter(cluster)


def _enter(cluster: Cluster) -> Cluster:
    """Take a cluster that is ready into use."""
    cluster.journal.write(StartRecord(cluster.generation, cluster.shape.describe(), cluster.jax_version))
    _use(cluster)
    keep_spare(cluster)
    return cluster


def _use(cluster: Cluster) -> None:
    _clusters[cluster.name] = cluster
    if cluster.name in _in_use:
        _in_use.remove(cluster.name)
    _in_use.append(cluster.name)


def _check(shape: Shape) -> None:
    """Refuse a start that cannot work, before any process.

    Raises:
        InvalidRequest: counts or arguments that cannot be.
        LaunchError: another operating system, a port that is taken.
    """
    check_platform(sys.platform)
    check_shape(shape.hosts, shape.devices, available_nbytes=psutil.virtual_memory().available)
    check_initialize(shape.initialize, shape.hosts)
    if address := shape.initialize.get("coordinator_address"):
        check_port_free(str(address))
    prune_run_dirs(os.environ)
    prune_journals(os.environ)
