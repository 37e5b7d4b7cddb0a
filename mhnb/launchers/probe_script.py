"""Script that runs on each machine during preflight: it collects facts, listens and connects, one request per line.

The text is sent to the machine's own Python, which may have no mhnb and no JAX. So it imports only the standard library, at any
version from 3.8 (annotations are never evaluated), and never JAX, whose first use would allocate the devices.
A request is a line of JSON with the name of a function below; its answer is a line of JSON after `mhnb-probe `.
"""

from __future__ import annotations

import hmac
import importlib.metadata
import importlib.util
import json
import mmap
import os
import platform
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ANSWER = "mhnb-probe "
"""Prefix of each answer, to tell it from the output of a login shell's start-up files."""

_PACKAGES = ("mhnb", "jax", "jaxlib", "ipyparallel", "ipykernel", "numpy")
_VARIABLES = (
    "PYTHONHASHSEED", "http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy", "CUDA_VISIBLE_DEVICES"
)  # fmt: skip
_PREFIXES = ("JAX_", "XLA_", "TPU_", "NCCL_")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # only tested for whether ranks can write there
_DEFAULT_ROUTE_TARGET = "192.0.2.1"
"""Address of a network for documentation. The local address that routes to it is that of the default route. Nothing is sent."""
_TEST_WRITE_NBYTES = 1 << 20
_PORTS = range(20_000, 32_000)
"""Below the ports that the system assigns, so that a port found free stays free."""

_TASK_VARIABLES = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
"""Same variables and order as in the supervisor."""
_PART_LENGTH, _IDLE_S = 600, 120.0
"""srun breaks lines of more than a kilobyte."""

_listeners: dict[str, socket.socket] = {}


# -- facts


def collect_facts(names: list[str], *, is_notebooks: bool, towards: str = "") -> dict[str, Any]:
    """Collect facts about this machine.

    Args:
        names: to be resolved on this machine.
        is_notebooks: whether the notebook runs here, so that its log folder is used here too.
        towards: the notebook's address, if this probe was not started by our own ssh; the own address is the one that routes
            there. A launcher copies the login node's environment, which may contain variables of another ssh.
    """
    hostname = socket.gethostname()
    return {
        "hostname": hostname,
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": f"{platform.system()} {platform.machine()}",
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        "ssh": [] if towards else os.environ.get("SSH_CONNECTION", "").split(),
        "outward": _find_local_address(towards or _DEFAULT_ROUTE_TARGET),
        "versions": {name: find_version(name) for name in _PACKAGES},
        "names": {name: _resolve(name) for name in [hostname, *names]},
        "disks": [_disk(use, folder) for use, folder in _folders(is_notebooks=is_notebooks).items()],
        "environment": _environment(),
        "unknown_flags": _unknown_flags(os.environ.get("XLA_FLAGS", "")),
        "gpus": _gpus(),
        "tpus": len(list(Path("/dev").glob("accel*"))),
        "cores": os.cpu_count() or 0,
    }


def read_clock() -> float:
    """Return the time of this machine's clock in seconds since 1970."""
    return time.time()


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _find_local_address(towards: str) -> str:
    with socket.socket(socket.AF_INET6 if ":" in towards else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def find_version(name: str) -> str | None:
    """Return the installed version of a distribution; None if this Python has none."""
    if name == "mhnb" and (version := _read_source_version()) is not None:
        return version
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_source_version() -> str | None:
    """Return the version of mhnb from the source that a rank would import, also from a checkout that is not installed."""
    spec = importlib.util.find_spec("mhnb")
    if spec is None or spec.origin is None:
        return None
    found = re.search(r'^__version__ = "(.+)"$', Path(spec.origin).read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1) if found else None


def _resolve(name: str) -> dict[str, Any]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"addresses": list(dict.fromkeys(str(each[4][0]) for each in found))}


def _folders(*, is_notebooks: bool) -> dict[str, Path]:
    """Return the folders that ranks write to: logs and run files, temporary files of programs, shared memory."""
    # On other machines, a rank's logs are on the local disk, because a home that hosts share may be slow.
    found = (
        {"logs": _state_home(), "temporary files": _find_temporary_folder()}
        if is_notebooks
        else {"logs": _find_temporary_folder()}
    )
    if _SHARED_MEMORY.is_dir():
        found["shared memory"] = _SHARED_MEMORY
    return found


def _state_home() -> Path:
    home = Path.home()
    default = home / "Library/Application Support" if sys.platform == "darwin" else home / ".local/state"
    return Path(os.environ.get("MHNB_HOME") or Path(os.environ.get("XDG_STATE_HOME") or default) / "mhnb").expanduser()


def _find_temporary_folder() -> Path:
    """Return the folder that tempfile would use, also if it finds none that is writable."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108  # only inspected


def _disk(use: str, folder: Path) -> dict[str, Any]:
    """Return the free space, and whether a megabyte can be written: nothing else detects a quota or a read-only disk."""
    existing = next((each for each in [folder, *folder.parents] if each.is_dir()), Path("/"))
    fact: dict[str, Any] = {"use": use, "folder": str(folder), "free": 0, "error": ""}
    try:
        fact["free"] = shutil.disk_usage(str(existing)).free
        with tempfile.TemporaryFile(dir=str(existing)) as file:
            file.write(b"\0" * _TEST_WRITE_NBYTES)
            file.flush()
    except OSError as error:
        fact["error"] = error.strerror or str(error)
    return fact


def _environment() -> dict[str, str]:
    chosen = {name: os.environ.get(name) or os.environ.get(name.upper()) for name in _VARIABLES}
    chosen.update({name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)})
    return {name: value for name, value in chosen.items() if value}


def _unknown_flags(flags: str) -> list[str]:
    """Return the flags whose name is nowhere in jaxlib: XLA ends the process when it meets one."""
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


def _gpus() -> list[dict[str, str]]:
    """Return the GPUs listed by the vendor's tool, or else by their device files."""
    command = ["nvidia-smi", "--query-gpu=name,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        nvidia = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
        amd = list(Path("/dev/dri").glob("renderD*")) if Path("/dev/kfd").exists() else []
        return [{"name": path.name, "uuid": ""} for path in sorted([*nvidia, *amd])]
    rows = [line.rpartition(",") for line in done.stdout.decode(errors="replace").splitlines() if "," in line]
    return _select_visible([{"name": name.strip(), "uuid": uuid.strip()} for name, _, uuid in rows])


def _select_visible(gpus: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the GPUs that CUDA would show a rank: it accepts indices and UUID prefixes, up to the first invalid one."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    found = []
    for word in chosen.split(","):
        each = [
            gpu
            for at, gpu in enumerate(gpus)
            if word.strip() == str(at) or (word.strip()[:4] == "GPU-" and gpu["uuid"].startswith(word.strip()))
        ]
        if len(each) != 1:
            break
        found += each
    return found


# -- connectivity


def listen(sockets: list[dict[str, Any]]) -> dict[str, Any]:
    """Listen on sockets, and send a word to every peer that connects.

    Args:
        sockets: each with `name`, `address`, `port` (0: any free one) and the `word`.
    """
    return {each["name"]: _listen(each["name"], each["address"], each["port"], each["word"]) for each in sockets}


def _listen(name: str, address: str, port: int, word: str) -> dict[str, Any]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    error = OSError(0, "no port is free")
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
        _listeners[name] = listener
        threading.Thread(target=_serve_word, args=(listener, word.encode()), daemon=True).start()
        return {"port": candidate}
    return {"error": error.strerror or str(error)}


def _serve_word(listener: socket.socket, word: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            # Closed: the end of preflight.
            return
        with connection:
            connection.settimeout(5)
            try:
                connection.sendall(word)
                # The peer closes first, so that no port here stays in TIME_WAIT.
                connection.recv(1)
            except OSError:
                continue


def connect(targets: list[dict[str, Any]], timeout_s: float, skip: str = "") -> dict[str, Any]:
    """Connect to each target, and check that it sends its word.

    Args:
        targets: each with `name`, `address`, `port` and `word`.
        skip: name of the target that is this machine itself, because all machines get the same list.
    """
    targets = [each for each in targets if each["name"] != skip]
    with ThreadPoolExecutor(min(64, len(targets) or 1)) as pool:
        answers = list(pool.map(lambda each: _connect(each, timeout_s), targets))
    return {each["name"]: answer for each, answer in zip(targets, answers)}  # noqa: B905  # since 3.10


def _connect(target: dict[str, Any], timeout_s: float, shares: tuple[float, ...] = (0.25, 0.25, 0.5)) -> str:
    """Return why the target does not answer, empty if it does.

    If packets are lost, a new attempt gets an answer sooner than TCP's next retransmission.
    """
    try:
        with socket.create_connection((target["address"], target["port"]), timeout_s * shares[0]) as connection:
            connection.settimeout(timeout_s * shares[0])
            word = target["word"].encode()
            reply = _receive(connection, len(word))
    except OSError as error:
        is_last = len(shares) == 1 or not isinstance(error, socket.timeout)
        return _describe_error(error) if is_last else _connect(target, timeout_s, shares[1:])
    return "" if reply == word else "somebody else answers"


def _describe_error(error: OSError) -> str:
    # Before 3.10, this class is not TimeoutError.
    return "no answer" if isinstance(error, socket.timeout) else (error.strerror or str(error)).lower()


# -- entry points


_FUNCTIONS: dict[str, Any] = {"facts": collect_facts, "time": read_clock, "listen": listen, "connect": connect}


def main() -> None:
    """Answer requests until standard input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        answer = _FUNCTIONS[request.pop("do")](**request)
        sys.stdout.write(f"{ANSWER}{json.dumps(answer)}\n")
        sys.stdout.flush()


def main_multiplexed() -> None:
    """Answer requests that all tasks of a launcher read, each task its own part, until a request to end."""
    _serve(sys.stdin, sys.stdout, _task_number())


def main_callback() -> None:
    """Serve requests over a connection to the notebook, because standard input reaches only the first task.

    A line of standard input contains the notebook's address.
    """
    connection_info = json.loads(sys.stdin.buffer.readline())
    # The rest of the file is for the supervisor that runs after this process.
    os.lseek(0, sys.stdin.buffer.tell(), os.SEEK_SET)
    number = _task_number()
    try:
        connection = _connect_to_notebook(connection_info, number)
    except OSError as error:
        reason = _describe_error(error)
    else:
        with connection, connection.makefile("rw", encoding="utf-8") as lines:
            _send_answer(lines, number, 0, {"error": ""})
            _serve(lines, lines, number)
        return
    _send_answer(
        sys.stdout,
        number,
        0,
        {"error": reason, "facts": collect_facts([], is_notebooks=False, towards=connection_info["address"])},
    )
    raise SystemExit(1)  # No supervisor runs after it.


def _connect_to_notebook(connection_info: dict[str, Any], number: int) -> socket.socket:
    """Connect to the notebook. Each side proves that it has read the same file."""
    connection = socket.create_connection(
        (connection_info["address"], connection_info["port"]), connection_info["timeout_s"]
    )
    try:
        if _receive(connection, 64) == sign_challenge(connection_info["word"], "notebook"):
            connection.sendall(sign_challenge(connection_info["word"], f"probe {number}") + b"%6d" % number)
        if _receive(connection, 1) != b"!":
            raise OSError(0, "somebody else answers")
    except OSError:
        connection.close()
        raise
    connection.settimeout(_IDLE_S)
    return connection


def sign_challenge(secret: str, sender: str) -> bytes:
    """Return a proof that can only be computed with the shared secret."""
    return hmac.new(secret.encode(), sender.encode(), "sha256").hexdigest().encode()


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := connection.recv(count - len(data))):
        data += chunk
    return data


def _task_number() -> int:
    return next(int(os.environ[name]) for name in _TASK_VARIABLES if os.environ.get(name, "").isdigit())


def _serve(lines: Any, out: Any, number: int) -> None:
    for line in lines:
        request = json.loads(line)
        if request["do"] == "end":
            _send_answer(out, number, request["id"], None)
            return
        own = request["each"].get(str(number))
        if own is not None:
            _send_answer(out, number, request["id"], _FUNCTIONS[request["do"]](**request["common"], **own))
    raise SystemExit(1)


def _send_answer(out: Any, number: int, request: int, answer: Any) -> None:
    """Send an answer in parts short enough for every launcher."""
    text = json.dumps(answer)
    parts = [text[at : at + _PART_LENGTH] for at in range(0, len(text), _PART_LENGTH)]
    for at, part in enumerate(parts):
        print(f"{ANSWER}{number} {request} {at}/{len(parts)} {len(part)} {part}", file=out, flush=True)
