"""Start options: resolve arguments and a profile into a cluster spec.

The cluster spec is how many ranks run, on how many hosts, on which machines. `StartOptions` holds everything else.
`StartRequest` is both, from the arguments of `mhnb.start` or the flags of a command.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from mhnb.core.arguments import format_unknown, is_positive_seconds
from mhnb.core.cell_request import Guard, check_guard
from mhnb.core.cluster_spec import (
    INITIALIZE_FLAGS,
    SET_BY_MHNB,
    ClusterSpec,
    check_counts,
    check_initialize,
    diff_options,
    format_options_mismatch,
    parse_hosts_argument,
)
from mhnb.core.launch.hosts import HostName, parse_hosts
from mhnb.core.ranks import pluralize
from mhnb.errors import AlreadyStarted, InvalidRequest
from mhnb.launchers.profiles import KINDS, Profile, is_path, load_profile, ranks_per_host, read_hostfile
from mhnb.system.processes import require_gpus
from mhnb.system.run_dir import check_name, expand_user

START_TIMEOUT_S = 120.0
_HOST_TIMEOUT_S = 20.0


# -- type checks for the arguments of a start


class _Rule(NamedTuple):
    is_valid: Callable[[Any], bool]
    expected: str


def _is_optional_int(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike)


def _is_optional_mapping(value: object) -> bool:
    return value is None or (isinstance(value, Mapping) and all(isinstance(name, str) for name in value))


_COUNT = _Rule(_is_optional_int, "a whole number")
_SWITCH = _Rule(lambda value: isinstance(value, bool), "True or False")
_RULE_OF_TYPE: dict[str, _Rule] = {
    "bool": _SWITCH,
    "float": _Rule(is_positive_seconds, "a number of seconds above 0"),
    "str": _Rule(lambda value: isinstance(value, str), "a string"),
}
"""Rules for the fields of `StartOptions` that have no rule of their own below, by type."""

_RULES: dict[str, _Rule] = {
    "devices": _COUNT,
    "init": _SWITCH,
    "initialize": _Rule(
        _is_optional_mapping,
        "the arguments of jax.distributed.initialize by name, such as {'heartbeat_timeout_seconds': 30}",
    ),
    "name": _Rule(lambda value: isinstance(value, str), "a string of letters, digits, - and _"),
    "on_progress": _Rule(lambda value: value is None or callable(value), "a function of one argument"),
    "profile": _Rule(
        lambda value: value is None or _is_path(value), "the name of a profile, such as 'ssh', or its folder"
    ),
    "ranks": _COUNT,
    "ranks_per_host": _COUNT,
    "sync": _Rule(_is_path, "a folder on this machine"),
}  # fmt: skip


def check_argument(name: str, value: object, type_name: str = "") -> None:
    """Check a start argument's type, before it causes an unrelated error.

    Raises:
        InvalidRequest: it has a wrong type.

    >>> check_argument("keep", True, "bool")
    """
    rule = _RULES.get(name) or _RULE_OF_TYPE[type_name]
    if not rule.is_valid(value):
        kind = "" if type_name == "float" and isinstance(value, int | float) else f", got {type(value).__name__}"
        raise InvalidRequest(f"{name}={value!r:.80}: expected {rule.expected}{kind}")


# -- the options, and what a start asks for


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options of a start, beyond the cluster spec.

    Raises:
        InvalidRequest: a value is invalid, or two options are incompatible.
    """

    name: str = "default"
    start_timeout_s: float = START_TIMEOUT_S
    keep: bool = False
    guard: Guard = "lockstep"
    fork: bool = sys.platform == "linux"
    standby: bool = False
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

    def __post_init__(self) -> None:
        for part in fields(self):
            if part.name not in ("guard", "reach"):
                check_argument(part.name, getattr(self, part.name), str(part.type))
        check_name(self.name)
        # The class is frozen; the name that describes a cluster, and is compared, is always the same.
        object.__setattr__(self, "guard", check_guard(self.guard))
        if self.keep and self.standby:
            raise InvalidRequest(
                "--keep cannot be combined with --standby: standby ranks stop when the notebook closes"
            )


OPTION_NAMES = frozenset(part.name for part in fields(StartOptions)) - {"name", "reach"}
"""Options that are not settings of a profile."""
_NOT_COMPARED = ("connection", "name", "start_timeout_s")
"""Arguments that a start may have, and that are not asked of the running cluster of its name."""
ARGUMENT_NAMES = (
    *("hosts", "devices", "name", "ranks_per_host", "init", "initialize", "profile", "ranks"),
    *sorted(OPTION_NAMES),
)
"""Arguments of a start that are not settings of a profile."""
_SHAPE_ARGUMENTS = frozenset(ARGUMENT_NAMES) - OPTION_NAMES - {"name"}
_DEFAULT_ARGUMENTS = {"init": True, "initialize": {}}
"""Of other arguments, None is the default."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Requested start: the arguments of `mhnb.start`, resolved with the profile.

    Raises:
        InvalidRequest: an option is incompatible with an argument of jax.distributed.initialize.
    """

    shape: ClusterSpec
    options: StartOptions
    profile: Profile
    """How the hosts are reached, with the settings of `options`."""
    given: tuple[str, ...] = ()
    """Names of the arguments that were given and describe a cluster. The others have their defaults, and are not compared."""

    def __post_init__(self) -> None:
        initialize = self.shape.initialize
        fixed = sorted({"coordinator_address", "coordinator_bind_address"} & set(initialize))
        if self.options.standby and fixed:
            raise InvalidRequest(
                f"--standby cannot be combined with {fixed[0]}={initialize[fixed[0]]!r}: standby ranks need an address of their own"
            )

    @property
    def names_shape(self) -> bool:
        """Whether the start gives a shape, hosts or a profile."""
        return any(name not in OPTION_NAMES for name in self.given)


def check_detachable(options: StartOptions) -> None:
    """Check that the cluster can be detached.

    Raises:
        InvalidRequest: it was started without `keep`.
    """
    if not options.keep:
        raise InvalidRequest(
            f"cannot detach: cluster {options.name!r} was started without --keep, so it stops with this notebook\n"
            "  Fix: %mhjax stop, then %mhjax start --keep"
        )


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """Return a folder that can be copied to hosts.

    Raises:
        InvalidRequest: the folder does not exist.
    """
    path = expand_user(folder, "sync").resolve()
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise InvalidRequest(f"sync {folder}: {path} {what}; expected a folder on this machine, such as . or src")
    return path


# -- resolve the arguments of a start


_DEFAULT_RANKS = 4
_DEFAULT_DEVICES = 2


def resolve_start(name: str = "default", **arguments: Any) -> StartRequest:
    """Resolve the arguments of `mhnb.start`, which command flags also become.

    Args:
        name: the cluster's.
        **arguments: of the spec, options, and settings of the profile. An option that is None was not given.

    Raises:
        InvalidRequest: a value is invalid, or values do not go together.

    >>> request = resolve_start(hosts=["a", "b"], keep=True, standby=None, user="me")
    >>> request.shape.describe(), request.given, request.options.reach
    ('2 hosts (a, b), profile ssh', ('hosts', 'keep', 'user'), {'user': 'me'})
    """
    settings = {key: value for key, value in arguments.items() if key not in ARGUMENT_NAMES}
    values = {key: value for key, value in arguments.items() if key in OPTION_NAMES and value is not None}
    options = StartOptions(name=name, **values, reach=settings)
    if options.sync:
        options = replace(options, sync=str(check_folder(options.sync)))
    counts = {key: value for key, value in arguments.items() if key in _SHAPE_ARGUMENTS}
    for key, value in counts.items():
        # `parse_hosts_argument` checks the hosts.
        if key != "hosts":
            check_argument(key, value)
    init, initialize = counts.pop("init", True), counts.pop("initialize", None)
    profile = _load_profile(counts.get("hosts"), counts.pop("profile", None), settings)
    shape = replace(_resolve_shape(profile, **counts), init=init, initialize=dict(initialize or {}))
    check_initialize(shape.initialize, shape.process_count)
    given = (
        key
        for key, value in arguments.items()
        if key not in _NOT_COMPARED and value is not None and value != _DEFAULT_ARGUMENTS.get(key)
    )
    return StartRequest(shape, options, profile, tuple(given))


def _resolve_shape(
    profile: Profile,
    *,
    hosts: int | Sequence[str] | None = None,
    devices: int | None = None,
    ranks: int | None = None,
    ranks_per_host: int | None = None,
) -> ClusterSpec:
    """Return the spec from these arguments, or from the profile where None.

    Args:
        hosts: number of hosts, or their names.
        ranks: number of all ranks, an alternative to the number of hosts.

    Raises:
        InvalidRequest: hosts that are neither a number nor names, or inconsistent numbers.
    """
    name, kind = profile.name, profile.kind
    count, machines = (None, ()) if hosts is None else parse_hosts_argument(hosts)
    machines, ranks_per_host = _find_machines(profile, machines, ranks_per_host)
    devices = _default_devices(profile, devices)
    if machines and kind not in ("mpi", "slurm", "ssh"):
        # Other kinds would silently ignore the names.
        raise InvalidRequest(
            f"--profile {name} does not accept host names, got {', '.join(machines)}; use --profile ssh"
        )
    per_host = ranks_per_host
    if per_host is None and not (machines and ranks is not None):
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
        ranks_per_host=per_host,
        profile=str(profile.folder) if is_path(name) else name,
        machines=machines,
        kind="" if kind == name else kind,
    )
    check_counts(shape)
    return shape


def check_same_options(name: str, running: StartOptions, profile: Profile, request: StartRequest) -> None:
    """Check that a running cluster has the options that a start gave.

    Args:
        name: the cluster's.
        running: its options.
        profile: its profile.
        request: the present start, for the same spec.

    Raises:
        AlreadyStarted: an option differs; the message names it.
    """
    wanted = {key: getattr(request.options, key) for key in request.given if key in OPTION_NAMES}
    running_values: dict[str, Any] = {key: getattr(running, key) for key in wanted}
    for key in request.options.reach:
        # As the profile reads them: a port that was typed is a text.
        running_values[key] = getattr(profile.settings, key)
        wanted[key] = getattr(request.profile.settings, key)
    if differing := diff_options(running_values, wanted):
        raise AlreadyStarted(format_options_mismatch(name, differing), name=name)


def _load_profile(
    hosts: int | Sequence[str] | None, profile_name: str | os.PathLike[str] | None, settings: Mapping[str, Any]
) -> Profile:
    """Load the named profile, or ssh for named hosts, or local.

    Raises:
        InvalidRequest: hosts that are neither a number nor names, or an option that neither mhnb nor the profile has.
    """
    default = "ssh" if hosts is not None and parse_hosts_argument(hosts)[1] else "local"
    name = default if profile_name is None else str(profile_name)
    profile = load_profile(name)
    known = profile.settings.class_trait_names(config=True)
    if unknown := sorted(set(settings) - set(known)):
        raise InvalidRequest(
            f"start: {_describe_unknown_option(unknown[0], settings[unknown[0]], name, sorted(known))}"
        )
    return profile.with_settings(settings)


def _describe_unknown_option(option: str, value: object, profile: str, known: Sequence[str]) -> str:
    """Describe where an unknown option belongs: JAX's start, or another profile."""
    if option in SET_BY_MHNB:
        return f"{option!r} is an argument of jax.distributed.initialize that mhnb sets itself; leave it out"
    if option in INITIALIZE_FLAGS:
        return (
            f"{option!r} is an argument of jax.distributed.initialize\n"
            f"  Fix: initialize={{{option!r}: {value!r:.80}}}\n"
            f"  Or: %mhjax start --{option.replace('_', '-')} {shlex.quote(f'{value!s:.80}')}"
        )
    kinds = [kind for kind, cls in sorted(KINDS.items()) if cls.class_traits(config=True).get(option) is not None]
    if kinds:
        # Of several kinds, name the most widely used.
        suggested = "ssh" if "ssh" in kinds else kinds[0]
        return (
            f"{option!r} is a setting of profile {' or '.join(kinds)}, not of {profile}\n  Fix: --profile {suggested}"
        )
    return format_unknown("option", option, (*ARGUMENT_NAMES, *known))


def _find_machines(
    profile: Profile, named: tuple[str, ...], per_host: int | None
) -> tuple[tuple[str, ...], int | None]:
    """Return machines and ranks per host, from this start or the profile."""
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


def _default_ranks(profile: Profile, per_host: int | None) -> tuple[int, int | None]:
    """Return the default number of ranks, and the ranks per host.

    Raises:
        LaunchError: the default is the number of GPUs, and this machine has no GPU.
    """
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
            f"-n {ranks} does not fit: {pluralize(hosts, 'host')} with {pluralize(per_host, 'rank')} each need -n {hosts * per_host}; "
            "change -n or --per-host"
        )
    return hosts, per_host
