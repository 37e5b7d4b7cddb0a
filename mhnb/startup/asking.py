"""Resolve the arguments of a start and its profile into a cluster spec: how many ranks, on how many hosts, on which machines."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from mhnb.core.asked.misspelt import nearest
from mhnb.core.asked.otherwise import describe_otherwise, list_differences
from mhnb.core.asked.shape import INITIALIZE_ARGUMENTS, Shape, check_counts, parse_hosts_argument
from mhnb.core.reach.hosts import HostName, parse_hosts
from mhnb.errors import AlreadyStarted, InvalidRequest
from mhnb.launch.hostfile import read_hostfile, slots_of
from mhnb.launch.profile import Profile, is_path, load_profile
from mhnb.launch.settings import KINDS
from mhnb.startup.options import OPTION_NAMES, StartOptions, check_folder
from mhnb.system.gpus import find_gpus

__all__ = ["check_alike", "name_hosts", "take_shape", "usual_shape"]

_OF_NO_CLUSTER = ("connection", "start_timeout_s")
"""Options that do not describe an existing cluster."""
_OF_START = ("hosts", "devices", "name", "ranks_per_host")
"""Arguments of a start, given by position or by name, that are not options."""
_OF_SHAPE = ("init", "initialize", "profile", "ranks")
_RANKS = 4
_DEVICES = 2


def take_shape(
    hosts: int | Sequence[str] | None, devices: int | None, ranks_per_host: int | None, options: dict[str, Any]
) -> Shape:
    """Return the spec that the arguments of `start` describe, and remove what belongs to it from the options.

    Args:
        hosts: how many, or their names; None: what the profile says.
        devices: None: what the profile says.
        ranks_per_host: None: what the profile says.
        options: of `start`; `ranks` is the number of all ranks, an alternative to the number of hosts.

    Raises:
        InvalidRequest: hosts that are neither a number nor names, inconsistent numbers, or an unknown option.

    >>> take_shape(["a", "b"], None, 1, {"keep": True}).describe()
    '2 hosts (a, b), profile ssh'
    """
    count, machines = (None, ()) if hosts is None else parse_hosts_argument(hosts)
    ranks: int | None = options.pop("ranks", None)
    named = options.pop("profile", None)
    name = str(named) if named is not None else "ssh" if machines else "local"
    profile = _load(name, options)
    kind = "split" if profile is None else profile.kind
    if profile is not None:
        machines, ranks_per_host = _machines(profile, machines, ranks_per_host)
        devices = _devices(profile, devices)
    if machines and kind not in ("mpi", "slurm", "ssh"):
        # Other kinds would silently ignore the names.
        raise InvalidRequest(f"--profile {name} takes no names of machines, and got {', '.join(machines)}; ssh does")
    each = ranks_per_host
    if each is None and profile is not None and not (machines and ranks is not None):
        each = profile.settings.ranks_per_host
    if ranks is None and count is None and not machines:
        ranks, each = _usual(profile, each)
    hosts_count, each = _split(ranks, len(machines) if machines else count, each)
    if kind == "gpu":
        # All ranks are on this machine, which is one host.
        hosts_count, each = 1, hosts_count * each
    shape = Shape(
        hosts_count,
        devices,
        bool(options.pop("init", True)),
        dict(options.pop("initialize", None) or {}),
        ranks_per_host=each,
        profile=str(profile.folder) if profile is not None and is_path(name) else name,
        machines=machines,
        kind="" if kind == name else kind,
    )
    check_counts(shape)
    return shape


def usual_shape() -> Shape:
    """Return the spec of a start without arguments."""
    return take_shape(None, None, None, {})


def check_alike(name: str, shape: Shape, running: StartOptions, asked: Mapping[str, Any]) -> None:
    """Check that a running cluster was started with the requested options.

    Args:
        name: the cluster's.
        shape: its spec, which is also the requested one.
        running: its options.
        asked: options that were given, after `take_shape`; options that were not given are not compared.

    Raises:
        AlreadyStarted: an option differs; the message names it.
    """
    wanted = {key: value for key, value in asked.items() if key in OPTION_NAMES and key not in _OF_NO_CLUSTER}
    if wanted.get("sync"):
        wanted["sync"] = str(check_folder(wanted["sync"]))
    has: dict[str, Any] = {key: getattr(running, key) for key in wanted}
    reach = {key: value for key, value in asked.items() if key not in OPTION_NAMES}
    if reach and shape.profile != "split":
        # As the profile reads them: a port that was typed is a text.
        now = load_profile(shape.profile, running.reach).settings
        then = load_profile(shape.profile, {**running.reach, **reach}).settings
        has |= {key: getattr(now, key) for key in reach}
        wanted |= {key: getattr(then, key) for key in reach}
    if differing := list_differences(has, wanted):
        raise AlreadyStarted(describe_otherwise(name, differing), name=name)


def _load(name: str, options: Mapping[str, Any]) -> Profile | None:
    """Load the profile; None for several supervisors on this machine, which have no profile.

    Raises:
        InvalidRequest: an option that neither mhnb nor the profile has.
    """
    if name == "split":
        return None
    reach = {key: value for key, value in options.items() if key not in OPTION_NAMES and key not in _OF_SHAPE}
    known = load_profile(name).settings.class_trait_names(config=True)
    if unknown := sorted(set(reach) - set(known)):
        raise InvalidRequest(
            f"start: there is no option {', '.join(unknown)}; options are {', '.join(sorted({*OPTION_NAMES, *_OF_SHAPE}))}, "
            f"and of profile {name}: {', '.join(sorted(known))}{_say_where(unknown[0], options[unknown[0]])}"
        )
    return load_profile(name, reach)


def _say_where(option: str, value: object) -> str:
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
    near = nearest(option, (*_OF_START, *OPTION_NAMES, *_OF_SHAPE))
    return f"\n  did you mean {near}?" if near else ""


def _machines(profile: Profile, named: tuple[str, ...], each: int | None) -> tuple[tuple[str, ...], int | None]:
    """Return the machines, as named in this start or in the profile, and the number of ranks per host from a host file."""
    settings: Any = profile.settings
    if named or not settings.has_trait("hosts"):
        return named, each
    listed: tuple[HostName, ...] = ()
    if settings.hosts:
        listed = parse_hosts(settings.hosts)
    elif settings.hostfile:
        listed = read_hostfile(settings.hostfile)
    return name_hosts(listed), slots_of(listed) if each is None else each


def name_hosts(hosts: Sequence[HostName]) -> tuple[str, ...]:
    """Return the host names in the form that a `Shape` has."""
    return tuple(str(host) for host in hosts)


def _devices(profile: Profile, devices: int | None) -> int | None:
    if devices is None:
        devices = profile.settings.devices
    return _DEVICES if devices is None and profile.kind == "local" else devices


def _usual(profile: Profile | None, each: int | None) -> tuple[int, int | None]:
    """Return the default number of ranks, and the ranks per host.

    Raises:
        LaunchError: the default is the number of GPUs, and there are none.
    """
    if profile is None:
        return _RANKS * (each or 1), each
    if profile.count is not None:
        return profile.count, each
    if profile.kind == "gpu":
        settings: Any = profile.settings
        one = settings.process_per == "host"
        return (1 if one else len(find_gpus(os.environ))), None
    return _RANKS * (each or 1), each


def _split(ranks: int | None, hosts: int | None, each: int | None) -> tuple[int, int]:
    """Return the number of hosts, and of ranks per host.

    Raises:
        InvalidRequest: the numbers are inconsistent.

    >>> _split(8, None, 2), _split(8, 4, None), _split(None, 4, 2)
    ((4, 2), (4, 2), (4, 2))
    """
    if ranks is not None and ranks < 1:
        # `check_counts` reports invalid counts later, with all else, by their own values.
        return ranks, 1
    if ranks is None:
        return _RANKS if hosts is None else hosts, 1 if each is None else each
    if hosts is None:
        each = 1 if each is None else each
        hosts = ranks // each if each > 0 else ranks
    if each is None:
        # Fewer ranks than hosts are refused below, with their own message.
        each = max(1, ranks // hosts) if hosts > 0 else 1
    if each > 0 and hosts * each != ranks:
        raise InvalidRequest(
            f"-n {ranks} ranks cannot be {hosts} hosts with the same number of ranks each"
            + (f", {each} a host" if each else "")
            + "; give another -n, or --per-host alone"
        )
    return hosts, each
