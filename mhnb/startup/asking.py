"""What a start was asked for, put together from its arguments and its profile: how many ranks, on how many hosts, which machines."""

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
"""Options that say nothing of a cluster that is there."""
_OF_START = ("hosts", "devices", "name", "ranks_per_host")
"""What a start is given by position or by name, and no option."""
_OF_SHAPE = ("init", "initialize", "profile", "ranks")
_RANKS = 4
_DEVICES = 2


def take_shape(
    hosts: int | Sequence[str] | None, devices: int | None, ranks_per_host: int | None, options: dict[str, Any]
) -> Shape:
    """Make the shape of what `start` was asked for, and take what belongs to it out of the options.

    Args:
        hosts: how many, or their names; None: what the profile says.
        devices: None: what the profile says.
        ranks_per_host: None: what the profile says.
        options: of `start`; `ranks` is the number of all ranks, another way to say how many hosts there are.

    Raises:
        InvalidRequest: hosts that are neither a number nor names, numbers that do not go together, an option that there is not.

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
        # The others would leave the names unused without a word.
        raise InvalidRequest(f"--profile {name} takes no names of machines, and got {', '.join(machines)}; ssh does")
    each = ranks_per_host
    if each is None and profile is not None and not (machines and ranks is not None):
        each = profile.settings.ranks_per_host
    if ranks is None and count is None and not machines:
        ranks, each = _usual(profile, each)
    hosts_count, each = _split(ranks, len(machines) if machines else count, each)
    if kind == "gpu":
        # All on this machine: it is one host.
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
    """Give the shape of a start that is asked for nothing."""
    return take_shape(None, None, None, {})


def check_alike(name: str, shape: Shape, running: StartOptions, asked: Mapping[str, Any]) -> None:
    """Refuse to go on with a cluster that was started with other options than are asked for.

    Args:
        name: the cluster's.
        shape: its shape, which is the one asked for.
        running: its options.
        asked: options that were given, after `take_shape`; what is not given asks for nothing.

    Raises:
        AlreadyStarted: an option differs; the message says which.
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
    """Read the profile; None for several supervisors on this machine, which have none.

    Raises:
        InvalidRequest: an option that is neither ours nor the profile's.
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
    """Say where an option belongs: among the arguments of JAX's own start, or to a profile, as --profile was forgotten."""
    if option in INITIALIZE_ARGUMENTS:
        return (
            f"\n  {option} is an argument of jax.distributed.initialize: initialize={{{option!r}: {value!r:.80}}};"
            f" of %mhjax start: --{option.replace('_', '-')} {shlex.quote(f'{value!s:.80}')}"
        )
    kinds = [kind for kind, cls in sorted(KINDS.items()) if cls.class_traits(config=True).get(option) is not None]
    if kinds:
        # Of several the one that most people have.
        return f"\n  {option} is a setting of the profile {' or '.join(kinds)}: --profile {'ssh' if 'ssh' in kinds else kinds[0]}"
    near = nearest(option, (*_OF_START, *OPTION_NAMES, *_OF_SHAPE))
    return f"\n  did you mean {near}?" if near else ""


def _machines(profile: Profile, named: tuple[str, ...], each: int | None) -> tuple[tuple[str, ...], int | None]:
    """Give the machines, by name in this start or in the profile, and how many ranks a host file gives each."""
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
    """Give the names as a Shape has them."""
    return tuple(str(host) for host in hosts)


def _devices(profile: Profile, devices: int | None) -> int | None:
    if devices is None:
        devices = profile.settings.devices
    return _DEVICES if devices is None and profile.kind == "local" else devices


def _usual(profile: Profile | None, each: int | None) -> tuple[int, int | None]:
    """Give the number of ranks where nobody has said one.

    Raises:
        LaunchError: it is that of the GPUs, and there are none.
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
    """Give the hosts and the ranks of each.

    Raises:
        InvalidRequest: the numbers do not go together.

    >>> _split(8, None, 2), _split(8, 4, None), _split(None, 4, 2)
    ((4, 2), (4, 2), (4, 2))
    """
    if ranks is not None and ranks < 1:
        # What cannot be is refused as a shape, with all else, by its own value.
        return ranks, 1
    if ranks is None:
        return _RANKS if hosts is None else hosts, 1 if each is None else each
    if hosts is None:
        each = 1 if each is None else each
        hosts = ranks // each if each > 0 else ranks
    if each is None:
        # Fewer ranks than hosts are refused below, in words of their own.
        each = max(1, ranks // hosts) if hosts > 0 else 1
    if each > 0 and hosts * each != ranks:
        raise InvalidRequest(
            f"-n {ranks} ranks cannot be {hosts} hosts with the same number of ranks each"
            + (f", {each} a host" if each else "")
            + "; give another -n, or --per-host alone"
        )
    return hosts, each
