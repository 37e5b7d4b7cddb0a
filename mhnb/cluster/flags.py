"""argparse flags of `%mhjax start`, `mhnb run`, `doctor`, a restart and `fit`.

A flag whose `dest` is an argument of `mhnb.start` is passed on as it is; one that is not given is left to the profile.
Settings of a profile that have no flag of their own are given by `--set`.
"""

from __future__ import annotations

import argparse
import ast
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mhnb.core.arguments import int_argument
from mhnb.core.cluster_spec import INITIALIZE_FLAGS, SET_BY_MHNB
from mhnb.core.launch.hosts import HostName
from mhnb.core.shorthand import merge_values, shape_argument
from mhnb.errors import InvalidRequest
from mhnb.launchers.profiles import ranks_per_host, read_hostfile, read_hosts
from mhnb.system.run_dir import expand_user

SHAPE, SSH, SLURM = "shape", "hosts over ssh", "Slurm"
ENVIRONMENT, CLUSTER = "environment on the hosts", "this cluster"
INITIALIZE, ADVANCED = "jax.distributed.initialize", "advanced"
GROUPS = (SHAPE, SSH, SLURM, ENVIRONMENT, CLUSTER, INITIALIZE, ADVANCED)
"""The groups of the flags of a start, in the order of its help."""

_SETTING_FLAGS = {
    "--user": ("user", SSH, "NAME", "user name on the hosts (default: as ssh is configured)"),
    "--ssh-port/--port": ("port", SSH, "PORT", "ssh port (default: 22, or as ssh is configured)"),
    "--key": ("key_file", SSH, "FILE", "private key for the login"),
    "--ssh-config": ("config_file", SSH, "FILE", "ssh configuration (default: ~/.ssh/config)"),
    "--connect-timeout": ("connect_timeout_s", SSH, "SECONDS", "limit for each login (default: 10)"),
    "--partition": ("partition", SLURM, "NAME", "partition of the job (default: the site's)"),
    "--account": ("account", SLURM, "NAME", "Slurm account to charge"),
    "--time": ("time", SLURM, "LIMIT", "time limit of the job, for example 30 (minutes), 2:00:00 or 1-12"),
    "--nodes": ("nodes", SLURM, "N", "number of machines for the ranks"),
    "--gpus-per-rank": ("gpus_per_rank", SLURM, "N", "GPUs for each rank"),
    "--mem": ("memory", SLURM, "SIZE", "memory of each machine, for example 16G"),
    "--qos": ("qos", SLURM, "NAME", "quality of service"),
    "--constraint": ("constraint", SLURM, "FEATURES", "features that the machines must have, for example a100"),
    "--python": ("python", ENVIRONMENT, "PATH", "Python interpreter on the hosts"),
    "--venv": ("venv", ENVIRONMENT, "FOLDER", "virtual environment on the hosts"),
    "--conda": ("conda", ENVIRONMENT, "NAME", "conda environment on the hosts"),
    "--setup": (
        "setup",
        ENVIRONMENT,
        "LINE",
        "shell command to run first on each host, for example 'module load cuda'",
    ),
    "--cwd": ("cwd", ENVIRONMENT, "FOLDER", "working directory on the hosts"),
}
"""Flags for the most common settings: the setting, the group, the placeholder of the flag's value, help."""


_FLAG_OF_SETTING = {
    "devices": "--devices",
    "hostfile": "--hostfile",
    "hosts": "--hosts",
    "ranks_per_host": "--per-host",
}


def flag_group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Return the parser's flag group with this title; create a missing one."""
    # argparse has no public list of a parser's groups.
    existing = (group for group in parser._action_groups if group.title == title)  # noqa: SLF001
    return next(existing, None) or parser.add_argument_group(title)


def add_start_flags(parser: argparse.ArgumentParser) -> None:
    """Add grouped flags for ranks, hosts, and how they are reached."""
    for title in (SHAPE, SSH, SLURM, ENVIRONMENT):
        flag_group(parser, title)
    _add_shape_flags(flag_group(parser, SHAPE))
    ssh = flag_group(parser, SSH)
    ssh.add_argument(
        "--hosts", metavar="NAMES", help="host names, for example a,b,node[01-16],me@c:2222; @FILE reads a host file"
    )
    ssh.add_argument("--hostfile", metavar="FILE", help="file with one host name per line")
    for flag, (setting, group, value, about) in _SETTING_FLAGS.items():
        flag_group(parser, group).add_argument(*flag.split("/"), dest=f"set_{setting}", metavar=value, help=about)
    ssh.add_argument(
        "--ssh-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="ssh option, for example ProxyJump=gate (repeatable)",
    )
    environment = flag_group(parser, ENVIRONMENT)
    environment.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set NAME on every host; without =VALUE, copy the notebook's value (repeatable)",
    )
    environment.add_argument("--sync", metavar="FOLDER", help="copy this folder to every host before the first cell")
    _add_advanced_flags(flag_group(parser, ADVANCED))


def _add_shape_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-n", dest="ranks", type=int_argument, metavar="N", help="number of ranks (default: 4)")
    group.add_argument(
        "--devices", type=int_argument, metavar="D", help="simulated CPU devices per rank (default: 2 on this machine)"
    )
    group.add_argument(
        "--per-host", dest="ranks_per_host", type=int_argument, metavar="P", help="ranks per host (default: 1)"
    )
    group.add_argument(
        "--profile",
        metavar="NAME",
        help="how to reach the hosts: local, gpu, ssh, slurm, mpi, tpu, kubernetes, or the folder of a profile "
        "(default: ssh with --hosts, else local)",
    )


def _add_advanced_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override a profile setting (repeatable); mhnb profile show NAME lists them",
    )
    group.add_argument("--address", metavar="ADDRESS", help="address of this machine that the hosts can reach")
    group.add_argument(
        "--no-encrypt",
        dest="encrypt",
        action="store_false",
        default=None,
        help="do not encrypt traffic between machines",
    )


def add_doctor_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `doctor`, which include those for ranks and hosts."""
    add_start_flags(parser)
    flag_group(parser, ADVANCED).add_argument(
        "--coordinator-port",
        type=int_argument,
        default=0,
        metavar="PORT",
        help="port of JAX's coordinator to check (default: a free port)",
    )


def start_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments and settings for `mhnb.start` that were typed.

    Raises:
        InvalidRequest: incompatible flags, invalid names, or a --set without a name or a value.
    """
    from mhnb.cluster.options import ARGUMENT_NAMES, format_host_names

    _check_login_files(args.set_key_file, args.set_config_file)
    typed = {name: value for name in ARGUMENT_NAMES if (value := getattr(args, name, None)) is not None}
    if (hosts := _read_named_hosts(args)) is not None:
        typed["hosts"] = list(format_host_names(hosts))
        if "ranks_per_host" not in typed and (per_host := ranks_per_host(hosts)) is not None:
            typed["ranks_per_host"] = per_host
    return typed | _profile_settings(args)


def add_cluster_start_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of a start, also its shape and `initialize` arguments."""
    flag_group(parser, SHAPE).add_argument(
        "shape", nargs="?", type=shape_argument, metavar="N|NxD", help="ranks, or ranks x devices per rank: 4, or 4x2"
    )
    add_start_flags(parser)
    initialize = flag_group(parser, INITIALIZE)
    initialize.add_argument(
        "--no-init",
        dest="init",
        action="store_false",
        default=None,
        help="leave jax.distributed.initialize() to a cell",
    )
    initialize.add_argument(
        "--init",
        dest="init_values",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any argument that the ranks' JAX has (repeatable); mhnb sets num_processes and process_id",
    )
    for name in (*INITIALIZE_FLAGS, *SET_BY_MHNB):
        flag = f"--{name.replace('_', '-')}"
        about = argparse.SUPPRESS if name in SET_BY_MHNB else f"argument {name} of jax.distributed.initialize"
        initialize.add_argument(flag, metavar="VALUE", help=about)
        if flag != f"--{name}":
            initialize.add_argument(f"--{name}", dest=name, help=argparse.SUPPRESS)


def cluster_start_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return arguments of `mhnb.start` from the flags of `add_cluster_start_flags`.

    Raises:
        InvalidRequest: the shape contradicts a flag, or flags are invalid.
    """
    if args.shape is not None:
        typed = "x".join(str(number) for number in args.shape if number is not None)
        args.ranks = merge_values(args.shape.ranks, args.ranks, names=(f"start {typed}", f"-n {args.ranks}"))
        args.devices = merge_values(
            args.shape.devices, args.devices, names=(f"start {typed}", f"--devices {args.devices}")
        )
    named = ((name, getattr(args, name)) for name in (*INITIALIZE_FLAGS, *SET_BY_MHNB))
    given = [*named, *(_split_setting("--init", text, _INIT_EXAMPLE) for text in args.init_values)]
    initialize = {name: _parse_literal(value) for name, value in given if value is not None}
    return {"initialize": initialize} | start_arguments(args)


def _parse_literal(text: str) -> Any:
    """Parse a value as a Python literal; otherwise return the text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _profile_settings(args: argparse.Namespace) -> dict[str, Any]:
    from mhnb.launchers.profiles import KINDS

    found: dict[str, Any] = {}
    for setting, *_ in _SETTING_FLAGS.values():
        if (value := getattr(args, f"set_{setting}")) is not None:
            found[setting] = value
    if args.env:
        found["environment"] = _read_variables(args.env, os.environ)
    if args.ssh_option:
        # Other kinds have an `extra` too, which means something else.
        if args.profile in set(KINDS) - {"ssh"}:
            raise InvalidRequest(
                f"--ssh-option {args.ssh_option[0]} works only with --profile ssh, but --profile {args.profile} was given"
            )
        found["extra"] = list(args.ssh_option)
    values_by_name: dict[str, list[str]] = {}
    for text in args.set:
        name, value = _split_setting("--set", text, _SET_EXAMPLE)
        if name in _FLAG_OF_SETTING:
            raise InvalidRequest(f"--set {text}: {name} has its own flag\n  Fix: {_FLAG_OF_SETTING[name]} {value}")
        values_by_name.setdefault(name, []).append(value)
    # A single value stays a text, which a list setting splits as a shell does. Repeated values form the list.
    return found | {name: values[0] if len(values) == 1 else values for name, values in values_by_name.items()}


def _read_named_hosts(args: argparse.Namespace) -> tuple[HostName, ...] | None:
    """Read the machines of `--hosts` or `--hostfile`; None if neither was given.

    Raises:
        InvalidRequest: both were given, a machine is invalid, or a file cannot be read.
    """
    if args.hosts is not None and args.hostfile is not None:
        raise InvalidRequest(
            f"--hosts {args.hosts} cannot be combined with --hostfile {args.hostfile}; give one of them"
        )
    if args.hosts is not None:
        return read_hosts(args.hosts)
    return None if args.hostfile is None else read_hostfile(args.hostfile)


def _read_variables(texts: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Parse the values of `--env`, which may be repeated.

    Raises:
        InvalidRequest: a name without a value is not a variable here.
    """
    return dict(_parse_variable(text, environment) for text in texts)


def _check_login_files(key: str | None, config: str | None) -> None:
    """Check that the files exist; ssh only warns of a missing key.

    Raises:
        InvalidRequest: a file does not exist; the message has the flag and the file.
    """
    for flag, name in (("--key", key), ("--ssh-config", config)):
        # "none" is a keyword of ssh for no config.
        if name is not None and name != "none" and not expand_user(name, flag).exists():
            raise InvalidRequest(f"{flag} {name}: this file does not exist on this machine")


_SET_EXAMPLE = """--set partition=debug
  Fix: mhnb profile show NAME (in a shell) lists the settings of a profile"""
_INIT_EXAMPLE = "--init heartbeat_timeout_seconds=30"


def _split_setting(flag: str, text: str, example: str) -> tuple[str, str]:
    """Split a value of `--set` or `--init`.

    Raises:
        InvalidRequest: no name, or no value.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidRequest(f"{flag} {text}: expected NAME=VALUE, for example {example}")
    return name, value


def _parse_variable(text: str, environment: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals and name not in environment:
        raise InvalidRequest(f"--env {name}: the notebook has no such environment variable\n  Fix: --env {name}=VALUE")
    return name, value if equals else environment[name]


def add_replay_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a restart."""
    parser.add_argument(
        "--replay",
        action="store_true",
        help="restore the variables: run the cells since the last start again, and repeat every push",
    )
    parser.add_argument("--to", metavar="CELL", help="with --replay: stop after this cell, such as In[7] or 7")
    parser.add_argument(
        "--this-generation", action="store_true", help="with --replay: only the cells that ran after the last restart"
    )


def add_machine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `fit`: for which machine, mesh or meshes."""
    parser.add_argument(
        "--on",
        required=True,
        metavar="MACHINE",
        help="machine: v5p:4x4x4, v5e:16x16*2 (slices), h100:8x8 (hosts x GPUs), cpu:4x2",
    )
    parser.add_argument(
        "--mesh",
        required=True,
        metavar="AXES",
        help="mesh over all its devices, for example 'data 16, model 4'; with --search, the names alone: 'data, model'",
    )
    parser.add_argument(
        "--search", action="store_true", help="compile for every way to divide the devices over the axes, and compare"
    )
