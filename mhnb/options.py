"""How a cluster is started, beyond its shape, and what that means for the host that starts it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from mhnb.core.environment import rank_environment
from mhnb.core.hostspec import HostSpec
from mhnb.core.shape import Shape

__all__ = ["Place", "StartOptions", "local_spec"]

_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How to start, beyond the shape."""

    name: str = "default"
    start_timeout_s: float = _START_TIMEOUT_S
    keep: bool = False
    guard: str = "lockstep"
    fork: bool = sys.platform == "linux"
    spare: bool = False
    """Whether as many ranks again are kept warm for a restart."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one generation lives, and how its processes reach the notebook."""

    link_url: str
    key: bytes
    generation: int
    cwd: str
    run_dir: str


def local_spec(
    shape: Shape, options: StartOptions, place: Place, environment: Mapping[str, str], coordinator: str
) -> HostSpec:
    """Say what the supervisor of this machine is to bring up: every rank of the cluster.

    Args:
        environment: the notebook's.
        coordinator: `address:port` for JAX's coordinator, unless the user has named one.
    """
    initialize = dict(shape.initialize)
    for given in ("num_processes", "cluster_detection_method"):
        initialize.pop(given, None)
    return HostSpec(
        link_url=place.link_url,
        key=place.key.hex(),
        supervisor=0,
        generation=place.generation,
        process_count=shape.hosts,
        ranks=list(range(shape.hosts)),
        devices=shape.devices,
        coordinator_address=initialize.pop("coordinator_address", None) or coordinator,
        initialize=initialize,
        environment=rank_environment(environment, devices=shape.devices, simulated=True),
        cwd=place.cwd,
        run_dir=place.run_dir,
        init=shape.init,
        keep=options.keep,
        fork=options.fork,
    )
