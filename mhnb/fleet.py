"""What a cluster consists of: the link, the machine that decides, and the supervisors' processes, one here or one on each host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mhnb.core.gathering import Gathering
from mhnb.core.machine import Machine
from mhnb.core.roster import Roster
from mhnb.core.shape import Shape
from mhnb.launch.base import Host
from mhnb.launch.launchers import find_launcher, fit_spec
from mhnb.launch.local import LocalHost
from mhnb.launch.profile import find_profile
from mhnb.link.sockets import SocketLink
from mhnb.options import Place, StartOptions, host_spec, hub_spec, local_spec
from mhnb.ports import find_free_port
from mhnb.rundir import configure_hub

__all__ = ["find_settings", "launch_hosts", "make_machine", "open_link"]


def find_settings(shape: Shape) -> Path:
    """Find the directory with the hub's and the engines' settings."""
    return find_profile("local" if shape.profile == "split" else shape.profile)


def open_link(shape: Shape, options: StartOptions, key: bytes, run_dir: Path) -> SocketLink:
    """Open the link where the hosts will look for it: a file where all are here, else the address that they reach.

    Raises:
        LaunchError: that address cannot be found, or is not this machine's.
    """
    if shape.is_local:
        return SocketLink(key, path=run_dir / "link")
    address = options.address or find_launcher(shape, options.reach).find_own_address()
    configure_hub(run_dir, address, encrypt=options.encrypt)
    return SocketLink(key, address=address, encrypt=options.encrypt)


def make_machine(shape: Shape, options: StartOptions, run_dir: Path, *, generation: int, now: float) -> Machine:
    """Make the machine of a generation, with every rank on its host."""
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


def launch_hosts(shape: Shape, options: StartOptions, place: Place) -> Iterator[Host]:
    """Start every supervisor; yield each as soon as there is one, so that it can be ended when a later one fails.

    Raises:
        LaunchError: one could not be started.
    """
    if shape.is_local:
        spec = local_spec(shape, options, place, os.environ, f"127.0.0.1:{find_free_port()}")
        yield LocalHost(spec, os.environ | spec.environment)
        return
    hub = hub_spec(shape, options, place, os.environ)
    yield LocalHost(hub, os.environ | hub.environment)
    shares = shape.shares()
    specs = [fit_spec(host_spec(shape, options, place, os.environ, s), shape, options.reach) for s in shares]
    yield from find_launcher(shape, options.reach).launch(specs, shares, os.environ, Path(place.run_dir))
