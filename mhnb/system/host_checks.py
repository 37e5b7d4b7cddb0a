"""Preflight checks of one host: its facts, listening, and connecting.

`python -m mhnb.system.host_checks` answers requests, one JSON line each, until its standard input ends. The supervisor of a host
runs it as a child process before anything there imports JAX: a check may take seconds and uses threads, and the supervisor stays
responsive and single-threaded. The notebook uses the functions directly for its own machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import mmap
import os
import platform
import random
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mhnb.core.preflight_facts import Disk, Gpu, HostFacts
from mhnb.system.processes import query_gpus
from mhnb.system.run_dir import state_home

_PACKAGES = ("mhnb", "jax", "jaxlib", "ipyparallel", "ipykernel", "numpy")
_VARIABLES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy", "CUDA_VISIBLE_DEVICES")
_PREFIXES = ("JAX_", "XLA_", "TPU_", "NCCL_")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # only tested for whether ranks can write there
_TEST_WRITE_NBYTES = 1 << 20
_PORTS = range(20_000, 32_000)
"""Below the ports that the system assigns, so that a port found free stays free."""

CONNECT_S = 8.0
"""How long a connection is tried."""
CONNECTIONS_AT_ONCE = 64
"""How many connections a host tries at a time."""


# -- facts


def collect_facts(*, is_notebooks: bool) -> HostFacts:
    """Collect facts about this machine.

    Args:
        is_notebooks: whether the notebook runs here, so that its log folder is used here too.
    """
    hostname = socket.gethostname()
    addresses, error = _resolve(hostname)
    return HostFacts(
        hostname=hostname,
        python=platform.python_version(),
        executable=sys.executable,
        boot_id=_read("/proc/sys/kernel/random/boot_id"),
        versions={name: find_version(name) for name in _PACKAGES},
        name_addresses=addresses,
        name_error=error,
        disks=tuple(_disk(purpose, folder) for purpose, folder in _folders(is_notebooks=is_notebooks).items()),
        environment=_environment(),
        unknown_flags=tuple(_unknown_flags(os.environ.get("XLA_FLAGS", ""))),
        gpus=_gpus(),
        tpus=len(list(Path("/dev").glob("accel*"))),
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def find_version(name: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    if name == "mhnb" and (version := _read_source_version()) is not None:
        return version
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_source_version() -> str | None:
    """Return mhnb's version from the imported source, also without an installation."""
    spec = importlib.util.find_spec("mhnb")
    if spec is None or spec.origin is None:
        return None
    found = re.search(r'^__version__ = "(.+)"$', Path(spec.origin).read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1) if found else None


def _resolve(name: str) -> tuple[tuple[str, ...], str]:
    """Return a name's addresses, and the error text if it has none."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return (), error.strerror or str(error)
    return tuple(dict.fromkeys(str(each[4][0]) for each in found)), ""


def _folders(*, is_notebooks: bool) -> dict[str, Path]:
    """Return the folders that ranks write to, by purpose."""
    # On other machines, a rank's logs are on the local disk, because a home that hosts share may be slow.
    found = (
        {"logs": state_home(os.environ), "temporary files": _find_temporary_folder()}
        if is_notebooks
        else {"logs": _find_temporary_folder()}
    )
    if _SHARED_MEMORY.is_dir():
        found["shared memory"] = _SHARED_MEMORY
    return found


def _find_temporary_folder() -> Path:
    """Return the folder that tempfile would use, even if not writable."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108  # only inspected


def _disk(purpose: str, folder: Path) -> Disk:
    """Return free space, and a write's error, such as an exceeded quota."""
    existing = next((each for each in [folder, *folder.parents] if each.is_dir()), Path("/"))
    free_nbytes, why = 0, ""
    try:
        free_nbytes = shutil.disk_usage(str(existing)).free
        with tempfile.TemporaryFile(dir=str(existing)) as file:
            file.write(b"\0" * _TEST_WRITE_NBYTES)
            file.flush()
    except OSError as error:
        why = error.strerror or str(error)
    return Disk(purpose, str(folder), free_nbytes, why)


def _environment() -> dict[str, str]:
    chosen = {name: os.environ.get(name) or os.environ.get(name.upper()) for name in _VARIABLES}
    chosen.update({name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)})
    return {name: value for name, value in chosen.items() if value}


def _unknown_flags(flags: str) -> list[str]:
    """Return the XLA flags that jaxlib lacks, which would end the process."""
    names = re.findall(r"--(xla_\w+)", flags)
    library = _find_jaxlib_library() if names else None
    if library is None:
        return []
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return [name for name in names if text.find(name.encode()) < 0]


def _find_jaxlib_library() -> Path | None:
    """Return jaxlib's largest shared library, without importing it."""
    try:
        files = importlib.metadata.files("jaxlib") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.suffix in (".so", ".dylib")]
    return max((path for path in paths if path.is_file()), key=lambda path: path.stat().st_size, default=None)


def _gpus() -> tuple[Gpu, ...]:
    """Return the GPUs from the vendor's tool, or from device files."""
    if (listed := query_gpus(os.environ)) is not None:
        return listed
    nvidia = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
    amd = list(Path("/dev/dri").glob("renderD*")) if Path("/dev/kfd").exists() else []
    return tuple(Gpu(path.name) for path in sorted([*nvidia, *amd]))


# -- connectivity


class Listener:
    """Listens at an address, and sends each peer an identifying word.

    Args:
        address: of this machine.
        port: 0 for any free one.
        word: the word.

    Raises:
        OSError: no such address, or the port is taken.
    """

    def __init__(self, address: str, port: int, word: str) -> None:
        self._word = word.encode()
        self._socket = self._open(address, port)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    @staticmethod
    def _open(address: str, port: int) -> socket.socket:
        error = OSError(0, "no port is free")
        # The user may have given a name.
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        for candidate in [port] if port else random.sample(_PORTS, 50):
            listener = socket.socket(family)
            # Without it, the port of a coordinator that has just ended counts as taken for a minute. One with a listener
            # always counts as taken.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, candidate))
                listener.listen(512)
            except OSError as refused:
                listener.close()
                error = refused
                continue
            return listener
        raise error

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                # It was closed.
                return
            with connection:
                connection.settimeout(5)
                try:
                    connection.sendall(self._word)
                    # The peer closes first, so that no port here stays in TIME_WAIT.
                    connection.recv(1)
                except OSError:
                    continue

    def close(self) -> None:
        """Stop listening."""
        # Otherwise the accepting thread would keep the port open.
        # macOS refuses that for a listener; there, closing it wakes the thread.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect(targets: Sequence[Mapping[str, Any]], timeout_s: float) -> dict[str, str]:
    """Connect to each target, and check that it sends its word.

    Args:
        targets: each with `name`, `address`, `port` and `word`; an empty word: the connection is enough.
        timeout_s: for each target.

    Returns:
        Why each target does not answer; empty if it does.
    """
    with ThreadPoolExecutor(min(CONNECTIONS_AT_ONCE, len(targets) or 1)) as pool:
        answers = list(
            pool.map(lambda it: find_connect_error(it["address"], it["port"], it["word"], timeout_s), targets)
        )
    return {each["name"]: answer for each, answer in zip(targets, answers, strict=True)}


def find_connect_error(
    address: str, port: int, word: str, timeout_s: float, *, shares: tuple[float, ...] = (0.25, 0.25, 0.5)
) -> str:
    """Return why a listener cannot be reached, empty if it can.

    If packets are lost, a new attempt gets an answer sooner than TCP's next retransmission.

    Args:
        word: what it sends first; empty: the connection is enough.
        timeout_s: for all attempts together.
        shares: the part of that time for each attempt.
    """
    expected = word.encode()
    try:
        with socket.create_connection((address, port), timeout_s * shares[0]) as connection:
            connection.settimeout(timeout_s * shares[0])
            reply = _receive(connection, len(expected))
    except OSError as error:
        if len(shares) == 1 or not isinstance(error, TimeoutError):
            return "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        return find_connect_error(address, port, word, timeout_s, shares=shares[1:])
    return "" if reply == expected else "another program answers"


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := connection.recv(count - len(data))):
        data += chunk
    return data


# -- answer requests


def _listen(sockets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Open a `Listener` for each of the sockets until this process ends."""
    answers: dict[str, Any] = {}
    for each in sockets:
        try:
            # Its thread keeps the listener.
            answers[each["name"]] = {"port": Listener(each["address"], each["port"], each["word"]).port}
        except OSError as error:
            answers[each["name"]] = {"error": error.strerror or str(error)}
    return answers


_CHECKS: Mapping[str, Callable[..., Any]] = {
    "facts": lambda: msgspec.to_builtins(collect_facts(is_notebooks=False)),
    "clock": time.time,
    "listen": _listen,
    "connect": connect,
}


def main() -> None:
    """Answer requests until standard input ends."""
    for line in sys.stdin.buffer:
        request_id, check, arguments = msgspec.json.decode(line, type=tuple[int, str, dict[str, Any]])
        value = _CHECKS[check](**arguments)
        sys.stdout.buffer.write(msgspec.json.encode((request_id, value)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
