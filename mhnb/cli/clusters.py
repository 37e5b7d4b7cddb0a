"""Find clusters by their names, and the commands `list`, `stop` and `cleanup`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mhnb.core.arguments import format_unknown
from mhnb.core.ranks import pluralize
from mhnb.errors import InvalidRequest, NotStarted
from mhnb.system.run_dir import RunRecord, find_clusters_named, list_running_clusters, read_running_clusters


def add_name_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the name of a cluster."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="name of the cluster (default: the only one); NAME.PID where several notebooks have a cluster of that name",
    )


def unknown_cluster_error(name: str) -> NotStarted:
    """Return the error for an unknown cluster, with all unreadable records."""
    running, faults = list_running_clusters(os.environ)
    unknown = format_unknown("cluster", name, sorted({record.name for record in running}))
    if not running:
        unknown = f"unknown cluster {name!r}; you have no running cluster on this machine"
    return NotStarted("\n".join([unknown, *(["  Fix: mhnb list"] if running else []), *faults]))


def find_clusters(name: str) -> list[RunRecord]:
    """Return the clusters of that name on this machine.

    Raises:
        NotStarted: no cluster has that name.
    """
    if not (named := find_clusters_named(os.environ, name)):
        raise unknown_cluster_error(name)
    return named


def find_cluster(name: str | None) -> RunRecord:
    """Return the only cluster on this machine, of that name if given.

    Raises:
        NotStarted: no cluster has that name, or several have.
    """
    named = find_clusters(name) if name is not None else read_running_clusters(os.environ)
    if not named:
        raise NotStarted("you have no running cluster on this machine")
    if len(named) > 1:
        have = "are running" if name is None else f"have the name {name!r}, each of another notebook"
        counts = Counter(record.name for record in named)
        shown = [record.name if counts[record.name] == 1 else record.full_name for record in named[:5]]
        raise NotStarted(f"{len(named)} clusters {have}\n  Fix: give the name: {' or '.join(shown)}")
    return named[0]


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for output that programs read."""
    parser.add_argument("--json", action="store_true", help="print JSON; the reference lists its keys")


def record_values(record: RunRecord) -> dict[str, Any]:
    """Return a cluster's record with the keys of `mhnb list --json`."""
    from mhnb.cluster.attach import has_owner

    return {
        "name": record.name,
        "full_name": record.full_name,
        "rank_count": len(record.rank_pids),
        "location": record.location,
        "keep": record.is_detachable,
        "attached": has_owner(record),
        "notebook_pid": record.owner_pid,
        "supervisor_pid": record.supervisor_pid,
        "rank_pids": list(record.rank_pids),
        "run_dir": record.run_dir,
    }


def list_clusters(args: argparse.Namespace) -> int:
    """Print this user's clusters on this machine, as a table or JSON."""
    from mhnb.cluster.attach import read_cluster_records

    clusters = [record_values(record) for record in read_running_clusters(os.environ)]
    if args.json:
        print(json.dumps(clusters, indent=2))
    elif clusters:
        print(_format_clusters(clusters))
    for fault in read_cluster_records(os.environ)[1]:
        print(f"mhnb list: {fault}", file=sys.stderr)
    if not clusters:
        # To stderr, so that a script that counts lines of stdout finds none.
        print("mhnb list: you have no running cluster on this machine", file=sys.stderr)
    return 0


_LIST_HEADER = ("NAME", "RANKS", "LOCATION", "NOTEBOOK", "SUPERVISOR", "KEEP")


def _format_clusters(clusters: Sequence[Mapping[str, Any]]) -> str:
    from mhnb.view.print_text import align_columns

    # Several clusters of one name need their full names, which every command takes.
    counts = Counter(cluster["name"] for cluster in clusters)
    rows = [
        (
            cluster["name"] if counts[cluster["name"]] == 1 else cluster["full_name"],
            str(cluster["rank_count"]),
            # An older mhnb recorded no location.
            cluster["location"] or "unknown",
            _format_notebook(cluster),
            str(cluster["supervisor_pid"]),
            "yes" if cluster["keep"] else "no",
        )
        for cluster in clusters
    ]
    return "\n".join(align_columns(_LIST_HEADER, rows))


def _format_notebook(cluster: Mapping[str, Any]) -> str:
    if cluster["attached"]:
        return f"pid {cluster['notebook_pid']}"
    return "detached" if cluster["keep"] else "ended"


def add_stop_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mhnb stop`."""
    add_name_argument(parser)
    parser.add_argument("--all", action="store_true", help="stop all clusters of that name")


def stop_clusters(args: argparse.Namespace) -> int:
    """Stop the named cluster; with --all, every cluster of that name."""
    from mhnb.cluster.attach import list_cluster_records
    from mhnb.cluster.manager import stop_detached
    from mhnb.launchers.local import end_supervisor

    records_by_run_dir = {str(attachable.run_dir): attachable for attachable in list_cluster_records(os.environ)}
    if args.name is None and args.all:
        raise InvalidRequest("--all: expected the name of the clusters, as in mhnb stop NAME --all")
    named = [find_cluster(None)] if args.name is None else find_clusters(args.name)
    if len(named) > 1 and not args.all:
        names = " or ".join(record.full_name for record in named[:5])
        print(
            f"mhnb stop {args.name}: nothing was stopped, because {len(named)} clusters have that name, each of another notebook"
            f"\n  Fix: give the full name: {names}\n  Or: mhnb stop {args.name} --all",
            file=sys.stderr,
        )
        return 1
    missing: tuple[str, ...] = ()
    for record in named:
        attachable = records_by_run_dir.get(record.run_dir)
        if attachable is not None and not attachable.shape.is_local:
            # Its ranks are on other machines, and only the owner of the cluster can reach them.
            missing += stop_detached(attachable)
        else:
            end_supervisor(record.supervisor_pid)
        shown_name = record.full_name if len(named) > 1 else args.name or record.name
        print(f"{shown_name}: {pluralize(len(record.rank_pids), 'rank')} stopped")
    if missing:
        print(
            f"mhnb stop: {', '.join(missing)} did not answer; the ranks there wait for a notebook"
            "\n  Fix: when you can reach the machine again, end them there (this ends all of yours): "
            "pkill -f mhnb.rank.supervisor",
            file=sys.stderr,
        )
    return 1 if missing else 0


def end_orphans(args: argparse.Namespace) -> int:
    """End the processes that notebooks left behind on this machine."""
    from mhnb.cluster.cleanup import end_orphan, find_orphans

    orphans = find_orphans(os.environ)
    for orphan in orphans:
        end_orphan(orphan)
        count = "1 process" if orphan.process_count == 1 else f"{orphan.process_count} processes"
        print(f"ended {count} of {orphan.kind} {orphan.pid}: {orphan.reason}")
    if not orphans:
        print("nothing was left behind; `mhnb list` shows running clusters, `mhnb stop NAME` stops one")
    return 0
