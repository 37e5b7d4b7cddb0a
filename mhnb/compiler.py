"""Compile programs for devices that are not here, in helper processes.

There is one process for each compiler, kept for reuse. It may hold 2 GB while it compiles for a large machine. The compilers of TPUs
and GPUs are not installed beside JAX, which would load them in every process of that environment and complain that their devices are
missing. They have a folder of their own, which only the helper process knows.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import requires, version
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

from platformdirs import user_data_path

from mhnb.core.program_replies import (
    ArgumentLayout,
    CompiledFit,
    CompileReply,
    CompileRequest,
    FitRequest,
)
from mhnb.core.typed_json import decode_json, encode_json
from mhnb.errors import ClusterError, InvalidRequest
from mhnb.sharding.layout import Layout, format_nbytes
from mhnb.sharding.mesh import MeshShape
from mhnb.sharding.report import Program, Report, make_report, program_from_wire

MAX_DEVICES = 2048
"""Maximum number of fake CPU devices that XLA compiles for; with more it fails."""
_TIMEOUT_S = 120.0
"""For the CPU's compiler; those of accelerators take minutes for the largest programs, and Ctrl-C ends them."""
_PACKAGES = {"tpu": ("libtpu",), "cuda": ("jax-cuda12-plugin", "jax-cuda12-pjrt")}
_MODULES = {"tpu": ("libtpu",), "cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin")}


class CompileClient:
    """Client of the process that compiles for one platform; threads take turns."""

    def __init__(self, platform: str = "cpu", *, timeout_s: float | None = None) -> None:
        self._platform = platform
        self._timeout_s = _TIMEOUT_S if timeout_s is None and platform == "cpu" else timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._replies: SimpleQueue[str] = SimpleQueue()
        self._turn = threading.Lock()
        """Replies have the order of the requests, so that a second request must wait."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                # Data that could not be written is no longer needed.
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def compile_program(
        self, program: str, layouts: Sequence[Layout], hosts: Mapping[int, str] | None = None
    ) -> Report:
        """Return a report of what a program would communicate.

        Args:
            program: `matmul`, `mlp`, `attention`, `module:function`, or an expression like `lambda x, w: x @ w`.
            layouts: of its arguments, all over one mesh.
            hosts: label by rank; without, each rank is a host.

        Raises:
            InvalidRequest: the program cannot be compiled for these layouts, or the mesh is too large.
            ClusterError: the helper process ended or did not answer in time.
        """
        return self._compile(layouts, hosts, program=program, to=None)

    def compile_reshard(self, before: Layout, after: Layout, hosts: Mapping[int, str] | None = None) -> Report:
        """Return a report of the collectives that a reshard would need.

        Raises:
            InvalidRequest: it cannot be compiled, or the mesh is too large.
            ClusterError: the helper process ended or did not answer in time.
        """
        return self._compile([before], hosts, program="", to=str(after.spec))

    def compile_fit(self, request: FitRequest) -> tuple[Program, CompiledFit]:
        """Compile an exported call for the devices of a machine.

        Returns:
            The program, whose ranks are the processes of the machine, and what the compiler says of it.

        Raises:
            InvalidRequest: it cannot be compiled; the message is the compiler's.
            ClusterError: the helper process ended or did not answer in time.
        """
        reply = self._request(request)
        if reply.program is None or reply.fit is None:
            raise _explain_refusal(reply.error)
        return program_from_wire(reply.program), reply.fit

    def _compile(
        self, layouts: Sequence[Layout], hosts: Mapping[int, str] | None, *, program: str, to: str | None
    ) -> Report:
        mesh = _require_one_mesh(layouts)
        arrays = tuple(ArgumentLayout(layout.shape, layout.dtype.name, str(layout.spec)) for layout in layouts)
        reply = self._request(CompileRequest(mesh.axes, arrays, program, to))
        if reply.program is None:
            raise InvalidRequest(f"the program cannot be compiled for these arrays: {reply.error}", error=reply.error)
        # All fake devices belong to one process; the ranks that they represent are known here.
        ranks = tuple(device.rank for device in mesh.devices)
        known = hosts or {}
        return make_report(
            replace(program_from_wire(reply.program), ranks=ranks),
            {rank: known.get(rank, f"host{rank}") for rank in ranks},
        )

    def _request(self, request: CompileRequest | FitRequest) -> CompileReply:
        with self._turn:
            return self._exchange(request)

    def _exchange(self, request: CompileRequest | FitRequest) -> CompileReply:
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(encode_json(request) + "\n")
            process.stdin.flush()
            reply = self._replies.get(timeout=self._timeout_s)
        except KeyboardInterrupt:
            # Its reply would be taken for the reply to the next request.
            self.close()
            raise
        except BrokenPipeError:
            reply = ""
        except Empty as error:
            self.close()
            raise ClusterError(
                f"the compiler's helper process did not answer within {self._timeout_s:.0f} s"
            ) from error
        if not reply:
            self.close()
            raise ClusterError(
                "the compiler's helper process stopped unexpectedly; run the command again to start another"
            )
        try:
            return decode_json(reply, CompileReply)
        except ValueError as error:
            self.close()
            raise ClusterError(
                f"the compiler's helper process sent an unexpected answer: {error!s:.200}; run the command again to start another"
            ) from error

    def _start(self) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
        environment |= {"JAX_PLATFORMS": "cpu"}
        if self._platform == "cpu":
            environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={MAX_DEVICES}"
        else:
            paths = [str(compiler_folder(self._platform)), *filter(None, [environment.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
            # Without the first, libtpu looks for the metadata of a virtual machine; without the other, for a free lock.
            environment |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "mhnb.rank.compile_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            # Ctrl-C in a terminal is for the caller, not for this process.
            start_new_session=True,
        )
        replies = self._replies = SimpleQueue()
        assert process.stdout is not None
        threading.Thread(target=_read, args=(process.stdout, replies), name="mhnb-plan", daemon=True).start()
        return process


def _read(stream: Any, replies: SimpleQueue[str]) -> None:
    for line in stream:
        replies.put(line)
    replies.put("")


def _require_one_mesh(layouts: Sequence[Layout]) -> MeshShape:
    meshes = {layout.mesh for layout in layouts}
    mesh = meshes.pop() if len(meshes) == 1 else None
    if mesh is None:
        raise InvalidRequest("the compiler needs all arrays on one mesh; give each array a spec on the same mesh")
    if len(mesh.devices) > MAX_DEVICES:
        raise InvalidRequest(
            f"the mesh has {len(mesh.devices)} devices, but programs are compiled for at most {MAX_DEVICES} fake devices."
            " The layouts are correct at any size; use a smaller mesh of the same form for the program"
        )
    return mesh


_OVERFLOW = re.compile(r"\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)([KMGT])\)")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _explain_refusal(error: str) -> InvalidRequest:
    """Return the error for what a compiler said, with its reason first."""
    if found := _OVERFLOW.search(error):
        needed, available = (float(found[at]) * _UNITS[found[at + 1]] for at in (1, 3))
        reason = f"does not fit: the compiler needs {format_nbytes(round(needed))} of {format_nbytes(round(available))} on a device"
        return InvalidRequest(reason, needed=round(needed), available=round(available), error=error)
    return InvalidRequest(f"the compiler refuses it: {error}", error=error)


def compiler_folder(platform: str) -> Path:
    """Return where the compiler of a platform is installed for this JAX."""
    return user_data_path("mhnb") / "compilers" / f"{platform}-{version('jaxlib')}"


def is_compiler_installed(platform: str) -> bool:
    """Return whether the compiler of a platform can be used."""
    if platform == "cpu":
        return True
    folder = compiler_folder(platform)
    # Where the machine has such chips, it is a part of JAX's own installation.
    return any((folder / name).is_dir() or find_spec(name) is not None for name in _MODULES[platform])


def format_install_line(platform: str) -> str:
    """Format the command that installs a platform's compiler for this JAX."""
    wanted = {parse_requirement(each) for each in requires("jax") or ()}
    own = version("jaxlib")
    pins = {"libtpu": next((pin for name, pin in wanted if name == "libtpu"), "")}
    names = " ".join(f"'{name}{pins.get(name, f'=={own}')}'" for name in _PACKAGES[platform])
    # uv makes environments without pip.
    install = f"{sys.executable} -m pip install" if find_spec("pip") else f"uv pip install --python {sys.executable}"
    return f"{install} --no-deps --target '{compiler_folder(platform)}' {names}"


def parse_requirement(text: str) -> tuple[str, str]:
    """Split a requirement into its name and its pin.

    >>> parse_requirement('libtpu==0.0.42.*; extra == "tpu"')
    ('libtpu', '==0.0.42.*')
    """
    bare = text.partition(";")[0].strip()
    name = re.match(r"[\w.-]*", bare)
    assert name is not None
    return name[0], bare[name.end() :]


_shared: dict[str, CompileClient] = {}


def shared_compiler(platform: str = "cpu") -> CompileClient:
    """Return this process's compiler of a platform; it ends with the process."""
    if not _shared:
        atexit.register(close_shared)
    return _shared.setdefault(platform, CompileClient(platform))


def close_shared() -> None:
    """End this process's compilers; the next request starts another."""
    for compiler in _shared.values():
        compiler.close()
