"""Options of a start beyond the cluster spec, and the specs of the hosts to start that follow from them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mhnb.core.asked.shape import ClusterSpec, HostAssignment
from mhnb.core.life.pulse import HOST_TIMEOUT_FACTOR
from mhnb.core.reach.environment import rank_environment
from mhnb.core.wire.protocol import HostSpec
from mhnb.errors import InvalidRequest

__all__ = [
    "GenerationLocation",
    "OPTION_NAMES",
    "StartOptions",
    "check_detachable",
    "check_folder",
    "host_spec",
    "hub_spec",
    "local_spec",
    "parse_options",
]

_START_TIMEOUT_S = 120.0
_HOST_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options of a start, beyond the cluster spec."""

    name: str = "default"
    start_timeout_s: float = _START_TIMEOUT_S
    keep: bool = False
    guard: str = "lockstep"
    fork: bool = sys.platform == "linux"
    spare: bool = False
    """Whether the same number of ranks is kept on standby for a restart."""
    address: str = ""
    """For hosts on other machines: the address of this machine that they reach; empty to find it."""
    encrypt: bool = True
    """Whether traffic between machines is encrypted."""
    host_timeout_s: float = _HOST_TIMEOUT_S
    """A host that is silent for longer is lost."""
    connection: str = field(default="", repr=False)
    """Connection information that an existing hub gives its engines, with the hub's key: the ranks serve ipyparallel's client only."""
    sync: str = ""
    """Folder of this machine that is copied to every host before a cell can import from it; empty for none."""
    reach: Mapping[str, Any] = field(default_factory=dict)
    """Profile settings by name: how the launcher reaches the hosts. Settings that are not named are the profile's."""


OPTION_NAMES = frozenset(part.name for part in fields(StartOptions)) - {"name", "reach"}
"""Options that are not settings of a profile."""


def parse_options(name: str, shape: ClusterSpec, options: Mapping[str, Any]) -> StartOptions:
    """Return the options of a start; options that are not ours are settings of the profile.

    Raises:
        InvalidRequest: two options are incompatible.
    """
    own_options = {key: value for key, value in options.items() if key in OPTION_NAMES}
    profile_settings = {key: value for key, value in options.items() if key not in OPTION_NAMES}
    parsed = StartOptions(name=name, **own_options, reach=profile_settings)
    if parsed.keep and parsed.spare:
        raise InvalidRequest("--keep and --spare do not go together: ranks in reserve end with this notebook")
    fixed = sorted({"coordinator_address", "coordinator_bind_address"} & set(shape.initialize))
    if parsed.spare and fixed:
        raise InvalidRequest(
            f"--spare and {fixed[0]}={shape.initialize[fixed[0]]!r} do not go together: ranks in reserve need an address of their own"
        )
    return parsed


def check_detachable(options: StartOptions) -> None:
    """Check that the cluster can be detached, because no notebook could take it over otherwise.

    Raises:
        InvalidRequest: it was started without `keep`.
    """
    if not options.keep:
        raise InvalidRequest(
            f"cluster {options.name!r} was started without --keep and would end; "
            "%mhjax stop ends it, %mhjax start --keep starts one that stays"
        )


@dataclass(frozen=True, slots=True)
class GenerationLocation:
    """Location of one generation, and how its processes reach the notebook."""

    link_url: str
    key: bytes
    generation: int
    cwd: str
    run_dir: str

    @property
    def address(self) -> str:
        """Address of this machine, as hosts on other machines reach it."""
        return self.link_url.partition(":")[2].rpartition(":")[0]


def _base_spec(
    shape: ClusterSpec, options: StartOptions, location: GenerationLocation, environment: Mapping[str, str]
) -> HostSpec:
    """Return the part of the spec that is the same for every supervisor."""
    initialize = dict(shape.initialize)
    for given in ("num_processes", "cluster_detection_method", "coordinator_address"):
        initialize.pop(given, None)
    simulated = shape.devices is not None
    return HostSpec(
        link_url=location.link_url,
        key=location.key.hex(),
        supervisor=0,
        generation=location.generation,
        process_count=shape.process_count,
        ranks=list(range(shape.process_count)),
        devices=shape.devices,
        coordinator_address="",
        initialize=initialize,
        environment=rank_environment(environment, devices=shape.devices, simulated=simulated),
        cwd=location.cwd,
        run_dir=location.run_dir,
        ranks_per_host=shape.ranks_per_host,
        init=shape.init,
        starts_hub=not options.connection,
        has_shared_board=not options.connection,
        engine_only=bool(options.connection),
        is_detachable=options.keep,
        fork=options.fork,
    )


def local_spec(
    shape: ClusterSpec,
    options: StartOptions,
    location: GenerationLocation,
    environment: Mapping[str, str],
    coordinator: str,
) -> HostSpec:
    """Return the spec for the one supervisor of this machine, which starts the hub and every rank of the cluster.

    Args:
        environment: the notebook's.
        coordinator: `address:port` for JAX's coordinator, unless the user has named one.
    """
    coordinator_address = shape.initialize.get("coordinator_address") or coordinator
    # One rank with all GPUs of a machine leaves nothing to share out.
    share_gpus = not shape.is_simulated and shape.process_count > 1
    spec = replace(
        _base_spec(shape, options, location, environment),
        coordinator_address=coordinator_address,
        share_gpus=share_gpus,
    )
    return replace(spec, connection=options.connection)


def host_spec(
    shape: ClusterSpec,
    options: StartOptions,
    location: GenerationLocation,
    environment: Mapping[str, str],
    share: HostAssignment,
) -> HostSpec:
    """Return the spec for the supervisor of one of several hosts, which starts its share of the ranks once all hosts are up."""
    return replace(
        _base_spec(shape, options, location, environment),
        supervisor=share.supervisor,
        ranks=list(share.ranks),
        run_dir="",
        starts_hub=False,
        has_shared_board=False,
        staged_start=True,
        creates_cwd=bool(options.sync),
        host_timeout_s=HOST_TIMEOUT_FACTOR * options.host_timeout_s,
    )


def hub_spec(
    shape: ClusterSpec, options: StartOptions, location: GenerationLocation, environment: Mapping[str, str]
) -> HostSpec:
    """Return the spec for the supervisor on this machine if every rank is on another: it starts the hub."""
    number = len(shape.assign_hosts())
    spec = replace(
        _base_spec(shape, options, location, environment),
        supervisor=number,
        ranks=[],
        has_shared_board=False,
        staged_start=True,
    )
    # Without `keep` it is a child process of the notebook, and needs no clock to detect the notebook's end.
    limit_s = HOST_TIMEOUT_FACTOR * options.host_timeout_s if options.keep else 0.0
    return replace(spec, connection=options.connection, host_timeout_s=limit_s)


def check_folder(folder: str) -> Path:
    """Return a folder that can be copied to hosts.

    Raises:
        InvalidRequest: the folder does not exist.
    """
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        what = "a file" if path.exists() else "not there"
        raise InvalidRequest(f"sync {folder}: {path} is {what}; name a folder of this machine, such as . or src")
    return path
