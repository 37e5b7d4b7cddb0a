"""Options of a start: resolve its arguments and profile into a cluster spec, and derive the spec of each host to start.

The cluster spec is how many ranks run, on how many hosts, on which machines. `StartOptions` holds everything else.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mhnb.core.arguments import closest_match
from mhnb.core.cluster_spec import (
    INITIALIZE_ARGUMENTS,
    ClusterSpec,
    HostAssignment,
    check_counts,
    diff_options,
    format_options_mismatch,
    parse_hosts_argument,
)
from mhnb.core.launch.environment import rank_environment
from mhnb.core.launch.hosts import HostName, parse_hosts
from mhnb.core.messages import HostSpec
from mhnb.core.state.host_tracking import HOST_TIMEOUT_FACTOR
from mhnb.errors import AlreadyStarted, InvalidRequest
from mhnb.launchers.profiles import KINDS, Profile, is_path, load_profile, ranks_per_host, read_hostfile
from mhnb.system.processes import require_gpus

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


# -- resolve the arguments of a start


_START_ONLY_OPTIONS = ("connection", "start_timeout_s")
"""Options that do not describe an existing cluster."""
_START_ARGUMENTS = ("hosts", "devices", "name", "ranks_per_host")
"""Arguments of a start, given by position or by name, that are not options."""
_SPEC_ARGUMENTS = ("init", "initialize", "profile", "ranks")
_DEFAULT_RANKS = 4
_DEFAULT_DEVICES = 2


def resolve_spec(
    hosts: int | Sequence[str] | None, devices: int | None, ranks_per_host: int | None, options: dict[str, Any]
) -> ClusterSpec:
    """Return the spec that the arguments of `start` describe, and remove what belongs to it from the options.

    Args:
        hosts: number of hosts, or their names; None for the profile's value.
        devices: None for the profile's value.
        ranks_per_host: None for the profile's value.
        options: of `start`; `ranks` is the number of all ranks, an alternative to the number of hosts.

    Raises:
        InvalidRequest: hosts that are neither a number nor names, inconsistent numbers, or an unknown option.

    >>> resolve_spec(["a", "b"], None, 1, {"keep": True}).describe()
    '2 hosts (a, b), profile ssh'
    """
    count, machines = (None, ()) if hosts is None else parse_hosts_argument(hosts)
    ranks: int | None = options.pop("ranks", None)
    profile_option = options.pop("profile", None)
    name = str(profile_option) if profile_option is not None else "ssh" if machines else "local"
    profile = _load_profile(name, options)
    kind = "split" if profile is None else profile.kind
    if profile is not None:
        machines, ranks_per_host = _find_machines(profile, machines, ranks_per_host)
        devices = _default_devices(profile, devices)
    if machines and kind not in ("mpi", "slurm", "ssh"):
        # Other kinds would silently ignore the names.
        raise InvalidRequest(f"--profile {name} takes no names of machines, and got {', '.join(machines)}; ssh does")
    per_host = ranks_per_host
    if per_host is None and profile is not None and not (machines and ranks is not None):
        per_host = profile.settings.ranks_per_host
    if ranks is None and count is None and not machines:
        ranks, per_host = _default_ranks(profile, per_host)
    hosts_count, per_host = _split_ranks(ranks, len(machines) if machines else count, per_host)
    if kind == "gpu":
        # All ranks are on this machine, which is one host.
        hosts_count, per_host = 1, hosts_count * per_host
    shape = ClusterSpec(
        hosts_count,
        devices,
        bool(options.pop("init", True)),
        dict(options.pop("initialize", None) or {}),
        ranks_per_host=per_host,
        profile=str(profile.folder) if profile is not None and is_path(name) else name,
        machines=machines,
        kind="" if kind == name else kind,
    )
    check_counts(shape)
    return shape


def default_spec() -> ClusterSpec:
    """Return the spec of a start without arguments."""
    return resolve_spec(None, None, None, {})


def check_same_options(name: str, shape: ClusterSpec, running: StartOptions, requested: Mapping[str, Any]) -> None:
    """Check that a running cluster was started with the requested options.

    Args:
        name: the cluster's.
        shape: its spec, which is also the requested one.
        running: its options.
        requested: options that were given, after `resolve_spec`; options that were not given are not compared.

    Raises:
        AlreadyStarted: an option differs; the message names it.
    """
    wanted = {key: value for key, value in requested.items() if key in OPTION_NAMES and key not in _START_ONLY_OPTIONS}
    if wanted.get("sync"):
        wanted["sync"] = str(check_folder(wanted["sync"]))
    running_values: dict[str, Any] = {key: getattr(running, key) for key in wanted}
    profile_settings = {key: value for key, value in requested.items() if key not in OPTION_NAMES}
    if profile_settings and shape.profile != "split":
        # As the profile reads them: a port that was typed is a text.
        running_settings = load_profile(shape.profile, running.reach).settings
        requested_settings = load_profile(shape.profile, {**running.reach, **profile_settings}).settings
        running_values |= {key: getattr(running_settings, key) for key in profile_settings}
        wanted |= {key: getattr(requested_settings, key) for key in profile_settings}
    if differing := diff_options(running_values, wanted):
        raise AlreadyStarted(format_options_mismatch(name, differing), name=name)


def _load_profile(name: str, options: Mapping[str, Any]) -> Profile | None:
    """Load the profile; None for several supervisors on this machine, which have no profile.

    Raises:
        InvalidRequest: an option that neither mhnb nor the profile has.
    """
    if name == "split":
        return None
    profile_settings = {
        key: value for key, value in options.items() if key not in OPTION_NAMES and key not in _SPEC_ARGUMENTS
    }
    known = load_profile(name).settings.class_trait_names(config=True)
    if unknown := sorted(set(profile_settings) - set(known)):
        raise InvalidRequest(
            f"start: there is no option {', '.join(unknown)}; options are {', '.join(sorted({*OPTION_NAMES, *_SPEC_ARGUMENTS}))}, "
            f"and of profile {name}: {', '.join(sorted(known))}{_format_option_hint(unknown[0], options[unknown[0]])}"
        )
    return load_profile(name, profile_settings)


def _format_option_hint(option: str, value: object) -> str:
    """Describe where an option belongs: to the arguments of JAX's own start, or to a profile, because --profile was forgotten."""
    if option in INITIALIZE_ARGUMENTS:
        return (
            f"\n  {option} is an argument of jax.distributed.initialize: initialize={{{option!r}: {value!r:.80}}};"
            f" of %mhjax start: --{option.replace('_', '-')} {shlex.quote(f'{value!s:.80}')}"
        )
    kinds = [kind for kind, cls in sorted(KINDS.items()) if cls.class_traits(config=True).get(option) is not None]
    if kinds:
        # Of several kinds, name the most widely used.
        return f"\n  {option} is a setting of the profile {' or '.join(kinds)}: --profile {'ssh' if 'ssh' in kinds else kinds[0]}"
    near = closest_match(option, (*_START_ARGUMENTS, *OPTION_NAMES, *_SPEC_ARGUMENTS))
    return f"\n  did you mean {near}?" if near else ""


def _find_machines(
    profile: Profile, named: tuple[str, ...], per_host: int | None
) -> tuple[tuple[str, ...], int | None]:
    """Return the machines, as named in this start or in the profile, and the number of ranks per host from a host file."""
    settings: Any = profile.settings
    if named or not settings.has_trait("hosts"):
        return named, per_host
    listed: tuple[HostName, ...] = ()
    if settings.hosts:
        listed = parse_hosts(settings.hosts)
    elif settings.hostfile:
        listed = read_hostfile(settings.hostfile)
    return format_host_names(listed), ranks_per_host(listed) if per_host is None else per_host


def format_host_names(hosts: Sequence[HostName]) -> tuple[str, ...]:
    """Return the host names in the form that a `ClusterSpec` has."""
    return tuple(str(host) for host in hosts)


def _default_devices(profile: Profile, devices: int | None) -> int | None:
    if devices is None:
        devices = profile.settings.devices
    return _DEFAULT_DEVICES if devices is None and profile.kind == "local" else devices


def _default_ranks(profile: Profile | None, per_host: int | None) -> tuple[int, int | None]:
    """Return the default number of ranks, and the ranks per host.

    Raises:
        LaunchError: the default is the number of GPUs, and there are none.
    """
    if profile is None:
        return _DEFAULT_RANKS * (per_host or 1), per_host
    if profile.count is not None:
        return profile.count, per_host
    if profile.kind == "gpu":
        settings: Any = profile.settings
        is_one_per_host = settings.process_per == "host"
        return (1 if is_one_per_host else len(require_gpus(os.environ))), None
    return _DEFAULT_RANKS * (per_host or 1), per_host


def _split_ranks(ranks: int | None, hosts: int | None, per_host: int | None) -> tuple[int, int]:
    """Return the number of hosts, and of ranks per host.

    Raises:
        InvalidRequest: the numbers are inconsistent.

    >>> _split_ranks(8, None, 2), _split_ranks(8, 4, None), _split_ranks(None, 4, 2)
    ((4, 2), (4, 2), (4, 2))
    """
    if ranks is not None and ranks < 1:
        # `check_counts` reports invalid counts later, with all else, by their own values.
        return ranks, 1
    if ranks is None:
        return _DEFAULT_RANKS if hosts is None else hosts, 1 if per_host is None else per_host
    if hosts is None:
        per_host = 1 if per_host is None else per_host
        hosts = ranks // per_host if per_host > 0 else ranks
    if per_host is None:
        # Fewer ranks than hosts are refused below, with their own message.
        per_host = max(1, ranks // hosts) if hosts > 0 else 1
    if per_host > 0 and hosts * per_host != ranks:
        raise InvalidRequest(
            f"-n {ranks} ranks cannot be {hosts} hosts with the same number of ranks each"
            + (f", {per_host} a host" if per_host else "")
            + "; give another -n, or --per-host alone"
        )
    return hosts, per_host
