"""The commands of `%mhjax` for the lifecycle of clusters: start, status, list, restart, stop, attach, auto, and others."""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from IPython.core.magic_arguments import MagicArgumentParser

from mhnb.cluster import manager, replay
from mhnb.cluster.attach import describe_other_clusters
from mhnb.cluster.cluster import Cluster
from mhnb.cluster.flags import add_start_flags, start_arguments
from mhnb.cluster.options import START_TIMEOUT_S, resolve_start
from mhnb.cluster.status import describe_location
from mhnb.core.arguments import seconds_argument
from mhnb.core.cell_name import parse_cell_argument
from mhnb.core.cluster_spec import INITIALIZE_ARGUMENTS
from mhnb.core.ranks import pluralize
from mhnb.core.replay import format_report
from mhnb.errors import InvalidRequest, MhnbError
from mhnb.launchers.profiles import format_restart_note
from mhnb.magics.data import add_panel_start_flags
from mhnb.magics.session import (
    Command,
    Session,
    no_flags,
    status_from_cluster,
    summary_from_cluster,
)
from mhnb.rank.jax_private import backend_is_initialized
from mhnb.view.html import format_seconds
from mhnb.view.tables import show
from mhnb.view.tables.reports import format_hang_text


def add_start_command_flags(parser: MagicArgumentParser) -> None:
    """Add the flags of `%mhjax start`."""
    add_start_flags(parser)
    parser.add_argument("--name", default="default", help="the cluster's name")
    parser.add_argument("--no-init", action="store_true", help="leave jax.distributed.initialize() to a cell")
    parser.add_argument(
        "--keep", action="store_true", help="let the ranks outlive this notebook; mhnb stop NAME ends them"
    )
    parser.add_argument(
        "--spare",
        action="store_true",
        help="keep as many ranks again warm in reserve, so that a restart takes a moment",
    )
    parser.add_argument("--guard", choices=("lockstep", "parity", "off"), help="how launches are compared (lockstep)")
    parser.add_argument(
        "--start-timeout",
        type=seconds_argument,
        default=START_TIMEOUT_S,
        metavar="SECONDS",
        help=f"limit for the whole start ({START_TIMEOUT_S:.0f})",
    )
    add_panel_start_flags(parser)
    for name in INITIALIZE_ARGUMENTS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, f"--{name}", metavar="VALUE", help="an argument of jax.distributed.initialize")


def _start(session: Session, args: argparse.Namespace) -> None:
    if args.panel is not None:
        # Without the flag the setting stays, so running a `%mhjax start` cell again changes nothing.
        session.has_persistent_panels = args.panel == "keep"
    initialize = {
        name: _parse_literal(value) for name in INITIALIZE_ARGUMENTS if (value := getattr(args, name)) is not None
    }
    # Flags that were not typed are None, so they are not compared with the options of a running cluster.
    arguments = {
        "name": args.name,
        "init": not args.no_init,
        "initialize": initialize,
        "start_timeout_s": args.start_timeout,
        "keep": args.keep or None,
        "spare": args.spare or None,
        "guard": args.guard,
    }
    request = resolve_start(**arguments | start_arguments(args))
    if (running := manager.find_running(request)) is not None:
        manager.make_current(running)
        name = f"{running.name}: " if len(manager.all_clusters()) > 1 else ""
        print(f"mhjax · {name}{request.shape.describe()} run already ({running.state}); going on")
        return
    with show.StartDisplay() as progress:
        cluster = manager.start_requested(request, progress.update)
        progress.finish(summary_from_cluster(cluster))


def _parse_literal(text: str) -> Any:
    """Parse a flag's value as a Python literal such as 60 or [0, 1]; otherwise return the text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


# -- commands for the lifecycle of clusters


def _warnings() -> list[str]:
    """Return a warning if this process has a JAX backend: its devices are not the ranks', and a GPU it uses is not theirs."""
    if backend_is_initialized():
        return [
            "this notebook's own process has initialised JAX too; what it computes there has nothing to do with the ranks"
        ]
    return []


def _status(session: Session, args: argparse.Namespace) -> None:
    show.show_status(status_from_cluster(manager.latest(), _warnings()))


def _interrupt(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.current()
    is_running = cluster.state == "running"
    cluster.interrupt()
    print(
        "mhjax · the cell that runs is being interrupted"
        if is_running
        else "mhjax · no cell runs: nothing to interrupt"
    )


def _where(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.current() if args.name is None else manager.by_name(args.name)
    report = cluster.where()
    print("mhjax · no cell runs" if report is None else format_hang_text(report, name=cluster.name))


def _accept(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.current()
    previous_state = cluster.state
    if previous_state == "dead":
        raise InvalidRequest(
            "a dead cluster cannot be accepted, for a rank is gone; go on with %mhjax restart --replay"
        )
    cluster.accept()
    print(
        f"mhjax · {previous_state} accepted, {cluster.state} now"
        if previous_state != cluster.state
        else f"mhjax · {previous_state}: nothing to accept"
    )


def _restart(session: Session, args: argparse.Namespace) -> None:
    cluster = manager.latest()
    # A cell of another thread waits for both, because it needs what the replay restores.
    with manager.announce_replay(cluster) if args.replay else nullcontext():
        _restart_cluster(session, cluster, args)


def _restart_cluster(session: Session, cluster: Cluster, args: argparse.Namespace) -> None:
    to = _find_last_cell(cluster, args)
    replay.check_replay(cluster, to, replay=args.replay)
    if note := format_restart_note(cluster.shape, is_detachable=cluster.options.keep):
        print(f"mhjax · {note}")
    loses_state = not args.replay and manager.has_replayable_state(cluster)
    with show.StartDisplay() as progress:
        new_cluster = manager.restart(cluster, progress.update)
        summary = summary_from_cluster(new_cluster)
        progress.finish(replace(summary, notes=(*summary.notes, manager.STATE_LOST_NOTE)) if loses_state else summary)
    if args.replay:
        _replay(session, new_cluster, to)


def _find_last_cell(cluster: Cluster, args: argparse.Namespace) -> int | None:
    """Return mhnb's number of the cell that `--to` names; None without the flag.

    Raises:
        InvalidRequest: the journal has no such cell, or the flag came without a replay.
    """
    if args.to is None:
        return None
    argument = parse_cell_argument(args.to)
    if argument is None:
        raise InvalidRequest(f"restart --replay --to {args.to!r}: give a cell, such as In[7] or 7")
    if not args.replay:
        raise InvalidRequest(f"--to {args.to} belongs to a replay: %mhjax restart --replay --to {args.to}")
    seq, note = replay.find_last_cell(cluster, argument)
    if note:
        print(f"mhjax · {note}")
    return seq


def _replay(session: Session, cluster: Cluster, to: int | None) -> None:
    progress_line = show.ReplayLine()
    try:
        store_result = partial(session.store_result, cluster)
        report = replay.replay(cluster, to, progress_line.begin, store_result, progress_line.tick)
    except BaseException as error:
        # The error gives the details; the progress line must not look as if it were still running.
        progress_line.finish("mhjax · replay stopped" if isinstance(error, MhnbError) else "mhjax · replay broken off")
        raise
    progress_line.finish(format_report(report, format_seconds(report.wall_s)))


def _restart_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("--replay", action="store_true", help="run again every cell that ended clean, and push again")
    parser.add_argument("--to", metavar="CELL", help="with --replay: stop after this cell, such as In[7], or 7")


def _stop(session: Session, args: argparse.Namespace) -> None:
    if args.name is None and not manager.all_clusters():
        # Not an error, just as a second `%mhjax start` is not, because a user may run all cells again.
        hint = "; %mhjax list shows those of others, or that were left" if describe_other_clusters(os.environ) else ""
        print(f"mhjax · no cluster of this notebook runs; nothing to stop{hint}")
        return
    cluster = manager.current() if args.name is None else manager.by_name(args.name)
    if cluster.state == "stopped":
        print(f"mhjax · {cluster.name}: {cluster.reason or 'stopped already'}")
        return
    cluster.stop()
    print(f"mhjax · {cluster.name}: {pluralize(cluster.process_count, 'rank')} stopped")


def _name_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the cluster's name; else the one in use")


def _attach(session: Session, args: argparse.Namespace) -> None:
    with show.StartDisplay() as progress:
        cluster = manager.attach(args.name, progress.update)
        if cluster.state == "dead":
            # The reason and the fix have already been shown.
            progress.show_failure("found it dead")
            return
        progress.finish(summary_from_cluster(cluster))
    if cluster.state != "clean":
        print(f"mhjax · {cluster.name} is {cluster.state}: {cluster.reason}")


def _list(session: Session, args: argparse.Namespace) -> None:
    own_clusters = manager.all_clusters()
    for cluster in own_clusters:
        location = describe_location(cluster.shape, cluster.ranks)
        in_use_mark = "  cells go here" if len(own_clusters) > 1 and cluster is manager.current() else ""
        print(f"{cluster.name}  {location}  {cluster.state}  generation {cluster.generation}{in_use_mark}")
    others = describe_other_clusters(os.environ)
    print(*others, sep="\n", end="\n" if others else "")
    if not own_clusters and not others:
        print("mhjax · no cluster; %mhjax start starts one")


def _auto(session: Session, args: argparse.Namespace) -> None:
    if args.switch == "on":
        manager.current()
    session.is_auto_mode = session.is_auto_mode if args.switch is None else args.switch == "on"
    where = "plain cells go to the ranks; %%local keeps one here" if session.is_auto_mode else "plain cells stay here"
    print(f"mhjax auto {'on' if session.is_auto_mode else 'off'} · {where}")


def _auto_flags(parser: MagicArgumentParser) -> None:
    parser.add_argument(
        "switch", nargs="?", choices=("on", "off"), help="whether plain cells go to the ranks too; else it is told"
    )


def interrupted_note(name: str, args: argparse.Namespace) -> str:
    """Describe the state that an interrupted command left behind, if it is not obvious; otherwise an empty string."""
    if name == "start" and not any(cluster.name == args.name for cluster in manager.all_clusters()):
        return "; every process that it had started was ended"
    if name == "restart" and (stopped_cluster := manager.latest()).state == "stopped":
        note = "; no rank runs any more"
        return (
            f"{note}, and %mhjax restart --replay brings back what they held"
            if manager.has_replayable_state(stopped_cluster)
            else note
        )
    return ""


def stop_all(clusters: Sequence[Any] | None = None) -> None:
    """Stop every cluster of this process."""
    for cluster in clusters if clusters is not None else manager.all_clusters():
        cluster.stop()
        print(f"mhjax · {cluster.name} stopped", file=sys.stderr)


COMMANDS: dict[str, Command] = {
    "start": (_start, add_start_command_flags),
    "accept": (_accept, no_flags),
    "attach": (_attach, _name_flags),
    "auto": (_auto, _auto_flags),
    "interrupt": (_interrupt, no_flags),
    "list": (_list, no_flags),
    "restart": (_restart, _restart_flags),
    "status": (_status, no_flags),
    "stop": (_stop, _name_flags),
    "where": (_where, _name_flags),
}
