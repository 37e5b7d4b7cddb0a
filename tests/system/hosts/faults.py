"""Run `mhnb doctor` on the machines, and simulate faults of one machine that end with the test, without a restart."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mhnb.cli.main import main
from tests.system.hosts.hostnet import Host, HostNet

__all__ = [
    "run_doctor",
    "blocked_ports",
    "replaced_file",
    "jax_metadata",
    "loopback_hosts",
    "make_python",
    "emptied_folder",
]


def run_doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    """Run `mhnb doctor`; return its exit code and its lines, the first without the time that the preflight checks took."""
    code = main(["doctor", *words])
    captured = capsys.readouterr()
    assert captured.out, captured.err
    lines = captured.out.splitlines()
    heading, _, cost = lines[0].rpartition(" · ")
    assert cost.endswith("s"), lines[0]
    return code, [heading, *lines[1:]]


@contextmanager
def replaced_file(host: Host, path: Path | str, text: str) -> Iterator[None]:
    """Replace the text of a file on this machine only."""
    host.replace_file(path, text)
    try:
        yield
    finally:
        host.run("umount", "--lazy", path)


@contextmanager
def emptied_folder(host: Host, folder: Path) -> Iterator[None]:
    """Make a folder empty on this machine only."""
    host.mount_disk(folder, nbytes=4096)
    try:
        yield
    finally:
        host.run("umount", "--lazy", folder)


@contextmanager
def blocked_ports(host: Host, ports: int | str) -> Iterator[None]:
    """Block connections from outside to these ports by a firewall on this machine."""
    host.block_port(ports, "reject")
    try:
        yield
    finally:
        host.heal()


def make_python(folder: Path, python: str) -> Path:
    """Make an interpreter in a folder of its own, so that it can be missing on one machine."""
    path = folder / "bin" / "python"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    path.chmod(0o755)
    return path


def jax_metadata(version: str) -> tuple[Path, str]:
    """Return the path of jax's metadata, and its text with another version."""
    distribution = importlib.metadata.distribution("jax")
    path = Path(str(distribution.locate_file(f"jax-{distribution.version}.dist-info/METADATA")))
    return path, path.read_text().replace(f"Version: {distribution.version}", f"Version: {version}", 1)


def loopback_hosts(net: HostNet, host: Host) -> str:
    """Return an /etc/hosts in which a machine's own name is loopback, as Debian writes it."""
    return net.hosts_file(own=(host.name, "127.0.1.1"))
