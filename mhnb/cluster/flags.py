"""argparse flags of `%mhjax start`, `mhnb run` and `doctor` for the number of ranks, the hosts, and how they are reached.

A flag that is not given is left to the profile. Settings of a profile that have no flag of their own are given by `--set`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mhnb.core.arguments import int_argument
from mhnb.core.launch.hosts import HostName
from mhnb.errors import InvalidRequest
from mhnb.launchers.profiles import ranks_per_host, read_hostfile, read_hosts

_SETTING_FLAGS = {
    "--user": ("user", "NAME", "ssh: whom to log in as"),
    "--port/--ssh-port": ("port", "PORT", "ssh: the port of sshd"),
    "--key": ("key_file", "FILE", "ssh: a private key to log in with"),
    "--ssh-config": ("config_file", "FILE", "ssh: a config instead of ~/.ssh/config"),
    "--connect-timeout": (
        "connect_timeout_s",
        "SECONDS",
        "ssh: limit for each login (10)",
    ),
    "--setup": ("setup", "LINE", "a line of shell to run there first, like 'module load cuda'"),
    "--python": ("python", "PATH", "the interpreter on the hosts"),
    "--venv": ("venv", "FOLDER", "a virtual environment on the hosts"),
    "--conda": ("conda", "NAME", "a conda environment on the hosts"),
    "--cwd": ("cwd", "FOLDER", "the folder to run in on the hosts"),
    "--partition": ("partition", "NAME", "Slurm: which partition"),
    "--account": ("account", "NAME", "Slurm: whose budget"),
    "--time": ("time", "LIMIT", "Slurm: limit of the job, as 30 (minutes), 2:00:00, 1-12"),
    "--nodes": ("nodes", "N", "Slurm: machines to spread the ranks over"),
}
"""Flags for the most common settings: the setting, the placeholder of the flag's value, help."""


_FLAG_OF_SETTING = {
    "devices": "--devices",
    "hostfile": "--hostfile",
    "hosts": "--hosts",
    "ranks_per_host": "--per-host",
}


def add_start_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the number of ranks, the hosts, and how they are reached."""
    parser.add_argument("-n", type=int_argument, metavar="N", help="ranks; on this machine a process each (4)")
    parser.add_argument(
        "--devices", type=int_argument, metavar="D", help="simulated CPU devices per rank (2 on this machine)"
    )
    parser.add_argument("--profile", metavar="NAME", help="how hosts are reached: local, ssh, slurm, ..., or a folder")
    parser.add_argument("--hosts", metavar="NAMES", help="machines: a,b,node[01-16],me@c:2222; @FILE: a host file")
    parser.add_argument("--hostfile", metavar="FILE", help="a file that names them, one a line")
    parser.add_argument("--per-host", type=int_argument, metavar="P", help="ranks on each host (1)")
    for flag, (setting, value, about) in _SETTING_FLAGS.items():
        parser.add_argument(*flag.split("/"), dest=f"set_{setting}", metavar=value, help=about)
    parser.add_argument("--ssh-option", action="append", default=[], metavar="NAME=VALUE", help="ssh: ProxyJump=gate")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]", help="a variable there; alone: its value here"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="any setting of the profile, again and again"
    )
    parser.add_argument("--address", metavar="ADDRESS", help="the address of this machine that the hosts are to reach")
    parser.add_argument("--sync", metavar="FOLDER", help="a folder of this machine to bring to every host first")
    parser.add_argument("--no-encrypt", action="store_true", help="send what travels between machines as it is")


def add_doctor_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `doctor`; its hosts are given as for a start."""
    add_start_flags(parser)
    parser.add_argument(
        "--coordinator-port", type=int_argument, default=0, metavar="PORT", help="for JAX's coordinator (a free one)"
    )


def start_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return arguments of `mhnb.start` from those flags.

    Raises:
        InvalidRequest: incompatible flags, invalid names, or a --set without a name or a value.
    """
    from mhnb.cluster.options import format_host_names

    _check_login_files(args.set_key_file, args.set_config_file)
    options: dict[str, Any] = {"profile": args.profile, "ranks": args.n}
    hosts, per_host = _read_named_hosts(args), args.per_host
    if hosts is not None:
        options |= {"hosts": list(format_host_names(hosts))}
        per_host = per_host if per_host is not None else ranks_per_host(hosts)
    optional_values = {"devices": args.devices, "ranks_per_host": per_host, "address": args.address or ""}
    options |= {name: value for name, value in optional_values.items() if value not in (None, "")}
    if args.no_encrypt:
        options["encrypt"] = False
    if args.sync is not None:
        options["sync"] = args.sync
    return {name: value for name, value in options.items() if value is not None} | _profile_settings(args)


def _profile_settings(args: argparse.Namespace) -> dict[str, Any]:
    from mhnb.launchers.profiles import KINDS

    found: dict[str, Any] = {}
    for setting, _, _ in _SETTING_FLAGS.values():
        if (value := getattr(args, f"set_{setting}")) is not None:
            found[setting] = value
    if args.env:
        found["environment"] = _read_variables(args.env, os.environ)
    if args.ssh_option:
        # Other kinds have an `extra` too, which means something else.
        if args.profile in set(KINDS) - {"ssh"}:
            raise InvalidRequest(
                f"--ssh-option {args.ssh_option[0]}: for machines over ssh, and --profile {args.profile} is another way"
            )
        found["extra"] = list(args.ssh_option)
    values_by_name: dict[str, list[str]] = {}
    for text in args.set:
        name, value = _split_setting(text)
        if name in _FLAG_OF_SETTING:
            raise InvalidRequest(f"--set {text}: {name} has a flag of its own: {_FLAG_OF_SETTING[name]} {value}")
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
            f"--hosts {args.hosts} and --hostfile {args.hostfile}: give the one that names the machines"
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
    """Check that the files exist, because ssh only warns of a missing key, and then tries others.

    Raises:
        InvalidRequest: a file does not exist; the message has the flag and the file.
    """
    for flag, name in (("--key", key), ("--ssh-config", config)):
        # "none" is a keyword of ssh for no config.
        if name is not None and name != "none" and not Path(name).expanduser().exists():
            raise InvalidRequest(f"{flag} {name}: there is no such file on this machine")


def _split_setting(text: str) -> tuple[str, str]:
    """Split a value of `--set`.

    Raises:
        InvalidRequest: no name, or no value.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidRequest(
            f"--set {text}: write NAME=VALUE, like --set partition=debug; mhnb profile show NAME lists a profile's settings"
        )
    return name, value


def _parse_variable(text: str, environment: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals and name not in environment:
        raise InvalidRequest(f"--env {name}: there is no such variable here; write --env {name}=VALUE")
    return name, value if equals else environment[name]
