"""The flags that name machines and say how to log in, the same for every verb and in the shell."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from mhnb.core.hosts import HostName
from mhnb.core.ssh import SshOptions
from mhnb.errors import InvalidRequest
from mhnb.launch.hostfile import read_hostfile, read_hosts, slots_of

__all__ = [
    "add_doctor_flags",
    "add_host_flags",
    "check_login_files",
    "read_host_flags",
    "read_named_hosts",
    "read_per_host",
    "read_variables",
    "split_setting",
]

_NUMBERS = ("connect_timeout_s", "port")


def add_host_flags(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    add = parser.add_argument
    add("--hosts", metavar="HOSTS", help="machines over ssh: a,b,c or me@a:22 or name[1-4]; @FILE: a host file")
    add("--hostfile", metavar="FILE", help="a file that names them, one a line")
    add("--per-host", type=int, metavar="P", help="ranks per machine (1)")
    add("--user", metavar="NAME", help="who logs in there")
    add("--port", "--ssh-port", dest="ssh_port", type=int, metavar="PORT", help="where sshd listens there")
    add("--key", metavar="FILE", help="private key for the login")
    add("--ssh-config", metavar="FILE", help="an ssh config instead of ~/.ssh/config")
    add("--ssh-option", action="append", default=[], metavar="NAME=VALUE", help="more for ssh, like ProxyJump=gate")
    add("--connect-timeout", type=int, default=10, metavar="SECONDS", help="limit for each login (10)")
    add("--python", metavar="FILE", help="the Python there (the one here)")
    add("--venv", metavar="DIR", help="a virtual environment there")
    add("--conda", metavar="NAME", help="a conda environment there")
    add("--setup", metavar="LINE", help="a line of shell to run there first, like 'module load cuda'")
    add("--cwd", metavar="DIR", help="the folder there to run in (home)")
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for there; alone: with its value here",
    )
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="any setting of the ssh profile")
    add("--address", metavar="NAME", help="this machine's name or address as the hosts are to use it")


def add_doctor_flags(parser: argparse.ArgumentParser) -> None:
    """Declare those of `doctor`."""
    add_host_flags(parser)
    parser.add_argument("--devices", type=int, metavar="D", help="simulated CPU devices per rank; else what is there")
    parser.add_argument(
        "--coordinator-port", type=int, default=0, metavar="PORT", help="for JAX's coordinator (a free one)"
    )


def read_host_flags(
    args: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> tuple[tuple[HostName, ...], SshOptions]:
    """Read the machines and how to log in; no machines where `--hosts` was not given.

    Raises:
        InvalidRequest: a machine, an option or a variable that cannot be.
    """
    check_login_files(args.key, args.ssh_config)
    options = SshOptions(
        user=args.user,
        port=args.ssh_port,
        key_file=args.key,
        config_file=args.ssh_config,
        extra=tuple(args.ssh_option),
        python=args.python,
        venv=args.venv,
        conda=args.conda,
        setup=args.setup,
        cwd=args.cwd,
        environment=read_variables(args.env, environment),
        connect_timeout_s=args.connect_timeout,
    )
    return read_named_hosts(args) or (), replace(options, **_read_settings(args.set))


def read_named_hosts(args: argparse.Namespace) -> tuple[HostName, ...] | None:
    """Read the machines of `--hosts` or `--hostfile`; None where neither was given.

    Raises:
        InvalidRequest: both, a machine that cannot be, or a file that cannot be read.
    """
    if args.hosts is not None and args.hostfile is not None:
        raise InvalidRequest(
            f"--hosts {args.hosts} and --hostfile {args.hostfile}: give the one that names the machines"
        )
    if args.hosts is not None:
        return read_hosts(args.hosts)
    return None if args.hostfile is None else read_hostfile(args.hostfile)


def read_variables(texts: Sequence[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Read what `--env` was given, again and again.

    Raises:
        InvalidRequest: a name alone that is no variable here.
    """
    return dict(_variable(text, environment) for text in texts)


def check_login_files(key: str | None, config: str | None) -> None:
    """Refuse files that are not there: ssh only warns of a missing key, and then tries others.

    Raises:
        InvalidRequest: naming the flag and the file.
    """
    for flag, name in (("--key", key), ("--ssh-config", config)):
        # "none" is a word of ssh's own for no config.
        if name is not None and name != "none" and not Path(name).expanduser().exists():
            raise InvalidRequest(f"{flag} {name}: there is no such file on this machine")


def split_setting(text: str) -> tuple[str, str]:
    """Split what `--set` was given.

    Raises:
        InvalidRequest: no name, or no value.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidRequest(
            f"--set {text}: write NAME=VALUE, like --set partition=debug; mhnb profile show NAME lists a profile's settings"
        )
    return name, value


def _read_settings(texts: Sequence[str]) -> dict[str, Any]:
    known = {part.name for part in fields(SshOptions)} - {"environment"}
    found: dict[str, Any] = {}
    for text in texts:
        name, value = split_setting(text)
        if name not in known:
            raise InvalidRequest(f"--set {text}: there is no such setting; there are {', '.join(sorted(known))}")
        if name in _NUMBERS and not value.isdecimal():
            raise InvalidRequest(f"--set {text}: give a whole number")
        found[name] = (*found.get(name, ()), value) if name == "extra" else int(value) if name in _NUMBERS else value
    return found


def read_per_host(args: argparse.Namespace, hosts: Sequence[HostName]) -> int:
    """Give the ranks per machine: of --per-host, else of a host file's slots.

    Raises:
        InvalidRequest: slots that differ.
    """
    if args.per_host is not None:
        return int(args.per_host)
    return slots_of(hosts) or 1


def _variable(text: str, environment: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals and name not in environment:
        raise InvalidRequest(f"--env {name}: there is no such variable here; write --env {name}=VALUE")
    return name, value if equals else environment[name]
