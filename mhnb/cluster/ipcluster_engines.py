"""Process that owns the ranks requested by `ipcluster start`.

It is run as `python -m mhnb.cluster.ipcluster_engines PROFILE_DIR ...`. It starts them as a notebook does, with the
existing hub, and waits for a signal to end. The ranks serve ipyparallel's client, and no cells of mhnb, so there is no
guard, view or journal in between.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from mhnb.cluster import manager
from mhnb.cluster.options import StartRequest, format_host_names, resolve_start
from mhnb.core.launch.hosts import parse_hosts
from mhnb.core.ranks import pluralize
from mhnb.errors import LaunchError, MhnbError
from mhnb.system.waiting import read_whole_json, wait_until
from mhnb.types import StartProgress

_POLL_S = 0.1
_HUB_WAIT_S = 120.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ranks or print a profile fact; return the exit status."""
    parser = argparse.ArgumentParser(prog="mhnb.cluster.ipcluster_engines")
    parser.add_argument("profile_dir")
    parser.add_argument("--address", action="store_true")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--cluster-id", default="")
    parser.add_argument("--settings", default="{}")
    parser.add_argument("-n", type=int)
    args = parser.parse_args(argv)
    try:
        if args.address:
            print(_find_address(resolve_start(**_start_arguments(args))))
        elif args.count:
            print(resolve_start(**_start_arguments(args)).shape.process_count)
        else:
            _serve(args)
    except MhnbError as error:
        # The text is written for a notebook; here the flag has another name.
        print(f"mhnb: {str(error).replace('--address ', 'ipcluster start --ip=')}", file=sys.stderr)
        return 1
    return 0


def _start_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return `mhnb.start` arguments from ipcluster's flags and the profile's settings."""
    settings: dict[str, Any] = json.loads(args.settings)
    # A setting of the profile; the argument of `start` takes names.
    if hosts := settings.pop("hosts", None):
        settings["hosts"] = list(format_host_names(parse_hosts(hosts)))
    return (
        settings | {"profile": str(Path(args.profile_dir).absolute())} | ({} if args.n is None else {"ranks": args.n})
    )


def _find_address(request: StartRequest) -> str:
    if request.shape.is_local:
        return "127.0.0.1"
    return request.profile.settings.create_launcher(request.shape).find_own_address()


def _serve(args: argparse.Namespace) -> None:
    stop_event, is_starting = threading.Event(), True

    def end(_signum: int, _frame: object) -> None:
        stop_event.set()
        if is_starting:
            # A start may wait as long as a queue takes; what it has begun is undone.
            raise SystemExit(1)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, end)
    connection = _wait_for_hub(args, stop_event)
    arguments = _start_arguments(args) | {"address": hub_address(connection)}
    cluster = manager.start(
        name=f"engines-{os.getpid()}", connection=connection, on_progress=_ProgressPrinter(), **arguments
    )
    is_starting = False
    count = cluster.process_count
    print(f"mhnb: {pluralize(count, 'rank')} registered as {'an engine' if count == 1 else 'engines'}", flush=True)
    try:
        while not stop_event.wait(_POLL_S):
            if cluster.state == "dead":
                raise LaunchError(f"the ranks have ended: {cluster.reason}")
    finally:
        cluster.stop()


def hub_address(connection: str) -> str:
    """Return the hub's address for hosts; empty if they cannot use it.

    Args:
        connection: the connection information that the hub gives its engines, as JSON.

    >>> hub_address('{"interface": "tcp://10.0.0.1"}')
    '10.0.0.1'
    >>> hub_address('{"interface": "tcp://127.0.0.1"}')
    ''
    """
    text = str(json.loads(connection).get("interface", "")).removeprefix("tcp://")
    try:
        address = ip_address(text.strip("[]"))
    except ValueError:
        # All interfaces, a file, or the name of a device.
        return ""
    return "" if address.is_loopback or address.is_unspecified else str(address)


class _ProgressPrinter:
    """Printer of changes in a start's progress, for a log."""

    _last_text = ""

    def __call__(self, report: StartProgress) -> None:
        text = report.status or ", ".join(sorted({rank.phase or "not started" for rank in report.ranks}))
        if text != self._last_text:
            self._last_text = text
            print(f"mhnb: {report.elapsed_s:.1f} s · {text}", flush=True)


def _wait_for_hub(args: argparse.Namespace, stop_event: threading.Event) -> str:
    """Wait for the connection information that the hub writes for its engines.

    Raises:
        LaunchError: the hub did not write it in time.
    """
    name = f"ipcontroller-{args.cluster_id}-engine.json" if args.cluster_id else "ipcontroller-engine.json"
    path = Path(args.profile_dir) / "security" / name
    found = wait_until(
        lambda: read_whole_json(path) or stop_event.is_set(), _HUB_WAIT_S, _POLL_S, pause=stop_event.wait
    )
    if isinstance(found, str):
        return found
    raise LaunchError(
        f"the hub has not written {path}\n  Fix: start the hub before the engines, as `ipcluster start` does"
    )


if __name__ == "__main__":
    sys.exit(main())
